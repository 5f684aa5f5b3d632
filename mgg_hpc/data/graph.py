"""A graph in memory: in-edge CSR, node features, labels and masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError

SPLITS = ("train", "val", "test")
INT32_NODES = 2**31  # node ids 0 .. 2**31 - 1 fit int32


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Feature rows as CSR: indptr int64 [N+1], indices int32 [nnz] (columns), data float32 [nnz]."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole graph.

    Row v of the CSR (``indptr`` int64 [N+1], ``indices`` int32 or int64 [E]) lists the sources u of the
    edges u -> v; ``weight`` is float32 [E]. ``x`` is float32 or float16 [N, F], or ``SparseRows``. ``y`` is
    int64 [N] with -1 for unlabelled nodes, or float32 [N, C] of 0 and 1 (multi-label). The masks are bool
    [N] and come together. ``directed=False`` promises that each edge's reverse is there with the same
    weight. ``permutation`` int64 [N] gives the original id of each row when rows were renumbered. ``edge`` has
    further data of edges by name, [E, ...] in the order of ``indices``: float32, float16 or integers. An edge and its
    reverse may differ in it.
    """

    name: str
    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None = None
    x: np.ndarray | SparseRows | None = None
    y: np.ndarray | None = None
    train: np.ndarray | None = None
    val: np.ndarray | None = None
    test: np.ndarray | None = None
    directed: bool = True
    classes: int = 0
    permutation: np.ndarray | None = None
    edge: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of stored edges; an undirected edge counts twice."""
        return len(self.indices)

    @property
    def features(self) -> int:
        """Number of feature columns, 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def multilabel(self) -> bool:
        return self.y is not None and self.y.ndim == 2


def index_dtype(nodes: int) -> type[np.signedinteger]:
    """Return the narrowest type that the format allows for ids of this many nodes."""
    return np.int32 if nodes <= INT32_NODES else np.int64


def csr_from_edges(
    sources: np.ndarray,
    destinations: np.ndarray,
    nodes: int,
    *,
    weight: np.ndarray | None = None,
    symmetric: bool = False,
    drop_duplicates: bool = False,
    drop_self_loops: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sort an edge list into an in-edge CSR: ``(indptr, indices, weight)``, sources ascending in each row.

    ``sources`` and ``destinations`` are integer [E] with values in 0 .. nodes-1. ``symmetric`` adds the
    reverse of each edge and implies ``drop_duplicates``; of edges listed twice the first one's weight
    stays, in both directions. Raises InputError for an id out of range.
    """
    indptr, indices, listed = _sorted_edges(
        sources,
        destinations,
        nodes,
        symmetric=symmetric,
        drop_duplicates=drop_duplicates,
        drop_self_loops=drop_self_loops,
        lists=weight is not None,
    )
    return indptr, indices, None if weight is None else np.asarray(weight, dtype=np.float32)[listed]


def _sorted_edges(
    sources: np.ndarray,
    destinations: np.ndarray,
    nodes: int,
    *,
    symmetric: bool,
    drop_duplicates: bool,
    drop_self_loops: bool,
    lists: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the CSR of `csr_from_edges`, and with ``lists`` int64: which given edge each stored one is."""
    src, dst = np.asarray(sources, dtype=np.int64), np.asarray(destinations, dtype=np.int64)
    for ids in (src, dst):
        if len(ids) and (ids.min() < 0 or ids.max() >= nodes):
            outside = int(ids[(ids < 0) | (ids >= nodes)][0])
            raise InputError(f"edge list: node id {outside} is not in 0 .. {nodes - 1}")
    listed = np.arange(len(src)) if lists else None
    if drop_self_loops:
        kept = src != dst
        src, dst = src[kept], dst[kept]
        listed = None if listed is None else listed[kept]
    if symmetric:
        # An edge and its reverse stay side by side, so that "the first one" is the same for both.
        src, dst = np.stack([src, dst], axis=1).ravel(), np.stack([dst, src], axis=1).ravel()
        listed = None if listed is None else np.repeat(listed, 2)
    key = dst * np.int64(nodes) + src  # below 2**63 for any graph of fewer than 3e9 nodes
    if listed is None:
        key = np.sort(key)
    else:
        order = np.argsort(key, kind="stable")
        key, listed = key[order], listed[order]
    if (symmetric or drop_duplicates) and len(key):
        kept = np.concatenate([[True], key[1:] != key[:-1]])  # the first edge of each key
        key, listed = key[kept], None if listed is None else listed[kept]
    dst, src = np.divmod(key, np.int64(nodes)) if nodes else (key, key)
    indptr = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=nodes), out=indptr[1:])
    return indptr, src.astype(index_dtype(nodes)), listed


def from_edges(
    sources: np.ndarray,
    destinations: np.ndarray,
    nodes: int,
    *,
    name: str = "graph",
    weight: np.ndarray | None = None,
    edge: Mapping[str, np.ndarray] | None = None,
    symmetric: bool = False,
    drop_duplicates: bool = False,
    drop_self_loops: bool = False,
    **fields: Any,
) -> Graph:
    """Return a Graph from an edge list (see ``csr_from_edges``); fields: further fields of Graph.

    edge: data of the listed edges by name, [E, ...] each, which go where the weights go.
    """
    carried = edge or {}
    indptr, indices, listed = _sorted_edges(
        sources,
        destinations,
        nodes,
        symmetric=symmetric,
        drop_duplicates=drop_duplicates,
        drop_self_loops=drop_self_loops,
        lists=weight is not None or bool(carried),
    )
    return Graph(
        name,
        indptr,
        indices,
        weight=None if weight is None else np.asarray(weight, dtype=np.float32)[listed],
        edge={key: np.asarray(values)[listed] for key, values in carried.items()},
        directed=not symmetric,
        **fields,
    )


def masks(nodes: int, chosen: Iterable[np.ndarray]) -> dict[str, Any]:
    """Return bool [nodes] masks of the training, validation and test nodes ``chosen``, by the fields of Graph."""
    found = {name: np.zeros(nodes, dtype=bool) for name in SPLITS}
    for mask, members in zip(found.values(), chosen, strict=True):
        mask[members] = True
    return found


def split_per_class(
    y: np.ndarray, classes: int, rng: np.random.Generator, *, train: int = 20, val: int = 30
) -> dict[str, Any]:
    """Draw `masks`: ``train`` and ``val`` nodes of each class, and every other labelled node for testing.

    y: int64 [N], -1 unlabelled. Raises InputError for multi-label data and for a class with no more than
    ``train + val`` nodes.
    """
    if y.ndim != 1:
        raise InputError("a split per class needs one label a node; this graph has several (multi-label)")
    chosen: tuple[list[np.ndarray], ...] = ([], [], [])
    for label in range(classes):
        members = rng.permutation(np.flatnonzero(y == label))
        if len(members) <= train + val:
            raise InputError(
                f"a split per class of {train} training and {val} validation nodes needs more than "
                f"{train + val} nodes a class; class {label} has {len(members)}"
            )
        for split, nodes in zip(chosen, np.split(members, [train, train + val]), strict=True):
            split.append(nodes)
    return masks(len(y), map(np.concatenate, chosen))


def split_random(y: np.ndarray, rng: np.random.Generator, *, train: float, val: float) -> dict[str, Any]:
    """Draw `masks`: these shares of the labelled nodes, rounded down, and every other labelled node for testing.

    y: int64 [N], -1 unlabelled, or [N, C] (each node counts). Raises InputError for shares that are negative or sum to
    more than 1.
    """
    if min(train, val) < 0 or train + val > 1:
        raise InputError(
            f"a random split into shares of {train} and {val}: expected nothing negative, 1 in all at most"
        )
    labelled = rng.permutation(np.flatnonzero(y >= 0) if y.ndim == 1 else len(y))
    first = int(train * len(labelled))
    return masks(len(y), np.split(labelled, [first, first + int(val * len(labelled))]))
