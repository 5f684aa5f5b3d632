"""Build a graph file from a stream of edges and datasets of nodes, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import sizes
from ...errors import SHOWN, InputError, shown
from .. import checks, schema
from ..atomic_write import check_output
from ..edge_stream import Imported, Rows
from ..readers.array_edges import rounding
from ..readers.node_arrays import RowReader
from ..readers.npy import whole
from ..schema import Layout
from ..writer import Partition, graph_file
from .rows import Conflicts, SortedRows
from .runs import NO_DATA, WEIGHT, Gatherer
from .work import Progress, WorkFolder

LEAST_MEMORY = 256 << 20
PROGRAM = 112 << 20  # bytes of ``memory`` that the program itself takes
COMBINE = ("sum", "mean", "max", "min", "first")  # weights of duplicates that are merged
PIECE = 1 << 20  # entries of the CSR that are copied at a time
SPARSE_ID = 1000  # times as many nodes as edges: then ids are no row numbers

Ranges = Callable[[NDArray[np.int64]], Sequence[Partition]]


def build_graph(
    imported: Imported,
    output: Path,
    *,
    memory: int,
    symmetric: bool = False,
    simple: bool = False,
    combine: str = "",
    force: bool = False,
    order: str = "",
    identity: str = "",
    ranges: Ranges | None = None,
    key: str | None = None,
    index: np.dtype | None = None,
    progress: Progress | None = None,
) -> schema.Contents:
    """Write a graph file, and return its contents.

    The edges are gathered in runs that are grouped by buckets of rows, and then sorted bucket by bucket: an external
    distribution sort. Edges of a row are in the order of their sources, equal ones in the order of the stream, as
    `csr_from_edges` has them. Where all edges fit into memory, no other file is touched.

    Args: memory: bytes of the whole process, LEAST_MEMORY at least; NumPy arrays of 8 bytes a node come on top where
    the caller holds them. symmetric: add each edge's reverse and merge duplicates. simple: merge duplicates, and drop
    self loops. combine: weight of merged duplicates, one of COMBINE; "first" keeps the first one's data as well. order,
    identity: as for `graph_file`. ranges: called with indptr [N + 1], which it needs in memory; returns the row ranges
    to store. key: text that depends on the edges and the options; a build that was killed goes on where it was when one
    of the same key and output begins, and without a key nothing is kept. index: type of stored ids, int32 or int64.
    [default: int32 where they fit] progress: called now and then with (phase, done, total).

    Raises InputError for an id out of range, a value that is not finite, a stream of no edges and unknown number of
    nodes, duplicates that differ in their weights without ``combine`` or in their data unless it is "first", a
    ``combine`` for edges without weights, and where `graph_file` does.
    """
    if memory < LEAST_MEMORY:
        raise InputError(
            f"a memory of {memory:,} bytes is too little; expected {LEAST_MEMORY >> 20} MiB or more"
        )
    check_output(output, force=force)
    report = progress or (lambda phase, done, total: None)
    stream, free = imported.edges, memory - PROGRAM
    rules = f"{stream.nodes} {symmetric} {simple} {combine} {index} {imported.directed}"
    with WorkFolder(output, None if key is None else f"{key} {rules}") as work:
        check = partial(_check_combine, stream.where, combine)
        adds = symmetric and combine == "sum" and imported.directed is not True
        gatherer = Gatherer(work, free, symmetric=symmetric, loops=not simple, detect=adds, check=check)
        gatherer.gather(stream, report)
        paired = adds and gatherer.imbalance == 0
        if adds and not paired and imported.directed is False:
            raise InputError(_unpaired(stream.where))
        with SortedRows(
            work,
            NO_DATA if gatherer.dtype is None else gatherer.dtype,
            _nodes(imported, gatherer),
            memory=free,
            copies=(combine or "same") if symmetric or simple else "all",
            directions=1 if not symmetric else 4 if paired else 2,
            detect=imported.directed is not True and not symmetric,
            most=sum(run.count for run in gatherer.runs),
            index=index,
        ) as rows:
            rows.sort(gatherer.runs, report)
            gatherer.runs.clear()
            if rows.conflicts is not None:
                raise InputError(_conflicting(imported, rows.conflicts, rows.dtype, combine))
            work.keeps = True  # from here on only data of nodes may be wrong
            if imported.from_one and gatherer.smallest == 1 and _are_joined(rows):
                imported.notes.append(imported.from_one)
            held, of_nodes = _contents(imported, rows, _directed(imported, rows, symmetric))
            partitions = ranges(np.concatenate(list(_indptr(rows)))) if ranges is not None else ()
            with graph_file(
                output,
                held,
                force=force,
                order=order,
                identity=identity,
                partitions=partitions,
                proved=not held.directed,
            ) as writer:
                total, written = sum(layout.nbytes for layout in held.datasets.values()), 0

                def counted(pieces: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
                    nonlocal written
                    for piece in pieces:
                        yield piece
                        written += piece.nbytes
                        report("writing", written, total)

                for path, pieces in _datasets(stream.where, rows, of_nodes, held.classes):
                    writer.put(path, counted(pieces))
        work.remove()
    if paired and imported.directed is None:
        imported.notes.append(
            f"{stream.where} lists each edge in both directions, with the same weight: a sum counts both as one"
        )
    gatherer.rounded[WEIGHT] += rows.rounded
    for name, count in gatherer.rounded.items():
        if count:
            what = "the weights" if name == WEIGHT else f"the edge data {name}"
            imported.notes.append(f"{stream.where}: {rounding(what, count)}")
    return held


def _check_combine(where: str, combine: str, dtype: np.dtype[Any]) -> None:
    """Raise InputError for a rule for duplicates of edges that have no weights."""
    if combine and WEIGHT not in (dtype.names or ()) and not (combine == "first" and dtype.names):
        raise InputError(f"{where} has no weights, which --combine {combine} is for; leave it out")


def _conflicting(imported: Imported, found: Conflicts, dtype: np.dtype[Any], combine: str) -> str:
    """Return the message for duplicates that cannot be merged."""
    first, other = (np.frombuffer(each, dtype)[0] for each in (found.first, found.other))
    weighted = WEIGHT in (dtype.names or ())
    if weighted and not combine and first[WEIGHT] != other[WEIGHT]:
        name, what, fix = (
            WEIGHT,
            "weights",
            f"{', '.join(COMBINE[:-1])} or {COMBINE[-1]} says what they become",
        )
    else:
        fields = [each for each in dtype.names or () if each != WEIGHT]
        name = next(each for each in fields if first[each].tobytes() != other[each].tobytes())
        what, fix = f"data {name}", "first keeps those of the first, with its weight"
    count = f"{'' if found.all else 'at least '}{sizes.counted(found.edges, 'edge')}"
    return (
        f"{imported.edges.where}: duplicates of {count} have different {what}, such as "
        f"{str(first[name])[:SHOWN]} and {str(other[name])[:SHOWN]} of {_node(imported, found.source)} -> "
        f"{_node(imported, found.destination)}; --combine {fix}"
    )


def _node(imported: Imported, row: int) -> str:
    """Return the number or the name that a row's node has in the source."""
    of_nodes = imported.rows() if callable(imported.rows) else imported.rows
    if schema.NODE_ID in of_nodes:
        return str(whole(of_nodes[schema.NODE_ID])[row])
    if schema.NAME_OFFSETS in of_nodes:
        low, high = whole(of_nodes[schema.NAME_OFFSETS])[row : row + 2]
        return shown(whole(of_nodes[schema.NAME_TEXT])[low:high].tobytes().decode())
    return str(row + imported.first)


def _nodes(imported: Imported, gatherer: Gatherer) -> int:
    """Return the number of nodes. Raises InputError where the ids cannot be row numbers."""
    stream = imported.edges
    if stream.nodes is not None:
        return stream.nodes
    if gatherer.largest < 0:
        raise InputError(f"{stream.where} holds no edges; expected some, or the number of nodes by --nodes")
    if gatherer.largest > SPARSE_ID * (gatherer.listed + SPARSE_ID):
        raise InputError(
            f"{stream.where} has the node id {gatherer.largest} but only {sizes.counted(gatherer.listed, 'edge')}; "
            "number the nodes from 0 without large gaps, or have them numbered by --map-ids"
        )
    return gatherer.largest + 1


def _are_joined(rows: SortedRows) -> bool:
    """Return whether most nodes have an edge."""
    without = sum(int(np.count_nonzero(degree == 0)) for degree in rows.degree.pieces(PIECE))
    return 2 * without <= rows.degree.length


def _directed(imported: Imported, rows: SortedRows, symmetric: bool) -> bool:
    """Return whether the graph is directed. Raises InputError where the reader promised that it is not, and it is."""
    if symmetric:
        return False
    if imported.directed is False and rows.imbalance:
        raise InputError(_unpaired(imported.edges.where))
    return imported.directed is True or rows.imbalance != 0


def _unpaired(where: str) -> str:
    return (
        f"{where}: the graph is said to be undirected, but some edge has no equal one in the other direction"
    )


def _contents(
    imported: Imported, rows: SortedRows, directed: bool
) -> tuple[schema.Contents, Mapping[str, Rows]]:
    """Return the contents of the file, validated, and the datasets of nodes."""
    nodes, edges = rows.degree.length, rows.indices.length
    of_nodes = imported.rows() if callable(imported.rows) else imported.rows
    datasets = {
        schema.INDPTR: Layout(schema.INT64, (nodes + 1,)),
        schema.INDICES: Layout(rows.indices.dtype, (edges,)),
        **{_path(name): Layout(each.dtype, (edges, *each.shape)) for name, each in rows.data.items()},
        **{path: each.layout for path, each in of_nodes.items()},
    }
    held = schema.Contents(
        name=imported.name,
        directed=directed,
        classes=imported.classes,
        multilabel=imported.multilabel,
        datasets={path: datasets[path] for path in sorted(datasets, key=_place)},
        sparse_shape=imported.sparse_shape,
        types=imported.types,
    )
    schema.validate(imported.edges.where, held)
    return held, of_nodes


def _path(name: str) -> str:
    """Return the path of data of edges in the file."""
    return schema.WEIGHT if name == WEIGHT else f"{schema.EDGE}{name}"


def _datasets(
    where: str, rows: SortedRows, of_nodes: Mapping[str, Rows], classes: int
) -> Iterator[tuple[str, Iterator[NDArray[Any]]]]:
    """Yield path and pieces of each dataset, of which passes raise InputError for wrong values."""
    yield schema.INDPTR, _indptr(rows)
    yield schema.INDICES, rows.indices.pieces(PIECE)
    for name, column in rows.data.items():
        yield _path(name), _checked(where, _path(name), column.pieces(PIECE), classes)
    for path, each in of_nodes.items():
        if path == schema.MASKS[-1]:
            yield path, _last_mask(where, of_nodes)
        else:
            yield path, _checked(where, path, each.pieces(), classes)


def _place(path: str) -> int:
    """Return the position of a dataset in the file."""
    return schema.DATASETS.index(path) if path in schema.DATASETS else len(schema.DATASETS)


def _indptr(rows: SortedRows) -> Iterator[NDArray[np.int64]]:
    """Yield indptr, int64 [N + 1], in pieces."""
    total = 0
    yield np.zeros(1, np.int64)
    for degree in rows.degree.pieces(PIECE):
        yield total + np.cumsum(degree)
        total += int(degree.sum())


def _checked(where: str, path: str, pieces: Iterator[NDArray[Any]], classes: int) -> Iterator[NDArray[Any]]:
    """Yield pieces of a dataset; raises InputError for a wrong label, or a float that is not finite, with its row."""
    row = 0
    for piece in pieces:
        if path == schema.Y:
            checks.labels(where, piece, row, classes)
        elif piece.dtype.kind == "f":
            checks.finite(where, path, piece.reshape(len(piece), -1) if piece.ndim > 2 else piece, row)
        yield np.ascontiguousarray(piece)
        row += len(piece)


def _last_mask(where: str, of_nodes: Mapping[str, Rows]) -> Iterator[NDArray[Any]]:
    """Yield the pieces of the last mask, checked with the others and the labels."""
    readers = {path: RowReader(of_nodes[path]) for path in (schema.Y, *schema.MASKS) if path in of_nodes}
    for row in range(0, of_nodes[schema.MASKS[-1]].layout.shape[0], PIECE):
        pieces = {path: each.take(PIECE) for path, each in readers.items()}
        masks = tuple(np.ascontiguousarray(pieces[path]) for path in schema.MASKS)
        checks.masks(where, masks, pieces.get(schema.Y), row)
        yield masks[-1]
