"""NumPy archives: a CSR and what belongs to its nodes and edges, under fixed names; and SciPy's matrices.

``indptr`` [N+1] and ``indices`` [E] are an in-edge CSR; the optional ``dir_indptr``, ``dir_indices`` the
directed original of a symmetrised one; ``weight`` [E]. Features are ``x`` [N, F], or ``x_indptr``,
``x_indices``, ``x_data``, ``x_shape``. ``y`` is integer [N] (-1 unlabelled), or 0 and 1 [N, C].
``train_mask``, ``val_mask``, ``test_mask`` are bool [N]; ``train_masks`` and so on hold several splits, bool
[S, N] or, as PyG has them under either name, [N, S].

What a graph file has besides is there under its paths: ``edge/NAME`` [E, ...], ``node/id`` [N], ``node/name/offsets``
[N+1] and ``node/name/text``; and of its attributes ``graph/name`` (UTF-8, uint8), ``graph/classes`` and
``graph/directed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import schema
from ..edge_stream import Imported, Rows
from ..graph import SPLITS, Graph, SparseRows, index_dtype
from ..schema import Layout
from ..verify import undirected_if_symmetric
from .arrays import scipy_npz
from .arrays.archive import Archive
from .arrays.edges import CompressedEdges, carried, in_range
from .arrays.node_rows import check_nodes, feature_rows, label_rows, of_array, sparse_rows
from .limits import check_memory
from .npy import Array

NAME, CLASSES, DIRECTED = "graph/name", "graph/classes", "graph/directed"


def open_npz(path: Path, *, split: int | None = None, directed: bool = False) -> Imported:
    """Open an archive as a stream; ``split`` chooses one of several splits, ``directed`` the directed original.

    An archive that SciPy's save_npz wrote is a graph whose row i lists the sources of i's in-edges. Without
    ``directed``, and where the archive does not say it, the graph is undirected if each edge's reverse is there. Raises
    InputError for a file that is no such archive, or an array whose type or shape does not fit; passes raise it for
    values that do not.
    """
    archive = Archive(path)
    if scipy_npz.is_matrix(archive):
        return scipy_npz.open_matrix(archive)
    found = _Contents(archive, directed)
    edges = CompressedEdges(
        str(path),
        found.indptr,
        found.indices,
        weight=found.weight,
        data={} if directed else found.edge_data(),
    )
    features, sparse_shape = _features(archive, found.nodes)
    rows = {**features, **_masks(archive, found.nodes, split), **_names(archive, found.nodes)}
    y, fields = _labels(archive, found.nodes)
    return Imported(
        _name(archive), edges, rows | y, sparse_shape=sparse_shape, directed=found.directed, **fields
    )


def read_npz(path: Path, *, split: int | None = None, directed: bool = False) -> Graph:
    """Read an archive of the project's own names into memory. Arguments and errors as for `open_npz`.

    Edges keep the archive's order. Names of nodes are left out.
    """
    archive = Archive(path)
    if scipy_npz.is_matrix(archive):
        raise InputError(f"{path} is a matrix of SciPy; make a graph file of it first, by mgg import")
    opened, found = open_npz(path, split=split, directed=directed), _Contents(archive, directed)
    assert not callable(opened.rows)
    rows = opened.rows
    check_memory(f"{path}, unpacked,", found.nbytes + sum(each.layout.nbytes for each in rows.values()))
    held = {name: _whole(each) for name, each in rows.items()}
    train, val, test = (held.get(path) for path in schema.MASKS)
    graph = Graph(
        name=opened.name,
        indptr=found.indptr.whole().astype(np.int64, copy=False),
        indices=in_range(found.indices, found.indices.whole(), 0, found.nodes).astype(
            index_dtype(found.nodes)
        ),
        weight=None if found.weight is None else found.weight.whole().astype(np.float32, copy=False),
        x=held.get(schema.X) if opened.sparse_shape is None else _sparse(held, opened.sparse_shape),
        y=held.get(schema.Y),
        train=train,
        val=val,
        test=test,
        classes=opened.classes,
        edge={} if directed else {name: carried(each.whole()) for name, each in found.edge_data().items()},
    )
    return graph if opened.directed else undirected_if_symmetric(graph, str(path))


def _whole(rows: Rows) -> NDArray[Any]:
    found, at = np.empty(rows.layout.shape, rows.layout.dtype), 0
    for piece in rows.pieces():
        found[at : at + len(piece)] = piece
        at += len(piece)
    return found


def _sparse(held: dict[str, NDArray[Any]], shape: tuple[int, int]) -> SparseRows:
    indptr, indices, data = (held[path] for path in (schema.X_INDPTR, schema.X_INDICES, schema.X_DATA))
    return SparseRows(indptr, indices, data, shape)


@dataclass(frozen=True, eq=False)
class _Contents:
    """The edges of an archive, or their directed original. Raises InputError if they do not fit each other."""

    archive: Archive
    original: bool

    def __post_init__(self) -> None:
        check_nodes(self.indptr.where, self.nodes)

    @property
    def indptr(self) -> Array:
        return self.archive.need(f"{self._prefix}indptr", "int", None)

    @property
    def indices(self) -> Array:
        return self.archive.need(f"{self._prefix}indices", "int", None)

    @property
    def weight(self) -> Array | None:
        return self.archive.find("weight", "number", len(self.indices))

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def directed(self) -> bool | None:
        """Whether the graph is directed; None where the assembly finds out."""
        if self.original:
            return True
        told = self.archive.find(DIRECTED, "bool")
        return None if told is None else bool(told.whole())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of edges."""
        arrays = [self.indptr, self.indices, self.weight, *self.edge_data().values()]
        return sum(each.header.nbytes for each in arrays if each is not None)

    @property
    def _prefix(self) -> str:
        return "dir_" if self.original else ""

    def edge_data(self) -> dict[str, Array]:
        """Return the data of edges by name."""
        paths = sorted(name for name in self.archive.names if name.startswith(schema.EDGE))
        schema.check_edge_names(str(self.archive.path), [path.removeprefix(schema.EDGE) for path in paths])
        found = {}
        for path in paths:
            further = (self.archive.shape(path) or ())[1:]
            found[path.removeprefix(schema.EDGE)] = self.archive.need(
                path, "any number", len(self.indices), *further
            )
        return found


def _name(archive: Archive) -> str:
    told = archive.find(NAME, "int", None)
    name = archive.path.stem
    if told is not None and told.header.nbytes < 1 << 16:
        name = told.whole().astype(np.uint8).tobytes().decode("utf-8", errors="replace")
    return name


def _features(archive: Archive, nodes: int) -> tuple[dict[str, Rows], tuple[int, int] | None]:
    dense = archive.find("x", "number", nodes, None)
    if dense is not None:
        dtype = schema.FLOAT16 if dense.dtype == np.float16 else schema.FLOAT32
        return {schema.X: feature_rows(dense.where, dense.rows(), dtype)}, None
    told = archive.find("x_shape", "int", 2)
    if told is None:
        return {}, None
    shape = told.whole().tolist()
    if shape[0] != nodes or not 1 <= shape[1] < 2**31:
        raise InputError(f"{archive.path}: x_shape is {shape}; expected [{nodes}, 1 or more]")
    columns = archive.need("x_indices", "int", None)
    values = archive.need("x_data", "number", len(columns))
    indptr = archive.need("x_indptr", "int", nodes + 1)
    return sparse_rows(indptr, columns, values, shape[1]), (nodes, shape[1])


def _labels(archive: Archive, nodes: int) -> tuple[dict[str, Rows], dict[str, Any]]:
    """Return the dataset of labels, and the fields of `Imported` that belong to it."""
    shape = archive.shape("y")
    if shape is None:
        return {}, {}
    y = archive.need("y", "number", nodes, *[None] * (len(shape) - 1))
    several = len(shape) == 2 and shape[1] > 0
    if y.dtype.kind == "f" and not several:
        raise InputError(f"{y.where} is {y}; expected integers [nodes], or 0 and 1 [nodes, classes]")
    rows, fields = label_rows(y.where, y.rows())
    told = archive.find(CLASSES, "int")
    if told is not None:
        fields["classes"] = int(told.whole())
    return {schema.Y: rows}, fields


def _names(archive: Archive, nodes: int) -> dict[str, Rows]:
    """Return the datasets of the user's ids or names."""
    ids = archive.find(schema.NODE_ID, "int", nodes)
    if ids is not None:
        return {schema.NODE_ID: ids.rows()}
    starts = archive.find(schema.NAME_OFFSETS, "int", nodes + 1)
    if starts is None:
        return {}
    text = archive.need(schema.NAME_TEXT, "int", None)
    return {schema.NAME_OFFSETS: starts.rows(), schema.NAME_TEXT: text.rows()}


def _masks(archive: Archive, nodes: int, split: int | None) -> dict[str, Rows]:
    several = len(archive.shape("train_mask") or ()) == 2
    if split is None:
        if several:
            raise InputError(f"{archive.path}: train_mask holds several splits; choose one, as by --split 0")
        found = {path: archive.find(f"{name}_mask", "bool", nodes) for name, path in _split_paths()}
        return {path: mask.rows() for path, mask in found.items() if mask is not None}
    splits = {
        path: _splits(archive, f"{name}_mask" + ("" if several else "s"), nodes)
        for name, path in _split_paths()
    }
    count = min(number for number, _ in splits.values())
    if not 0 <= split < count:
        raise InputError(f"{archive.path} has splits 0 .. {count - 1}; there is no split {split}")
    return {path: _mask(mask, split, nodes) for path, (_, mask) in splits.items()}


def _split_paths() -> list[tuple[str, str]]:
    return list(zip(SPLITS, schema.MASKS, strict=True))


def _splits(archive: Archive, name: str, nodes: int) -> tuple[int, Array]:
    """Return the number of splits, and their masks: bool [N, S] or [S, N]."""
    by_node = (archive.shape(name) or ())[:1] == (nodes,)
    masks = archive.need(name, "bool", nodes, None) if by_node else archive.need(name, "bool", None, nodes)
    return masks.shape[1] if by_node else masks.shape[0], masks


def _mask(masks: Array, split: int, nodes: int) -> Rows:
    """Return the mask of one split."""
    if masks.shape[0] != nodes:
        with masks.reading(split) as take:
            return of_array(take(1)[0])
    return Rows(
        Layout(schema.BOOL, (nodes,)),
        lambda: (np.ascontiguousarray(piece[:, split]) for piece in masks.rows().pieces()),
    )
