"""Check that a graph, in memory or in a file, is valid: all values, in slices of bounded size, then digests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from ..errors import InputError
from ..sizes import counted
from . import checks, schema
from .graph import Graph
from .store import open_graph
from .symmetry import EdgeSlice, unpaired_edge

Progress = Callable[[int, int], None]  # (done, total), in bytes or any other unit
Count = Callable[[int], None]  # called with the number of bytes that were checked since the last call

SLICE_BYTES = 16 << 20  # bytes of one dataset that are read at a time
SLICE_ROWS = 1 << 19  # rows of indptr that are read at a time


class Source(Protocol):
    """A graph whose datasets can be read in slices: `ArraySource` or a `GraphFile`."""

    where: str
    contents: schema.Contents

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1 of one dataset."""
        ...


class ArraySource:
    """A graph in memory as a `Source`. Raises InputError unless its types and shapes follow the schema."""

    def __init__(self, graph: Graph, where: str | None = None) -> None:
        self.where = where or f"graph '{graph.name}'"
        self.contents = schema.contents(graph)
        self._arrays = schema.arrays(graph)
        schema.validate(self.where, self.contents)

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        return np.ascontiguousarray(self._arrays[path][lo:hi])


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> list[str]:
    """Check a graph file, and return a sentence for each property that was found to hold.

    progress: called with (done, total) in bytes. Raises InputError for the first wrong value, which it names with its
    row; if there is none, for the first block whose digest differs.
    """
    with open_graph(path) as opened:
        datasets = opened.contents.datasets
        size = sum(layout.nbytes for layout in datasets.values())  # each byte is read twice

        def report(done: int, _: int = 0) -> None:
            if progress:
                progress(done, 2 * size)

        facts = [f"types and shapes follow version {schema.VERSION} of the format", *check(opened, report)]
        done = size
        for name, layout in datasets.items():
            opened.check_digests(name)
            done += layout.nbytes
            report(done)
        facts.append(f"the digests of all {len(datasets)} datasets agree")
    return facts


def check(source: Source, progress: Progress | None = None) -> list[str]:
    """Check all values of a graph, and return a sentence for each property that was found to hold.

    progress: called with (done, total) in bytes. Raises InputError for the first wrong value.
    """
    held = source.contents
    total, done = sum(layout.nbytes for layout in held.datasets.values()), 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress(min(done, total), total)

    facts = []
    for part in (
        _check_edges,
        _check_edge_data,
        _check_labels,
        _check_features,
        _check_names,
        _check_permutation,
    ):
        facts += part(source, count)
    for parts in held.partitions:
        path = schema.bounds_path(parts)
        checks.bounds(source.where, path, source.read(path, 0, parts + 1), held.nodes)
        facts.append(f"the bounds of {counted(parts, 'part')} cover all rows in order")
    return facts


def edge_slices(source: Source) -> Iterator[EdgeSlice]:
    """Yield all stored edges in order, in slices of bounded size. The offsets must have been checked."""
    nodes = source.contents.nodes
    weighted = schema.WEIGHT in source.contents.datasets
    step = SLICE_BYTES // 8
    for row in range(0, nodes, SLICE_ROWS):
        end_row = min(row + SLICE_ROWS, nodes)
        indptr = source.read(schema.INDPTR, row, end_row + 1)
        rows = np.arange(row, end_row)
        for lo in range(int(indptr[0]), int(indptr[-1]), step):
            hi = min(lo + step, int(indptr[-1]))
            destinations = np.repeat(rows, np.diff(np.clip(indptr, lo, hi)))
            weight = source.read(schema.WEIGHT, lo, hi) if weighted else None
            yield EdgeSlice(destinations, source.read(schema.INDICES, lo, hi), weight)


def undirected_if_symmetric(graph: Graph, where: str) -> Graph:
    """Return the same graph, marked as undirected if the reverse of each edge is stored.

    Raises InputError if a value of the graph is wrong. where: name of the graph in the message.
    """
    source = ArraySource(graph, where)
    check(source)
    return replace(graph, directed=unpaired_edge(lambda: edge_slices(source)) is not None)


def _slices(source: Source, path: str, count: Count) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first entry, values) of one dataset in slices, and count each when the next one is taken."""
    layout = source.contents.datasets[path]
    step = max(1, SLICE_BYTES // max(1, layout.row_bytes))
    for lo in range(0, layout.shape[0], step):
        values = source.read(path, lo, min(lo + step, layout.shape[0]))
        yield lo, values
        count(values.nbytes)


def _check_entries(source: Source, csr: schema.Csr, path: str, count: Count) -> None:
    """Check that the values of a CSR, the dataset ``path``, are finite.

    Raises InputError that names the row.
    """
    for entry, values in _slices(source, path, count):
        checks.entries_finite(source.where, path, values, position=entry, row_of=_row_of(source, csr))


def _check_csr(source: Source, csr: schema.Csr, limit: int, count: Count) -> str:
    """Check the offsets of a CSR, its ids (0 .. limit - 1), and that its values, if stored, are finite.

    Returns the sentence about the offsets for the report. Raises InputError for the first wrong value.
    """
    nodes, held, where = source.contents.nodes, source.contents.datasets, source.where
    total = held[csr.indices].shape[0]
    for row in range(0, nodes, SLICE_ROWS):
        offsets = source.read(csr.indptr, row, min(row + SLICE_ROWS, nodes) + 1)
        checks.offsets(where, csr.indptr, offsets, row=row, rows=nodes, total=total)
        count(offsets.nbytes)
    for entry, ids in _slices(source, csr.indices, count):
        checks.ids(where, csr, ids, position=entry, limit=limit, row_of=_row_of(source, csr))
    if csr.values in held:
        _check_entries(source, csr, csr.values, count)
    return f"{csr.indptr} starts with 0, never decreases and ends with {total:,}"


def _row_of(source: Source, csr: schema.Csr) -> Callable[[int], int]:
    """Return a function that finds the row of an entry of a CSR, for error messages: it reads all offsets."""

    def row_of(entry: int) -> int:
        offsets = source.read(csr.indptr, 0, source.contents.nodes + 1)
        return int(np.searchsorted(offsets, entry, side="right")) - 1

    return row_of


def _check_edges(source: Source, count: Count) -> list[str]:
    held, where = source.contents, source.where
    facts = [_check_csr(source, schema.EDGES, held.nodes, count)]
    facts.append(f"{schema.INDICES} are all in 0 .. {held.nodes - 1:,}")
    weighted = schema.WEIGHT in held.datasets
    if weighted:
        facts.append(f"{schema.WEIGHT} is finite")
    if not held.directed:
        edge = unpaired_edge(lambda: edge_slices(source))
        if edge is not None:
            raise InputError(
                f"{where}: /{schema.INDICES}: the graph is said to be undirected, but the reverse of the edge "
                f"from {edge[0]} (in row {edge[1]}) is missing{', or has another weight' if weighted else ''}"
            )
        facts.append("each edge's reverse is there, as an undirected graph promises")
    return facts


def _check_edge_data(source: Source, count: Count) -> list[str]:
    facts = []
    for name in source.contents.edge_data:
        path, layout = schema.EDGE + name, source.contents.datasets[schema.EDGE + name]
        if layout.dtype.kind == "f":
            _check_entries(source, schema.EDGES, path, count)
            facts.append(f"{path} is finite")
        else:  # any integer is valid
            count(layout.nbytes)
    return facts


def _check_labels(source: Source, count: Count) -> list[str]:
    held, where = source.contents, source.where
    labelled, masked = schema.Y in held.datasets, schema.TRAIN in held.datasets
    step = max(1, SLICE_BYTES // (held.datasets[schema.Y].row_bytes if labelled else 1))
    for row in range(0, held.nodes if labelled or masked else 0, step):
        end = min(row + step, held.nodes)
        y = source.read(schema.Y, row, end) if labelled else None
        if y is not None:
            checks.labels(where, y, row, held.classes)
            count(y.nbytes)
        if masked:
            checks.masks(where, tuple(source.read(path, row, end) for path in schema.MASKS), y, row)
            count(3 * (end - row))
    facts = []
    if labelled:
        facts.append(
            f"labels are those of {counted(held.classes, 'class', 'classes')}"
            + (", 0 or 1" if held.multilabel else "")
        )
    if masked:
        facts.append("no row is in two masks" + (", and each masked row has a label" if labelled else ""))
    return facts


def _check_features(source: Source, count: Count) -> list[str]:
    held = source.contents
    if held.sparse_shape is not None:
        fact = _check_csr(source, schema.COLUMNS, held.features, count)
        return [fact, f"the columns of {schema.X} are in 0 .. {held.features - 1:,}, its values finite"]
    if not held.features:
        return []
    for row, values in _slices(source, schema.X, count):
        checks.finite(source.where, schema.X, values, row)
    return [f"{schema.X} is finite"]


def _check_names(source: Source, count: Count) -> list[str]:
    held, where = source.contents, source.where
    if schema.NAME_TEXT not in held.datasets:
        return []
    total = held.datasets[schema.NAME_TEXT].shape[0]
    for row in range(0, held.nodes, SLICE_ROWS):
        offsets = source.read(schema.NAME_OFFSETS, row, min(row + SLICE_ROWS, held.nodes) + 1)
        checks.offsets(where, schema.NAME_OFFSETS, offsets, row=row, rows=held.nodes, total=total)
        text = source.read(schema.NAME_TEXT, int(offsets[0]), int(offsets[-1]))
        checks.names(where, offsets, text, row)
        count(offsets.nbytes + text.nbytes)
    return [f"{schema.NAME_TEXT} is UTF-8, name by name"]


def _check_permutation(source: Source, count: Count) -> list[str]:
    """Check that each original id occurs exactly once. Needs one byte of memory per node."""
    if schema.PERMUTATION not in source.contents.datasets:
        return []
    nodes = source.contents.nodes
    seen = np.zeros(nodes, dtype=bool)
    for row, values in _slices(source, schema.PERMUTATION, count):
        checks.original_ids(source.where, values, row, nodes)
        order = np.argsort(values, kind="stable")
        again = np.zeros(len(values), dtype=bool)
        again[order[1:]] = values[order[1:]] == values[order[:-1]]
        at = checks.first(seen[values] | again)
        if at is not None:
            raise InputError(
                f"{source.where}: /{schema.PERMUTATION} has {values[at]} again in row {row + at}; "
                "each original id comes once"
            )
        seen[values] = True
    return [f"{schema.PERMUTATION} has each original id once"]
