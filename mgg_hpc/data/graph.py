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
    """A whole graph of N nodes and E stored edges.

    Attributes:
        indptr, indices: CSR of in-edges, int64 [N + 1] and int32 or int64 [E]; row v lists the sources of v's edges.
        weight: float32 [E].
        x: features, float32 or float16 [N, F], or `SparseRows`.
        y: labels, int64 [N], -1 for unlabelled nodes; or float32 [N, C] of 0 and 1 (multi-label).
        train, val, test: masks, bool [N]; all three or none.
        directed: False promises that each edge's reverse is stored, with the same weight.
        permutation: int64 [N], the original id of each row of a renumbered graph.
        edge: further edge data by name, float32, float16 or integers [E, ...] in the order of ``indices``; an edge
            and its reverse may differ in it.
        types: of nodes and edges, as JSON: {"nodes": [[name, number of nodes, columns of x]], "edges": [[source, name,
            destination]]}. Original ids are numbered type after type; edge data "type" are places in "edges".
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
    types: str = ""

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
    """Return the narrowest integer type that graph files allow for the ids of this many nodes."""
    return np.int32 if nodes <= INT32_NODES else np.int64


def csr_from_edges(
    sources: np.ndarray, destinations: np.ndarray, nodes: int, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sort an edge list into an in-edge CSR. Arguments and errors as for `from_edges`.

    Returns:
        indptr int64 [nodes + 1], indices int32 or int64 [E], weight float32 [E] or None.
    """
    graph = from_edges(sources, destinations, nodes, **options)
    return graph.indptr, graph.indices, graph.weight


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
    """Return the graph of an edge list. In each row of the CSR, sources ascend.

    Args:
        sources, destinations: integers [E] in 0 .. nodes - 1.
        weight: numbers [E].
        edge: further edge data by name, [E, ...] each.
        symmetric: add the reverse of each edge, and drop duplicates.
        drop_duplicates: keep the first of equal edges, with its weight and data (for both directions).
        fields: further fields of Graph.

    Raises InputError for an id that is out of range or no integer.
    """
    src, dst = _node_ids("source", sources, nodes), _node_ids("destination", destinations, nodes)
    carried = dict(edge or {})
    # The position in the edge list of each stored edge; not computed where nothing is carried along.
    listed = np.arange(len(src)) if weight is not None or carried else None
    if drop_self_loops:
        kept = src != dst
        src, dst = src[kept], dst[kept]
        listed = None if listed is None else listed[kept]
    if symmetric:
        # An edge and its reverse stay adjacent, so that the first of equal edges is the same for both directions.
        src, dst = np.stack([src, dst], axis=1).ravel(), np.stack([dst, src], axis=1).ravel()
        listed = None if listed is None else np.repeat(listed, 2)
    key = dst * np.int64(nodes) + src  # below 2**63 for any graph of fewer than 3e9 nodes
    if listed is None:
        key = np.sort(key)
    else:
        order = np.argsort(key, kind="stable")
        key, listed = key[order], listed[order]
    if (symmetric or drop_duplicates) and len(key):
        kept = np.concatenate([[True], key[1:] != key[:-1]])
        key, listed = key[kept], None if listed is None else listed[kept]
    dst, src = np.divmod(key, np.int64(nodes)) if nodes else (key, key)
    indptr = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=nodes), out=indptr[1:])
    return Graph(
        name,
        indptr,
        src.astype(index_dtype(nodes)),
        weight=None if weight is None else np.asarray(weight, dtype=np.float32)[listed],
        edge={key: np.asarray(values)[listed] for key, values in carried.items()},
        directed=not symmetric,
        **fields,
    )


def _node_ids(end: str, values: np.ndarray, nodes: int) -> np.ndarray:
    """Return the ids of one end of edges as int64. Raises InputError that names the first wrong one."""
    ids = np.asarray(values)
    if len(ids) and ids.dtype.kind not in "iuf":
        raise InputError(f"edge list: edge 0 has the {end} {ids[0]} ({ids.dtype}); expected integers")
    ids = whole_ids("edge list: edge", 0, ids, f" has the {end}")
    if len(ids) and (ids.min() < 0 or ids.max() >= nodes):
        at = int(np.argmax((ids < 0) | (ids >= nodes)))
        raise InputError(
            f"edge list: edge {at} has the {end} {ids[at]}: node id {ids[at]} is not in 0 .. {nodes - 1}"
        )
    return ids.astype(np.int64, copy=False)


def whole_ids(where: str, low: int, ids: np.ndarray, what: str) -> np.ndarray:
    """Return ids, from number ``low`` on, as integers. what: comes between number and id in messages.

    Raises InputError for a float that is not whole, or so large that its type does not hold all whole numbers up to it.
    """
    if ids.dtype.kind != "f":
        return ids
    most = 2.0 ** (np.finfo(ids.dtype).nmant + 1)
    wrong = ~((np.abs(ids) < most) & (ids == np.floor(ids)))
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"{where} {low + at}{what} {ids[at]}; expected whole numbers below {most:.0f} in {ids.dtype}"
        )
    return ids.astype(np.int64)


def masks(nodes: int, chosen: Iterable[np.ndarray]) -> dict[str, Any]:
    """Return the masks, bool [nodes], of ids of training, validation and test nodes, by field name of Graph."""
    found = {name: np.zeros(nodes, dtype=bool) for name in SPLITS}
    for mask, members in zip(found.values(), chosen, strict=True):
        mask[members] = True
    return found


def split_per_class(
    y: np.ndarray, classes: int, rng: np.random.Generator, *, train: int = 20, val: int = 30
) -> dict[str, Any]:
    """Draw `masks` with ``train`` and ``val`` nodes of each class; all other labelled nodes are for testing.

    y: int64 [N], -1 for unlabelled nodes. Raises InputError for multi-label data, and for a class with no more than
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
                f"{train + val} nodes a class; class {label} has {len(members)}: use --split-random 0.6 0.2"
            )
        for split, nodes in zip(chosen, np.split(members, [train, train + val]), strict=True):
            split.append(nodes)
    return masks(len(y), map(np.concatenate, chosen))


def split_random(y: np.ndarray, rng: np.random.Generator, *, train: float, val: float) -> dict[str, Any]:
    """Draw `masks` with these shares of the labelled nodes, rounded down; all other labelled nodes are for testing.

    y: int64 [N], -1 for unlabelled nodes, or [N, C], where all nodes are labelled. Raises InputError for shares that
    are negative or sum to more than 1.
    """
    if min(train, val) < 0 or train + val > 1:
        raise InputError(
            f"a random split into shares of {train} and {val}: expected nothing negative, 1 in all at most"
        )
    labelled = rng.permutation(np.flatnonzero(y >= 0) if y.ndim == 1 else len(y))
    first = int(train * len(labelled))
    return masks(len(y), np.split(labelled, [first, first + int(val * len(labelled))]))
