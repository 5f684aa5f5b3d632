"""The second half of a build: the edges of all runs, a piece of rows at a time, sorted into a CSR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import native, symmetry
from ..graph import index_dtype
from .runs import PayloadLayout, Run, Section, grouped, stored
from .work import ColumnFile, Progress, WorkFolder

MOST_EDGES = 1 << 24  # of a piece; more would gain nothing


class SortedRows:
    """The CSR of all runs, that grows row by row, in files of the work folder, or in memory if the runs are there.

    degree: int64, of the rows so far. indices, data: of their edges; the weight's name is "". imbalance: sum of
    `symmetry.imbalance`, where ``detect`` asks for it. distinct: keep the first of equal edges only. index: type of
    indices. [default: the narrowest] most: edges of all runs.
    """

    def __init__(
        self,
        work: WorkFolder,
        layout: PayloadLayout,
        nodes: int,
        *,
        memory: int,
        distinct: bool,
        detect: bool,
        most: int = 0,
        index: np.dtype | None = None,
    ) -> None:
        self._work, self._layout, self._nodes = work, layout, nodes
        self._distinct, self._detect, self._memory = distinct, detect, memory
        self._state: dict[str, Any] = work.state.get("rows") or {
            "bucket": 0,
            "rows": 0,
            "edges": 0,
            "imbalance": 0,
        }
        self.imbalance = int(self._state["imbalance"])
        self._resumable, self._parts = work.made, 0
        # Without a folder so far all runs are in memory; what comes out of them may be too large for it all the same.
        self._filed = work.made or 8 * nodes + most * (4 + layout.width) > memory // 4
        edges = self._state["edges"]
        self.degree = self._column("degree", np.dtype(np.int64), (), self._state["rows"])
        self.indices = self._column("indices", index or np.dtype(index_dtype(nodes)), (), edges)
        self.data = {
            name: self._column(f"data{number}", np.dtype(dtype), shape, edges)
            for number, (name, dtype, shape) in enumerate(layout.fields)
        }

    def __enter__(self) -> SortedRows:
        return self

    def __exit__(self, *error: object) -> None:
        for column in self._columns():
            column.close()

    def sort(self, runs: Sequence[Run], progress: Progress) -> None:
        """Take the edges of all runs."""
        total = sum(run.count for run in runs)
        done = 0
        for bucket, count in self._sorted(list(runs), 0, self._nodes, self._state["bucket"]):
            done += count
            lengths = {"rows": self.degree.length, "edges": self.indices.length}
            if self._resumable:
                self._work.keep(rows={"bucket": bucket, "imbalance": self.imbalance, **lengths})
            progress("sorting", done, total)

    def _columns(self) -> list[ColumnFile]:
        return [self.degree, self.indices, *self.data.values()]

    def _column(self, name: str, dtype: np.dtype, shape: tuple[int, ...], length: int) -> ColumnFile:
        if self._filed:
            return self._work.column(name, dtype, shape, length)
        return ColumnFile(None, dtype, shape)

    def _sorted(self, runs: list[Run], first: int, last: int, bucket: int = 0) -> Iterator[tuple[int, int]]:
        """Sort the rows first .. last - 1 of runs with that base, from a bucket on; yield (next bucket, edges)."""
        shift, counts = _counts(runs, last - first)
        while bucket < len(counts):
            end = _fitting(counts, bucket, self._capacity(runs), max(1, self._rows >> shift))
            rows = first + (bucket << shift), min(first + (end << shift), last)
            if counts[bucket] <= self._capacity(runs):
                sections = [run.section(bucket, end, 1 << (shift - run.shift)) for run in runs]
                self._append(sections, rows[0], rows[1] - rows[0], shift)
            elif rows[1] - rows[0] > 1:
                for _ in self._sorted(self._regrouped(runs, bucket, shift, *rows), *rows):
                    pass
            else:
                self._one_row(runs, bucket, shift, rows[0])
            yield end, int(counts[bucket:end].sum())
            bucket = end
        self._remove(runs)

    def _one_row(self, runs: list[Run], bucket: int, shift: int, row: int) -> None:
        """Sort a row of more edges than fit into memory: by ranges of sources."""
        degree = 0
        for section in self._by_source(
            self._regrouped(runs, bucket, shift, 0, self._nodes, by_source=True), 0, self._nodes
        ):
            degree += self._append_sources(section, row)
        self.degree.append(np.array([degree], np.int64))

    def _by_source(self, runs: list[Run], first: int, last: int) -> Iterator[list[Section]]:
        """Yield the edges of one row, in ranges of sources that fit into memory."""
        shift, counts = _counts(runs, last - first)
        bucket = 0
        while bucket < len(counts):
            end = _fitting(counts, bucket, self._capacity(runs), len(counts))
            low, high = first + (bucket << shift), min(first + (end << shift), last)
            if counts[bucket] <= self._capacity(runs):
                yield [run.section(bucket, end, 1 << (shift - run.shift)) for run in runs]
            elif high - low > 1:
                yield from self._by_source(
                    self._regrouped(runs, bucket, shift, low, high, by_source=True), low, high
                )
            else:  # copies of one edge, which are in order already
                for run in runs:
                    ends = run.offsets[
                        np.minimum(np.array([bucket, end]) << (shift - run.shift), len(run.offsets) - 1)
                    ]
                    for at in range(int(ends[0]), int(ends[1]), self._capacity(runs)):
                        columns = run.edges(at, min(at + self._capacity(runs), int(ends[1])))
                        yield [Section(*columns, np.array([0, len(columns[0])]))]
                        if self._distinct:
                            break
                    if self._distinct and ends[1] > ends[0]:
                        break
            bucket = end
        self._remove(runs)

    def _regrouped(
        self, runs: list[Run], bucket: int, shift: int, first: int, last: int, *, by_source: bool = False
    ) -> list[Run]:
        """Return one bucket's edges as runs of finer buckets, in files."""
        found: list[Run] = []
        for run in runs:
            ends = run.offsets[
                np.minimum(np.array([bucket, bucket + 1]) << (shift - run.shift), len(run.offsets) - 1)
            ]
            step = max(1, self._capacity(runs) // 2)
            for at in range(int(ends[0]), int(ends[1]), step):
                columns = run.edges(at, min(at + step, int(ends[1])))
                made = grouped(columns, self._layout.width, first, last - 1, by_source=by_source)
                found.append(stored(made, self._work, f"part{self._parts}"))
                self._parts += 1
        return found

    def _remove(self, runs: Sequence[Run]) -> None:
        """Remove runs that were regrouped; those of the stream stay until the file is there."""
        for run in runs:
            if run.file is not None and run.file.name.startswith("part"):
                run.file.unlink()

    @property
    def _rows(self) -> int:
        """Most rows of a piece, whose degrees are in memory in several forms."""
        return max(1, self._memory // 128)

    def _capacity(self, runs: Sequence[Run]) -> int:
        """Return the edges of a piece: those that are read, sorted, and taken apart again."""
        item = max((run.dtype.itemsize for run in runs), default=4)
        width = self._layout.width
        # While edges with payload are sorted, each has its source and place, and half of them a copy of these.
        each = 2 * item + self.indices.dtype.itemsize + (4 * width + 36 if width else 2)
        return min(max(1, self._memory // each), MOST_EDGES)

    def _append(self, sections: list[Section], first: int, rows: int, shift: int) -> None:
        degree = np.zeros(rows, np.int64)
        kept = self._kept(sections, first, shift, degree)
        if self._detect:
            self._hash(first, degree, *kept)
        self._write(*kept)
        self.degree.append(degree)

    def _append_sources(self, sections: list[Section], row: int) -> int:
        """Sort and write edges of one row, and return how many are kept."""
        whole = [
            Section(each.destinations, each.sources, each.payload, each.offsets[[0, -1]]) for each in sections
        ]
        degree = np.zeros(1, np.int64)
        kept = self._kept(whole, row, 0, degree)
        if self._detect:
            self._hash(row, degree, *kept)
        self._write(*kept)
        return int(degree[0])

    def _kept(
        self, sections: list[Section], first: int, shift: int, degree: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return the sorted indices of sections' edges, and their payload; add to the degree of each row."""
        wide = any(each.sources.dtype.itemsize == 8 for each in sections)
        dtype, width = np.dtype(np.uint64 if wide else np.uint32), self._layout.width
        parts = [
            (
                each.destinations.astype(dtype, copy=False),
                each.sources.astype(dtype, copy=False),
                each.payload,
            )
            for each in sections
        ]
        total = sum(len(each[0]) for each in parts)
        out, payload = np.empty(total, self.indices.dtype), np.empty(total * width, np.uint8)
        if not total:
            return out, payload
        given = [(*part, each.offsets) for part, each in zip(parts, sections, strict=True)]
        kept = native.load().sort_buckets(given, width, first, shift, self._distinct, degree, out, payload)
        return out[:kept], payload[: kept * width]

    def _write(self, indices: NDArray[Any], payload: NDArray[np.uint8]) -> None:
        self.indices.append(indices)
        for name, values in self._layout.unpack(payload).items():
            self.data[name].append(values)

    def _hash(
        self, first: int, degree: NDArray[np.int64], indices: NDArray[Any], payload: NDArray[np.uint8]
    ) -> None:
        weight = self._layout.unpack(payload).get("")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
        self.imbalance += symmetry.csr_imbalance(first, offsets, indices, weight)
        self.imbalance %= 2**64


def _counts(runs: Sequence[Run], keys: int) -> tuple[int, NDArray[np.int64]]:
    """Return the shift of the coarsest run, and the edges of all runs in each of its buckets."""
    shift = max((run.shift for run in runs), default=0 if keys <= MOST_EDGES else keys.bit_length() - 24)
    buckets = -(-keys >> shift)
    counts = np.zeros(buckets, np.int64)
    for run in runs:
        ends = np.minimum(np.arange(buckets + 1) << (shift - run.shift), len(run.offsets) - 1)
        counts += np.diff(run.offsets[ends])
    return shift, counts


def _fitting(counts: NDArray[np.int64], bucket: int, capacity: int, most: int) -> int:
    """Return behind which bucket a piece ends: ``most`` from ``bucket`` on, as far as they fit, and one at least."""
    sums = np.cumsum(counts[bucket : bucket + most])
    return bucket + max(1, int(np.searchsorted(sums, capacity, side="right")))
