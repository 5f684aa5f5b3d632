"""Schedules of the sums of a streamed graph, one interval of destinations after another.

accumulator: the sums of an interval stay in memory while the chunks of sources stream past, and are used at once (NGra,
section 3.1). stage: all sums are computed before the first is used, and leave memory in between. destination: each
chunk of sources is added to the sums of all intervals, which leave memory and return for every chunk (section 6.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...plan import grid as grids
from ...runtime.backends.arguments import Rows
from ...runtime.streaming.store import Store, read_ahead
from .graph import StreamedGraph
from .planning import Direction
from .rows import read, write

Results = list[Tensor]  # of an interval, [n, width] each
Intervals = Generator[tuple[int, Results], None, None]


def added(call: int, held: Results | None, results: Results, ends: bool) -> Results:
    """Return the sums up to a call. held: of the calls before, or None. results: of the call."""
    return results if held is None else [one.add_(other) for one, other in zip(held, results, strict=True)]


@dataclass(frozen=True)
class Sweep:
    """A pass over all edges of a direction, while rows of a store stream past.

    summed(call, rows): return the results of a call's edges. joined(call, held, results, ends): return the results up
    to a call, from those of the calls before, or None, and its own; ends: it is the interval's last. finished(interval,
    results): return the part of an interval's results that is used.
    """

    graph: StreamedGraph
    store: Store
    direction: Direction
    summed: Callable[[int, Rows], Results]
    joined: Callable[[int, Results | None, Results, bool], Results] = added
    finished: Callable[[int, Results], Results] = lambda _, results: results

    def results(self) -> Intervals:
        """Yield the number of each interval with rows, and its results from `finished`. Collective."""
        return self._staged() if self.graph.streaming.schedule == "stage" else self._used_at_once()

    def _staged(self) -> Intervals:
        sums = _Sums(self.graph, self.direction)
        for interval, results in self._used_at_once():
            sums.write(interval, results)
        back: Results
        for interval, back in read_ahead(self.graph.io, self.direction.used, sums.read):
            sums.count(back)
            yield interval, self._on_device(back)
        sums.drop()

    def _used_at_once(self) -> Intervals:
        direction = self.direction
        edges = [len(plan.indices) for plan in direction.plans]
        swaps = grids.swaps(direction.of, edges, together=self.graph.chained)
        sums = _Sums(self.graph, direction)
        swapped = self.graph.streaming.schedule == "destination" and len(direction.order.sources) > 2
        io, used = self.graph.io if swaps.reads.any() else None, set(direction.used)
        calls_of = Counter(direction.of)
        held: Results | None = None

        def returned(call: int) -> Results | None:
            return sums.read(direction.of[call]) if swaps.reads[call] else None

        with self.graph.streamed(self.store, direction) as rows:
            before: Results | None
            for call, before in read_ahead(io, range(len(direction.plans)), returned):
                interval, results = direction.of[call], self.summed(call, rows)
                if call == 0 and swapped:
                    sums.open(results)
                ends = bool(swaps.ends[call])
                if not swaps.adds[call]:
                    if ends and interval in used:
                        yield interval, self.finished(interval, self.joined(call, None, results, ends))
                    continue
                if before is not None:
                    sums.count(before)
                    held = self._on_device(before)
                held = self.joined(call, held, results, ends) if calls_of[interval] > 1 else results
                del results  # before the next call
                if swaps.writes[call]:
                    sums.write(interval, held)
                if ends and interval in used:
                    yield interval, self.finished(interval, held)
                if ends or swaps.writes[call]:
                    held = None
        sums.drop()

    def _on_device(self, results: Results) -> Results:
        return [each.to(self.graph.device) for each in results]


class _Sums:
    """A store of all intervals' sums, which counts the bytes that are read and written in the graph's ``swapped``."""

    def __init__(self, graph: StreamedGraph, direction: Direction) -> None:
        self._graph, self._intervals = graph, direction.intervals
        self._store: Store | None = None
        self._widths: list[int] = []

    def open(self, like: Results) -> None:
        """Make the store for results of these widths. Collective."""
        if self._store is None:
            self._widths = [each.shape[1] for each in like]
            self._store = self._graph.new_store(sum(self._widths))

    def write(self, interval: int, results: Sequence[Tensor]) -> None:
        """Write the sums of an interval."""
        self.open(list(results))
        assert self._store is not None
        low, _ = self._intervals[interval]
        rows = torch.cat([each.to(self._graph.dtype) for each in results], 1)
        write(self._store, self._graph.first + low, rows)
        self.count([rows])

    def read(self, interval: int) -> Results:
        """Return the sums of an interval."""
        assert self._store is not None
        low, high = self._intervals[interval]
        rows = read(self._store, self._graph.first + low, high - low).clone()  # the store is overwritten
        return list(rows.split(self._widths, 1))

    def count(self, results: Results) -> None:
        """Count the bytes of results; called by one thread."""
        self._graph.swapped += sum(each.numel() * each.element_size() for each in results)

    def drop(self) -> None:
        """Drop the store. Collective."""
        if self._store is not None:
            self._graph.drop(self._store)
