"""Build a graph file from a stream of edges and what belongs to the nodes, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import checks, schema
from ..atomic_write import check_output
from ..edge_stream import Imported, Rows
from ..schema import Layout
from ..writer import Partition, graph_file
from .rows import SortedRows
from .runs import Gatherer, PayloadLayout
from .work import Progress, WorkFolder

LEAST_MEMORY = 256 << 20
PROGRAM = 112 << 20  # bytes that the program itself takes, of ``memory``
PIECE = 1 << 20  # entries of the CSR that are copied at a time
SPARSE_ID = 1000  # times as many nodes as edges are taken for ids that are no row numbers

Ranges = Callable[[NDArray[np.int64]], Sequence[Partition]]


def build_graph(
    imported: Imported,
    output: Path,
    *,
    memory: int,
    symmetric: bool = False,
    simple: bool = False,
    force: bool = False,
    order: str = "",
    identity: str = "",
    ranges: Ranges | None = None,
    key: str | None = None,
    index: np.dtype | None = None,
    progress: Progress | None = None,
) -> schema.Contents:
    """Write a graph file, and return what it holds.

    The edges are gathered in runs that are grouped by buckets of rows, and then sorted bucket by bucket: an external
    distribution sort. Edges of a row are in the order of their sources, equal ones in the order of the stream, as
    `csr_from_edges` has them. What fits into memory touches no other file.

    memory: bytes of the whole process, LEAST_MEMORY at least; numpy arrays of 8 bytes a node come on top where the
    caller holds them. symmetric: add each edge's reverse and drop duplicates, the first one's data stay. simple: drop
    duplicates and self loops. order, identity: as for `graph_file`. ranges: called with indptr [N + 1], which it needs
    in memory; returns the row ranges to store. key: says from what the file is built, and how. A build that was
    killed then goes on where it was when one of the same key and output begins; without it nothing is kept. index: the
    type of stored ids, int32 or int64. [default: int32 where they fit]
    ``progress(phase, done, total)`` is called now and then. Raises InputError for an id out of range, a value that is
    not finite, a stream of no edges and unknown number of nodes, and where `graph_file` does.
    """
    if memory < LEAST_MEMORY:
        raise InputError(
            f"a memory of {memory:,} bytes is too little; expected {LEAST_MEMORY >> 20} MiB or more"
        )
    check_output(output, force=force)
    report = progress or (lambda phase, done, total: None)
    stream, free = imported.edges, memory - PROGRAM
    asked = f"{stream.nodes} {symmetric} {simple} {index} {imported.directed}"
    with WorkFolder(output, None if key is None else f"{key} {asked}") as work:
        gatherer = Gatherer(work, free, symmetric=symmetric, loops=not simple)
        gatherer.gather(stream, report)
        nodes = _nodes(imported, gatherer)
        layout = gatherer.layout or PayloadLayout()
        detect = imported.directed is not True and not symmetric
        given: dict[str, Any] = {"distinct": symmetric or simple, "detect": detect, "index": index}
        most = sum(run.count for run in gatherer.runs)
        with SortedRows(work, layout, nodes, memory=free, most=most, **given) as sorted_rows:
            sorted_rows.sort(gatherer.runs, report)
            gatherer.runs.clear()
            work.keeps = True  # what may be wrong from here on are data of nodes
            directed = _directed(imported, sorted_rows, symmetric)
            held = _write(imported, output, sorted_rows, directed, report, force, order, identity, ranges)
        work.remove()
    return held


def _nodes(imported: Imported, gatherer: Gatherer) -> int:
    """Return the number of nodes. Raises InputError where the ids cannot be row numbers."""
    stream = imported.edges
    if stream.nodes is not None:
        return stream.nodes
    if gatherer.largest < 0:
        raise InputError(f"{stream.where} holds no edges; expected some, or the number of nodes by --nodes")
    if gatherer.largest > SPARSE_ID * (gatherer.listed + SPARSE_ID):
        raise InputError(
            f"{stream.where} has the node id {gatherer.largest} but only {_count(gatherer.listed)}; "
            "number the nodes from 0 without large gaps, or have them numbered by --map-ids"
        )
    return gatherer.largest + 1


def _count(edges: int) -> str:
    return "1 edge" if edges == 1 else f"{edges:,} edges"


def _directed(imported: Imported, rows: SortedRows, symmetric: bool) -> bool:
    """Return whether the graph is directed. Raises InputError where the reader promised that it is not, and it is."""
    if symmetric:
        return False
    if imported.directed is False and rows.imbalance:
        raise InputError(
            f"{imported.edges.where}: the graph is said to be undirected, but some edge has no equal one in the other "
            "direction"
        )
    return imported.directed is True or rows.imbalance != 0


def _write(
    imported: Imported,
    output: Path,
    rows: SortedRows,
    directed: bool,
    report: Progress,
    force: bool,
    order: str,
    identity: str,
    ranges: Ranges | None,
) -> schema.Contents:
    """Write the file: the sorted edges, and the datasets of nodes as they come."""
    nodes, edges = rows.degree.length, rows.indices.length
    of_nodes: Mapping[str, Rows] = imported.rows() if callable(imported.rows) else imported.rows
    names = {name: schema.WEIGHT if not name else f"{schema.EDGE}{name}" for name in rows.data}
    datasets = {
        schema.INDPTR: Layout(schema.INT64, (nodes + 1,)),
        schema.INDICES: Layout(rows.indices.dtype, (edges,)),
    }
    datasets |= {names[name]: Layout(each.dtype, (edges, *each.shape)) for name, each in rows.data.items()}
    datasets |= {path: each.layout for path, each in of_nodes.items()}
    held = schema.Contents(
        name=imported.name,
        directed=directed,
        classes=imported.classes,
        multilabel=imported.multilabel,
        datasets={path: datasets[path] for path in sorted(datasets, key=_place)},
        sparse_shape=imported.sparse_shape,
    )
    where = imported.edges.where
    schema.validate(where, held)
    total = sum(layout.nbytes for layout in held.datasets.values())
    written = 0

    def counted(pieces: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        nonlocal written
        for piece in pieces:
            yield piece
            written += piece.nbytes
            report("writing", written, total)

    partitions = ranges(np.concatenate(list(_indptr(rows)))) if ranges is not None else ()
    arguments: dict[str, Any] = {
        "force": force,
        "order": order,
        "identity": identity,
        "partitions": partitions,
    }
    arguments["proved"] = not directed
    with graph_file(output, held, **arguments) as writer:
        writer.put(schema.INDPTR, counted(_indptr(rows)))
        writer.put(schema.INDICES, counted(rows.indices.pieces(PIECE)))
        for name, column in rows.data.items():
            writer.put(names[name], counted(_finite(where, names[name], column.pieces(PIECE))))
        labels = _Labels(where, of_nodes, held.classes)
        for path, each in of_nodes.items():
            pieces = labels.checked(path) if path in labels.paths else _finite(where, path, each.pieces())
            writer.put(path, counted(pieces))
    return held


def _place(path: str) -> int:
    """Return the place of a dataset in the file."""
    return schema.DATASETS.index(path) if path in schema.DATASETS else len(schema.DATASETS)


def _indptr(rows: SortedRows) -> Iterator[NDArray[np.int64]]:
    """Yield indptr, int64 [N + 1], in pieces."""
    total = 0
    yield np.zeros(1, np.int64)
    for degree in rows.degree.pieces(PIECE):
        yield total + np.cumsum(degree)
        total += int(degree.sum())


def _finite(where: str, path: str, pieces: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield pieces of a dataset; raises InputError for a float that is not finite, with its row."""
    row = 0
    for piece in pieces:
        if piece.dtype.kind == "f":
            checks.finite(where, path, piece.reshape(len(piece), -1) if piece.ndim > 2 else piece, row)
        yield np.ascontiguousarray(piece)
        row += len(piece)


class _Labels:
    """Labels and masks of a graph, checked against each other as they are written. paths: those that it has."""

    def __init__(self, where: str, rows: Mapping[str, Rows], classes: int) -> None:
        self._where, self._rows, self._classes = where, rows, classes
        self.paths = [path for path in (schema.Y, *schema.MASKS) if path in rows]

    def checked(self, path: str) -> Iterator[NDArray[Any]]:
        """Yield the pieces of labels or of a mask; the last mask is checked with the others and the labels."""
        row = 0
        if path != schema.MASKS[-1]:
            for piece in self._rows[path].pieces():
                if path == schema.Y:
                    checks.labels(self._where, piece, row, self._classes)
                yield np.ascontiguousarray(piece)
                row += len(piece)
            return
        together = [_cut(self._rows[each].pieces(), PIECE) for each in self.paths]
        for pieces in zip(*together, strict=True):
            y = pieces[0] if self.paths[0] == schema.Y else None
            masks = tuple(np.ascontiguousarray(piece) for piece in pieces[-3:])
            checks.masks(self._where, masks, y, row)
            yield masks[-1]
            row += len(masks[-1])


def _cut(pieces: Iterator[NDArray[Any]], entries: int) -> Iterator[NDArray[Any]]:
    """Yield the same entries in arrays of ``entries``, the last one shorter."""
    waiting: list[NDArray[Any]] = []
    length = 0
    for piece in pieces:
        at = 0
        while length + len(piece) - at >= entries:
            end = at + entries - length
            yield np.concatenate([*waiting, piece[at:end]])
            waiting, length, at = [], 0, end
        if at < len(piece):
            waiting.append(piece[at:])
            length += len(piece) - at
    if length:
        yield np.concatenate(waiting)
