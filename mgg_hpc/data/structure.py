"""Check that a graph is sound, in memory or in a file, in slices of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from ..errors import InputError
from . import checks, schema
from .graph import Graph
from .symmetry import EdgeSlice, unpaired_edge

Progress = Callable[[int, int], None]  # (done, total), in bytes or any other unit

SLICE_BYTES = 16 << 20  # bytes of one dataset that are read at a time
SLICE_ROWS = 1 << 19  # rows of indptr that are read at a time


class Source(Protocol):
    """A graph whose datasets can be read in slices: ``ArraySource`` or a ``GraphFile``."""

    where: str
    contents: schema.Contents

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1 of one dataset."""
        ...


class ArraySource:
    """A graph in memory, read in slices. Raises InputError unless its types and shapes follow the schema."""

    def __init__(self, graph: Graph, where: str | None = None) -> None:
        self.where = where or f"graph '{graph.name}'"
        self.contents = schema.contents(graph)
        self._arrays = schema.arrays(graph)
        schema.validate(self.where, self.contents)

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        return np.ascontiguousarray(self._arrays[path][lo:hi])


class _Counter:
    """Adds up the bytes that have been checked, and calls ``progress``."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def add(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(min(self.done, self.total), self.total)


def check(source: Source, progress: Progress | None = None) -> list[str]:
    """Check a graph's structure and values, and return one line for each fact that holds.

    ``progress(done, total)`` counts bytes. Raises InputError naming the first offender.
    """
    held = source.contents
    counter = _Counter(sum(layout.nbytes for layout in held.datasets.values()), progress)
    facts = _check_edges(source, counter)
    facts += _check_edge_data(source, counter)
    facts += _check_labels(source, counter)
    facts += _check_features(source, counter)
    facts += _check_names(source, counter)
    if schema.PERMUTATION in held.datasets:
        facts.append(_check_permutation(source, counter))
    for parts in held.partitions:
        path = schema.bounds_path(parts)
        checks.bounds(source.where, path, source.read(path, 0, parts + 1), held.nodes)
        facts.append(f"the bounds of {parts} parts cover all rows in order")
    return facts


def edge_slices(source: Source) -> Iterator[EdgeSlice]:
    """Yield all stored edges in order, in runs of bounded size. Needs sound offsets."""
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
    """Return the same graph, marked as undirected if each edge's reverse is there.

    Raises InputError, naming ``where``, if the graph is not sound.
    """
    source = ArraySource(graph, where)
    check(source)
    return replace(graph, directed=unpaired_edge(lambda: edge_slices(source)) is not None)


def _slices(source: Source, path: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first entry, values) of one dataset in slices."""
    layout = source.contents.datasets[path]
    step = max(1, SLICE_BYTES // max(1, layout.row_bytes))
    for lo in range(0, layout.shape[0], step):
        yield lo, source.read(path, lo, min(lo + step, layout.shape[0]))


def _check_csr(source: Source, csr: schema.Csr, limit: int, counter: _Counter) -> str:
    """Check a CSR's offsets, ids (below ``limit``) and, where stored, values; return what holds for its offsets."""
    nodes, held, where = source.contents.nodes, source.contents.datasets, source.where
    total = held[csr.indices].shape[0]
    for row in range(0, nodes, SLICE_ROWS):
        offsets = source.read(csr.indptr, row, min(row + SLICE_ROWS, nodes) + 1)
        checks.offsets(where, csr.indptr, offsets, row=row, rows=nodes, total=total)
        counter.add(offsets.nbytes)

    row_of = _row_of(source, csr)
    for entry, ids in _slices(source, csr.indices):
        checks.ids(where, csr, ids, position=entry, limit=limit, row_of=row_of)
        counter.add(ids.nbytes)
    for entry, values in _slices(source, csr.values) if csr.values in held else ():
        checks.entries_finite(where, csr.values, values, position=entry, row_of=row_of)
        counter.add(values.nbytes)
    return f"{csr.indptr} starts with 0, never decreases and ends with {total:,}"


def _row_of(source: Source, csr: schema.Csr) -> Callable[[int], int]:
    """Return what finds the row of an entry of a CSR. It reads all offsets, and is for errors alone."""

    def row_of(entry: int) -> int:
        offsets = source.read(csr.indptr, 0, source.contents.nodes + 1)
        return int(np.searchsorted(offsets, entry, side="right")) - 1

    return row_of


def _check_edges(source: Source, counter: _Counter) -> list[str]:
    held, where = source.contents, source.where
    facts = [_check_csr(source, schema.EDGES, held.nodes, counter)]
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


def _check_edge_data(source: Source, counter: _Counter) -> list[str]:
    facts = []
    for name in source.contents.edge_data:
        path, layout = schema.EDGE + name, source.contents.datasets[schema.EDGE + name]
        if layout.dtype.kind != "f":  # any integer will do
            counter.add(layout.nbytes)
            continue
        for entry, values in _slices(source, path):
            checks.entries_finite(
                source.where, path, values, position=entry, row_of=_row_of(source, schema.EDGES)
            )
            counter.add(values.nbytes)
        facts.append(f"{path} is finite")
    return facts


def _check_labels(source: Source, counter: _Counter) -> list[str]:
    held, where = source.contents, source.where
    labelled, masked = schema.Y in held.datasets, schema.TRAIN in held.datasets
    if not labelled and not masked:
        return []
    row_bytes = held.datasets[schema.Y].row_bytes if labelled else 1
    step = max(1, SLICE_BYTES // row_bytes)
    for row in range(0, held.nodes, step):
        end = min(row + step, held.nodes)
        y = source.read(schema.Y, row, end) if labelled else None
        if y is not None:
            checks.labels(where, y, row, held.classes)
            counter.add(y.nbytes)
        if masked:
            split = tuple(source.read(path, row, end) for path in schema.MASKS)
            checks.masks(where, split, y, row)
            counter.add(sum(mask.nbytes for mask in split))
    facts = []
    if labelled:
        facts.append(
            f"labels are those of {held.classes:,} classes" + (", 0 or 1" if held.multilabel else "")
        )
    if masked:
        facts.append("no row is in two masks" + (", and each masked row has a label" if labelled else ""))
    return facts


def _check_features(source: Source, counter: _Counter) -> list[str]:
    held, where = source.contents, source.where
    if not held.features:
        return []
    if held.sparse_shape is None:
        for row, values in _slices(source, schema.X):
            checks.finite(where, schema.X, values, row)
            counter.add(values.nbytes)
        return [f"{schema.X} is finite"]
    fact = _check_csr(source, schema.COLUMNS, held.features, counter)
    return [fact, f"the columns of {schema.X} are in 0 .. {held.features - 1:,}, its values finite"]


def _check_names(source: Source, counter: _Counter) -> list[str]:
    held, where = source.contents, source.where
    if schema.NAME_TEXT not in held.datasets:
        return []
    total = held.datasets[schema.NAME_TEXT].shape[0]
    for row in range(0, held.nodes, SLICE_ROWS):
        offsets = source.read(schema.NAME_OFFSETS, row, min(row + SLICE_ROWS, held.nodes) + 1)
        checks.offsets(where, schema.NAME_OFFSETS, offsets, row=row, rows=held.nodes, total=total)
        text = source.read(schema.NAME_TEXT, int(offsets[0]), int(offsets[-1]))
        checks.names(where, offsets, text, row)
        counter.add(offsets.nbytes + text.nbytes)
    return [f"{schema.NAME_TEXT} is UTF-8, name by name"]


def _check_permutation(source: Source, counter: _Counter) -> str:
    """Check that each original id comes exactly once: N ids in range, none seen before (one byte a node in memory)."""
    nodes = source.contents.nodes
    seen = np.zeros(nodes, dtype=bool)
    for row, values in _slices(source, schema.PERMUTATION):
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
        counter.add(values.nbytes)
    return f"{schema.PERMUTATION} has each original id once"
