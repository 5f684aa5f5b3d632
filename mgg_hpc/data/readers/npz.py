"""Graphs in NumPy's archives (.npz): arrays under the project's names, or a matrix of SciPy.

A matrix is what scipy.sparse.save_npz wrote, or ``data``, ``shape`` and ``indices``, ``indptr`` (CSR) or ``row``,
``col`` (COO) by numpy.savez. Other archives have the names below.

``indptr`` [N+1] and ``indices`` [E] are an in-edge CSR; the optional ``dir_indptr``, ``dir_indices`` the directed
original of a symmetrised one; ``weight`` [E]. Features are ``x`` [N, F], or ``x_indptr``, ``x_indices``, ``x_data``,
``x_shape``. ``y`` has labels as `label_rows` takes them. ``train_mask``, ``val_mask``, ``test_mask`` are
bool [N]; ``train_masks`` and so on hold several splits, bool [S, N] or, as PyG has them under either name, [N, S].

Two kinds of archives of benchmarks are read as well. Platonov et al. (roman_empire and others) have ``edges`` [E, 2],
``node_features``, ``node_labels`` and ``train_masks`` [S, N]; Shchur et al. (gnn-benchmark) the CSR ``adj_indptr``,
``adj_indices``, ``adj_data``, in which row i lists the destinations of edges from i, with ``attr_matrix`` or
``attr_data``, ..., and ``labels``.

Other datasets of a graph file have their paths as names: ``edge/NAME`` [E, ...], ``node/id`` [N], ``node/name/offsets``
[N+1] and ``node/name/text``; and so have its attributes ``graph/name`` (UTF-8, uint8), ``graph/classes`` and
``graph/directed``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, shown
from .. import schema
from ..edge_stream import EdgeStream, Imported, Rows
from ..graph import SPLITS, Graph, SparseRows, index_dtype
from ..schema import Layout
from ..verify import undirected_if_symmetric
from . import ENTRIES
from .array_edges import CompressedEdges, PairedEdges, ends_of
from .limits import check_memory
from .node_arrays import check_nodes, feature_rows, label_rows, sparse_rows
from .npy import Archive, Array, whole

NAME, CLASSES, DIRECTED = "graph/name", "graph/classes", "graph/directed"
# Names of arrays in archives of benchmarks, and the project's.
NODES_OF = {"node_features": "x", "node_labels": "y", "labels": "y", "edge_index": "edges"}
BENCHMARK = {"adj_data": "weight", "attr_matrix": "x", **NODES_OF} | {
    f"{theirs}_{part}": f"{ours}{part}"
    for theirs, ours in (("adj", ""), ("attr", "x_"))
    for part in ("indptr", "indices", "shape", "data")
    if (theirs, part) != ("adj", "data")
}
KNOWN = {"indptr", "indices", "shape", "weight", "edges", "y", "dir_indptr", "dir_indices"}
KNOWN |= {"x", "x_indptr", "x_indices", "x_data", "x_shape"} | {
    f"{name}_mask{s}" for name in SPLITS for s in ("", "s")
}
MATRIX = {"format", "shape", "data", "indices", "indptr", "row", "col", "_is_array"}  # of SciPy
LONGEST_NAME = 1 << 16  # bytes of a graph's name


def open_npz(
    path: Path,
    *,
    split: int | None = None,
    directed: bool = False,
    transpose: bool = False,
    symmetric: bool = False,
) -> Imported:
    """Open an archive as a stream of edges and datasets of nodes.

    Args: split: which of several splits becomes the masks. directed: read the directed original. transpose: entries
    (i, j) of a matrix are edges j -> i. symmetric: the build adds the reverse of each edge, so that nothing is to be
    said about archives that list it once.

    An entry (i, j) of SciPy's matrices is the edge i -> j. Where the archive does not say whether the graph is
    directed, the build finds out. Raises InputError for a file that is no such archive, or an array whose type or shape
    does not fit; passes raise it for wrong values.
    """
    archive = Archive(path)
    if matrix := archive.matrix():
        return _open_matrix(archive, *matrix, transpose=transpose)
    if transpose and "adj_indptr" not in archive.names:
        raise InputError(f"{path} is no matrix whose entries --transpose could reverse: it lists edges")
    names = {*archive.names}
    theirs = bool({"edges", "adj_indptr"} & names)
    by_source = ("adj_indptr" in names) != transpose
    listed = bool({"edges", "edge_index"} & names)
    weights = sorted(names & {"weight", "adj_data", *["edge_weight"] * listed})
    if len(weights) > 1:
        raise InputError(f"{path} has the weights {' and '.join(weights)}; expected one of them")
    archive.rename(BENCHMARK | ({"edge_weight": "weight"} if listed else {}))
    notes = _notes(archive, split, one_way=theirs and not symmetric)
    edges = _listed(archive, "edges" in names) if listed else _compressed(archive, directed, by_source)
    nodes = edges.nodes
    if nodes is None:
        return Imported(_name(archive), edges, directed=None, notes=notes)
    x, sparse_shape = _features(archive, nodes)
    y, fields = _labels(archive, nodes)
    stored = archive.find(DIRECTED, "bool")
    known = None if stored is None else bool(stored.whole())
    return Imported(
        _name(archive),
        edges,
        {**x, **_masks(archive, nodes, split), **_names(archive, nodes), **y},
        sparse_shape=sparse_shape,
        directed=True if directed else known,
        notes=notes,
        **fields,
    )


def _compressed(archive: Archive, directed: bool, by_source: bool) -> EdgeStream:
    """Return the edges of a CSR."""
    prefix = "dir_" if directed else ""
    indptr = archive.need(f"{prefix}indptr", "int", None)
    indices = archive.need(f"{prefix}indices", "number", None)
    nodes = len(indptr) - 1
    check_nodes(indptr.where, nodes)
    shape = archive.find("shape", "int", 2)
    if shape is not None and shape.whole().tolist() != [nodes, nodes]:
        raise InputError(f"{shape.where} is {shape.whole().tolist()}; expected {[nodes, nodes]}")
    weight = archive.find("weight", "any number", len(indices))
    data = {} if directed else _edge_data(archive, len(indices))
    return CompressedEdges(str(archive.path), indptr, indices, weight=weight, data=data, by_source=by_source)


def _listed(archive: Archive, by_edge: bool) -> EdgeStream:
    """Return the edges of an array [2, E] or [E, 2]; their nodes are those of features and labels.

    by_edge: an array [2, 2] has a row for each edge.
    """
    listed = archive.need("edges", "number", None, None)
    ends = ends_of(listed.transposed() if by_edge and listed.shape == (2, 2) else listed)
    counts = [archive.shape(name)[0] for name in ("x", "x_indptr", "y") if archive.shape(name)]
    nodes = counts[0] - ("x" not in archive.names and "x_indptr" in archive.names) if counts else None
    edges = sum(map(len, ends)) // len(ends)
    counted = f"the features or labels have {nodes} rows" if counts else ""
    weight = archive.find("weight", "any number", edges)
    return PairedEdges(
        str(archive.path), ends, nodes, weight=weight, data=_edge_data(archive, edges), counted=counted
    )


def _notes(archive: Archive, split: int | None, *, one_way: bool) -> list[str]:
    """Return lines about arrays that are not read, and, if one_way, about edges that are listed once."""
    notes = _left_out(archive, KNOWN, ("edge/", "node/", "graph/"))
    if split is None and "train_masks" in archive.names:
        notes.append(
            f"{archive.path}: left out train_masks, which hold several splits; --split 0 takes the first"
        )
    if one_way:
        notes.append(f"{archive.path}: edges are as listed; --symmetric adds reverses, as PyG's loader does")
    return notes


def _left_out(archive: Archive, known: set[str], prefixes: tuple[str, ...] = ()) -> list[str]:
    """Return a line about arrays of other names, if there are any."""
    left = [name for name in archive.names if name not in known and not name.startswith(prefixes)]
    count = f"{len(left)} array{'s'[: len(left) > 1]}"
    return [f"{archive.path}: left out {count}: {', '.join(map(shown, left[:9]))}"] * bool(left)


def read_npz(path: Path, *, split: int | None = None, directed: bool = False) -> Graph:
    """Read an archive of the project's own names into memory. Arguments and errors as for `open_npz`.

    Edges keep the archive's order. Names of nodes are left out.
    """
    archive = Archive(path)
    if archive.matrix():
        raise InputError(f"{path} is a matrix of SciPy; make a graph file of it first, by mgg import")
    opened = open_npz(path, split=split, directed=directed)
    check_memory(f"{path}, unpacked,", archive.nbytes)
    assert opened.edges.nodes is not None and not callable(opened.rows)
    blocks, nodes, none = list(opened.edges.blocks()), opened.edges.nodes, np.zeros(0, np.int64)
    indptr = np.zeros(nodes + 1, np.int64)
    rows = np.concatenate([none, *(block.destinations for block in blocks)])
    np.cumsum(np.bincount(rows, minlength=nodes), out=indptr[1:])
    held = {name: whole(each) for name, each in opened.rows.items()}
    x: np.ndarray | SparseRows | None = held.get(schema.X)
    if opened.sparse_shape is not None:
        parts = held[schema.X_INDPTR], held[schema.X_INDICES], held[schema.X_DATA]
        x = SparseRows(*parts, opened.sparse_shape)
    weights = [block.weight for block in blocks if block.weight is not None]
    masks: dict[str, Any] = {name: held.get(path) for name, path in zip(SPLITS, schema.MASKS, strict=True)}
    graph = Graph(
        opened.name,
        indptr,
        np.concatenate([none, *(block.sources for block in blocks)]).astype(index_dtype(nodes)),
        weight=np.concatenate(weights) if weights else None,
        x=x,
        y=held.get(schema.Y),
        classes=opened.classes,
        edge={
            name: np.concatenate([each.data[name] for each in blocks])
            for each in blocks[:1]
            for name in each.data
        },
        **masks,
    )
    return graph if opened.directed else undirected_if_symmetric(graph, str(path))


def _edge_data(archive: Archive, edges: int) -> dict[str, Array]:
    """Return the data of edges by name."""
    paths = {name.removeprefix(schema.EDGE): name for name in archive.names if name.startswith(schema.EDGE)}
    schema.check_edge_names(str(archive.path), paths)
    return {
        name: archive.need(paths[name], "any number", edges, *archive.shape(paths[name])[1:])
        for name in sorted(paths)
    }


def _name(archive: Archive) -> str:
    stored = archive.find(NAME, "int", None)
    if stored is None or stored.header.nbytes >= LONGEST_NAME:
        return archive.path.stem
    return stored.whole().astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def _features(archive: Archive, nodes: int) -> tuple[dict[str, Rows], tuple[int, int] | None]:
    dense = archive.find("x", "number", nodes, None)
    if dense is not None:
        dtype = schema.FLOAT16 if dense.dtype == np.float16 else schema.FLOAT32
        return {schema.X: feature_rows(dense.where, dense.rows(), dtype)}, None
    stored = archive.find("x_shape", "int", 2)
    if stored is None:
        return {}, None
    shape = stored.whole().tolist()
    if shape[0] != nodes or not 1 <= shape[1] < 2**31:
        raise InputError(f"{archive.path}: x_shape is {shape}; expected [{nodes}, 1 or more]")
    columns = archive.need("x_indices", "int", None)
    values = archive.need("x_data", "number", len(columns))
    indptr = archive.need("x_indptr", "int", nodes + 1)
    return sparse_rows(indptr, columns, values, shape[1]), (nodes, shape[1])


def _labels(archive: Archive, nodes: int) -> tuple[dict[str, Rows], dict[str, Any]]:
    """Return the dataset of labels, and the fields of `Imported` that belong to it."""
    if "y" not in archive.names:
        return {}, {}
    y = archive.need("y", "any number", nodes, *[None] * (len(archive.shape("y")) - 1))
    rows, fields = label_rows(y.where, y.rows())
    classes = archive.find(CLASSES, "int")
    if classes is not None:
        fields["classes"] = int(classes.whole())
    return {schema.Y: rows}, fields


def _names(archive: Archive, nodes: int) -> dict[str, Rows]:
    """Return the datasets of the user's ids or names."""
    ids = archive.find(schema.NODE_ID, "int", nodes)
    if ids is not None:
        return {schema.NODE_ID: ids.rows()}
    offsets = archive.find(schema.NAME_OFFSETS, "int", nodes + 1)
    if offsets is None:
        return {}
    return {
        schema.NAME_OFFSETS: offsets.rows(),
        schema.NAME_TEXT: archive.need(schema.NAME_TEXT, "int", None).rows(),
    }


def _masks(archive: Archive, nodes: int, split: int | None) -> dict[str, Rows]:
    several = len(archive.shape("train_mask")) == 2
    paths = dict(zip(SPLITS, schema.MASKS, strict=True))
    if split is None:
        if several:
            raise InputError(f"{archive.path}: train_mask holds several splits; choose one, as by --split 0")
        found = {path: archive.find(f"{name}_mask", "bool", nodes) for name, path in paths.items()}
        return {path: mask.rows() for path, mask in found.items() if mask is not None}
    return {
        path: _mask(archive, f"{name}_mask" + ("" if several else "s"), nodes, split)
        for name, path in paths.items()
    }


def _mask(archive: Archive, name: str, nodes: int, split: int) -> Rows:
    """Return the mask of one split from bool [N, S] or [S, N]."""
    # As many splits as nodes are in the order of those who use the name: Platonov et al., or PyG.
    by_node = archive.shape(name)[:1] == (nodes,) and not (
        name.endswith("masks") and archive.shape(name) == (nodes, nodes)
    )
    masks = archive.need(name, "bool", nodes, None) if by_node else archive.need(name, "bool", None, nodes)
    splits = masks.shape[1] if by_node else masks.shape[0]
    if split >= splits:
        raise InputError(f"{archive.path} has splits 0 .. {splits - 1}; there is no split {split}")
    if by_node == masks.column_major:  # the values of a split are stored next to each other
        return masks.stored(nodes, start=split * nodes).rows()
    rows = masks.stored(nodes, splits).rows()
    return Rows(
        Layout(schema.BOOL, (nodes,)),
        lambda: (np.ascontiguousarray(piece[:, split]) for piece in rows.pieces()),
    )


def _open_matrix(archive: Archive, form: str, nodes: int, columns: int, *, transpose: bool) -> Imported:
    """Open a square matrix of SciPy as a stream of edges, whose weights are its values unless these are bool.

    Entries that are stored twice are two edges.
    """
    where = str(archive.path)
    if nodes != columns:
        raise InputError(f"{where}: the matrix is {[nodes, columns]}; expected as many columns as rows")
    check_nodes(where, nodes)
    name = "col" if form == "coo" else "indices"
    indices = archive.need(name, "int", None)
    values = archive.need("data", "any number", len(indices))
    weight = None if values.dtype.kind == "b" else values
    if weight is None and not all(piece.all() for piece in values.rows().pieces()):
        raise InputError(
            f"{values.where} has entries that are stored as False; remove them by eliminate_zeros()"
        )
    edges: EdgeStream
    if form == "coo":
        row = archive.need("row", "int", len(indices))
        ends = (indices, row) if transpose else (row, indices)
        edges = PairedEdges(where, ends, nodes, weight=weight)
    else:
        indptr = archive.need("indptr", "int", nodes + 1)
        edges = CompressedEdges(where, indptr, indices, weight=weight, by_source=(form == "csc") == transpose)
    return Imported(
        archive.path.stem,
        edges,
        directed=None,
        direction="" if transpose else ENTRIES,
        notes=_left_out(archive, MATRIX),
    )
