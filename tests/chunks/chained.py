"""A case over several ranks that make their passes together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chunks.gridded import Gridded, cut
from mgg_hpc.plan import grid
from mgg_hpc.runtime.backends.host.components import padded


@dataclass
class Chained(Gridded):
    """A rank's destination intervals, with the chunks of all ranks."""

    def complete(self, calls):
        """Give each plan the chunks of ``calls``, and calls that this rank has no destinations for an empty plan."""
        nothing = np.zeros(1, np.int64), np.zeros(0, np.int32)
        while len(self.plans) < len(calls):
            self.plans.append(grid.grid_plan(self.sources, np.arange(0), *nothing))
        self.plans = [
            grid.with_chunks(plan, self.sources, call) for plan, call in zip(self.plans, calls, strict=True)
        ]

    def sums(self, backend, store, order, buffer):
        """The sums of this rank's rows, of one pass."""
        found = []
        with backend.stream_rows(store, order, buffer) as rows:
            for plan in self.plans:
                out = padded(plan.destinations, store.format)
                out[:] = np.nan
                backend.aggregate(plan, "sum", rows, out)
                found.append(out)
        return np.concatenate(found)


def chained(case, source_rows, target_rows, slots):
    """Each rank's part of a case, and the pass that all of them make."""
    sources = cut(case.nodes, source_rows)
    parts = [
        Chained(case, sources, low + cut(high - low, target_rows))
        for low, high in zip(case.bounds[:-1], case.bounds[1:], strict=True)
    ]
    calls = grid.joint_calls([part.calls for part in parts])
    for part in parts:
        part.complete(calls)
    return parts, grid.replacement(sources, calls, slots)
