"""Second half of a build: sort the edges of all runs into a CSR, as many rows at a time as fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import native, symmetry
from ..graph import index_dtype
from .runs import WEIGHT, Columns, Run, grouped, unpacked
from .work import ColumnFile, Progress, WorkFolder

MOST_EDGES = 1 << 24  # sorted at a time; larger pieces are not faster

Section = tuple[Columns, NDArray[np.int64]]  # edges of B consecutive buckets, and their bounds [B + 1]


class Conflicts(NamedTuple):
    """Duplicate edges whose weights or data must be equal, but differ.

    Fields: edges: number of such edges; an edge and its reverse count once. source, destination: ends of one of
    them, as an example. first, other: packed data of two differing copies of that edge. all: False if the build
    stopped before it had compared all edges, so that there may be more.
    """

    edges: int
    source: int
    destination: int
    first: bytes
    other: bytes
    all: bool = True


class SortedRows:
    """The in-edge CSR of the graph being built, to which `sort` appends row by row.

    It is held in memory if the runs are and it fits there as well, else in files of the work folder.

    Args: dtype: structured type of an edge's weight and data (`runs.data_type`). copies: how duplicate edges
    are combined: "all" keeps them; "same", "first", "sum", "mean", "max" or "min" keep one. directions: 1 if
    edges are used as listed, 2 if the reverse of each was added, 4 if it was added to a list that has both
    directions. detect: True to compute ``imbalance``. most: upper bound of the number of edges. index: dtype of
    the CSR's indices. [default: the narrowest for ``nodes``]

    Attributes: degree: int64, in-degrees of the rows appended so far. indices: sources of their edges. data:
    their weights (under the name WEIGHT) and edge data, by name. imbalance: sum of `symmetry.imbalance`, 0 if
    each edge's reverse is present. rounded: number of combined weights that are integers which float32 cannot
    represent; an edge and its reverse count once. conflicts: duplicate edges that cannot be combined, or None.
    """

    def __init__(
        self,
        work: WorkFolder,
        dtype: np.dtype[Any],
        nodes: int,
        *,
        memory: int,
        copies: str,
        directions: int,
        detect: bool,
        most: int = 0,
        index: np.dtype[Any] | None = None,
    ) -> None:
        self._work, self.dtype, self._nodes = work, dtype, nodes
        self._detect, self._memory = detect, memory
        self._copies, self._directions = copies, directions
        self._rules = copies, WEIGHT in (dtype.names or ()), directions  # as the native module takes them
        self.conflicts: Conflicts | None = None
        start = {"bucket": 0, "rows": 0, "edges": 0, "imbalance": 0, "rounded": 0}
        self._state: dict[str, Any] = work.state.get("rows") or start
        self.imbalance, self.rounded = int(self._state["imbalance"]), int(self._state["rounded"])
        self._resumable, self._parts = work.made, 0
        # Without a folder so far all runs are in memory; their CSR may be too large for it all the same.
        self._filed = work.made or 8 * nodes + most * (4 + dtype.itemsize) > memory // 4
        edges = self._state["edges"]
        self.degree = self._column("degree", np.dtype(np.int64), (), self._state["rows"])
        self.indices = self._column("indices", index or np.dtype(index_dtype(nodes)), (), edges)
        self.data = {
            name: self._column(f"data{number}", field[0].base, field[0].shape, edges)
            for number, (name, field) in enumerate((dtype.fields or {}).items())
        }

    def __enter__(self) -> SortedRows:
        return self

    def __exit__(self, *error: object) -> None:
        for column in (self.degree, self.indices, *self.data.values()):
            column.close()

    def sort(self, runs: Sequence[Run], progress: Progress) -> None:
        """Sort the edges of all runs. If the CSR is in files, stop after the first piece that has conflicts."""
        total, done = sum(run.count for run in runs), 0
        for bucket, count in self._sorted(list(runs), 0, self._nodes, self._state["bucket"]):
            done += count
            if self.conflicts and self._filed:
                self.conflicts = self.conflicts._replace(all=False)
                return
            lengths = {"rows": self.degree.length, "edges": self.indices.length}
            if self._resumable:
                sums = {"imbalance": self.imbalance, "rounded": self.rounded}
                self._work.keep(rows={"bucket": bucket, **sums, **lengths})
            progress("sorting", done, total)

    def _column(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], length: int) -> ColumnFile:
        if self._filed:
            return self._work.column(name, dtype, shape, length)
        return ColumnFile(None, dtype, shape)

    def _sorted(self, runs: list[Run], first: int, last: int, bucket: int = 0) -> Iterator[tuple[int, int]]:
        """Sort the edges into rows first .. last - 1, piece by piece, and append each piece to the CSR.

        Yields (the bucket to continue with, number of edges read) after each piece. runs: all edges into these
        rows, grouped by destination; files that `_regrouped` wrote are removed at the end. bucket: first bucket
        to sort; a resumed build continues at a later one. A bucket that does not fit into memory is divided
        into finer buckets, and a single row that does not, by source.
        """
        shift, counts = _counts(runs, last - first)
        while bucket < len(counts):
            end = _fitting(counts, bucket, self._capacity(runs), max(1, self._rows >> shift))
            low, high = first + (bucket << shift), min(first + (end << shift), last)
            if counts[bucket] <= self._capacity(runs):
                self.degree.append(
                    self._append([run.section(bucket, end, shift) for run in runs], low, high - low, shift)
                )
            elif high - low > 1:
                for _ in self._sorted(self._regrouped(runs, bucket, shift, low, high), low, high):
                    pass
            else:  # a row of more edges than fit into memory: by ranges of sources
                by_source = self._regrouped(runs, bucket, shift, 0, self._nodes, by_source=True)
                degree = np.zeros(1, np.int64)
                for sections in self._by_source(by_source, 0, self._nodes):
                    whole = [(columns, starts[[0, -1]]) for columns, starts in sections]
                    degree += self._append(whole, low, 1, 0)
                self.degree.append(degree)
            yield end, int(counts[bucket:end].sum())
            bucket = end
        self._remove(runs)

    def _by_source(self, runs: list[Run], first: int, last: int) -> Iterator[list[Section]]:
        """Yield the edges of one row in ascending ranges of sources, each of which fits into memory.

        runs: all edges of the row, grouped by source. first, last: the sources are first .. last - 1.
        """
        shift, counts = _counts(runs, last - first)
        bucket, capacity = 0, self._capacity(runs)
        while bucket < len(counts):
            end = _fitting(counts, bucket, capacity, len(counts))
            low, high = first + (bucket << shift), min(first + (end << shift), last)
            if counts[bucket] <= capacity:
                yield [run.section(bucket, end, shift) for run in runs]
            elif high - low > 1:
                finer = self._regrouped(runs, bucket, shift, low, high, by_source=True)
                yield from self._by_source(finer, low, high)
            else:  # copies of one edge, which are in order already
                parts = self._parts_of(runs, bucket, shift, capacity)
                for columns in parts if self._copies == "all" else [self._merged(parts)]:
                    yield [(columns, np.array([0, len(columns[0])]))]
            bucket = end
        self._remove(runs)

    def _parts_of(self, runs: list[Run], bucket: int, shift: int, most: int) -> Iterator[Columns]:
        """Yield the edges of one bucket of the given shift, at most ``most`` at a time."""
        for run in runs:
            start, stop = run.starts([bucket, bucket + 1], shift).tolist()
            for at in range(start, stop, most):
                yield run.edges(at, min(at + most, stop))

    def _regrouped(
        self, runs: list[Run], bucket: int, shift: int, first: int, last: int, *, by_source: bool = False
    ) -> list[Run]:
        """Write one bucket's edges to files as runs with finer buckets, and return these runs.

        first, last: the bucket's keys are first .. last - 1. by_source: group by source instead of destination.
        """
        found: list[Run] = []
        for columns in self._parts_of(runs, bucket, shift, max(1, self._capacity(runs) // 2)):
            made = grouped(columns, self.dtype.itemsize, first, last - 1, by_source=by_source)
            found.append(made.stored(self._work, f"part{self._parts}"))
            self._parts += 1
        return found

    def _merged(self, parts: Iterator[Columns]) -> Columns:
        """Combine the copies of one edge, which together do not fit into memory, and return the one edge."""
        first, width = next(parts), self.dtype.itemsize
        target, source, data = first[0][:1], first[1][:1], first[2][:width].copy()
        if not width or self._copies == "first":
            return target, source, data
        counted = self._directions == 1 or bool(source <= target)  # of an edge and its reverse, one
        merged = native.load().MergedEdge(data, *self._rules)
        for _, _, copies in chain([first], parts):
            if (at := merged.take(copies)) >= 0:
                other = copies[at * width : (at + 1) * width].tobytes()
                self._add(int(counted), source, target, data.tobytes(), other)
                return target, source, data
        self.rounded += merged.store(bool(source == target), data) and counted
        return target, source, data

    def _add(self, count: int, source: Any, target: Any, first: bytes, other: bytes) -> None:
        """Add ``count`` duplicate edges that cannot be combined to ``conflicts``; the first one is its example.

        first, other: packed data of two copies of the edge source -> target.
        """
        if count and self.conflicts is not None:
            self.conflicts = self.conflicts._replace(edges=self.conflicts.edges + count)
        elif count:
            self.conflicts = Conflicts(count, int(source), int(target), first, other)

    def _remove(self, runs: Sequence[Run]) -> None:
        """Remove the files that `_regrouped` wrote.

        The stream's own runs stay until the graph file is complete.
        """
        for run in runs:
            if run.file is not None and run.file.name.startswith("part"):
                run.file.unlink()

    @property
    def _rows(self) -> int:
        """Largest number of rows sorted at a time: several arrays in memory have an entry for each of them."""
        return max(1, self._memory // 128)

    def _capacity(self, runs: Sequence[Run]) -> int:
        """Return the largest number of edges that can be read, sorted and unpacked in memory at a time."""
        item = max((run.dtype.itemsize for run in runs), default=4)
        width = self.dtype.itemsize
        # While edges with data are sorted, each has its source and its position, and half of them a copy of both.
        each = 2 * item + self.indices.dtype.itemsize + (4 * width + 36 if width else 2)
        return min(max(1, self._memory // each), MOST_EDGES)

    def _append(self, sections: list[Section], first: int, rows: int, shift: int) -> NDArray[np.int64]:
        """Sort the edges of rows from ``first`` on, append them to the CSR, and return the degrees of the rows.

        sections: edges of these rows from each run, in buckets of 2**shift rows.
        """
        degree, width = np.zeros(rows, np.int64), self.dtype.itemsize
        wide = any(columns[1].itemsize == 8 for columns, _ in sections)
        ids = np.dtype(np.uint64 if wide else np.uint32)
        parts = [
            (destinations.astype(ids, copy=False), sources.astype(ids, copy=False), data, starts)
            for (destinations, sources, data), starts in sections
        ]
        total = sum(len(each[0]) for each in parts)
        indices, data = np.empty(total, self.indices.dtype), np.empty(total * width, np.uint8)
        if total:
            kept, rounded, *conflicts = native.load().sort_buckets(
                parts, width, first, shift, *self._rules, degree, indices, data
            )
            self.rounded += rounded
            indices, data = indices[:kept], data[: kept * width]
            self._add(*conflicts)
        values = unpacked(data, self.dtype)
        if self._detect:
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
            self.imbalance += symmetry.csr_imbalance(first, offsets, indices, values.get(WEIGHT))
            self.imbalance %= 2**64
        self.indices.append(indices)
        for name, array in values.items():
            self.data[name].append(array)
        return degree


def _counts(runs: Sequence[Run], keys: int) -> tuple[int, NDArray[np.int64]]:
    """Return (shift, counts): the largest shift of the runs, and the number of edges in each bucket.

    A bucket is 2**shift keys wide. counts: summed over the runs. keys: number of keys that the runs cover.
    """
    shift = max((run.shift for run in runs), default=0 if keys <= MOST_EDGES else keys.bit_length() - 24)
    buckets = -(-keys >> shift)
    counts = np.zeros(buckets, np.int64)
    for run in runs:
        counts += np.diff(run.starts(np.arange(buckets + 1), shift))
    return shift, counts


def _fitting(counts: NDArray[np.int64], bucket: int, capacity: int, most: int) -> int:
    """Return the end of the longest range of buckets from ``bucket`` on with at most ``capacity`` edges.

    The range has at least one bucket, even if that one has more edges, and at most ``most`` buckets.
    """
    sums = np.cumsum(counts[bucket : bucket + most])
    return bucket + max(1, int(np.searchsorted(sums, capacity, side="right")))
