"""A case of the table, played on every rank by one process, or by one process a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import cases
import numpy as np
import reference
from world import plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Rows
from mgg_hpc.runtime.backends.simulated import all_reachable

from .engine import SMALL, Engine

MARGIN = 40  # rows behind each output, which nothing may touch


class Played:
    """A case on every rank of an engine: rows, plans and backends of the ranks that this process plays.

    transfer: "direct" ("get" where no pointers lead to other PEs), "get" or "halo". reaches(rank, peer):
    whether a pointer does, unless an MPI job says so. chunk_bytes: of a halo. searches: whether other geometries will
    be tried. Under an MPI job, calls are collective.
    """

    def __init__(
        self,
        engine: Engine,
        case: cases.Case,
        x: np.ndarray,
        geometry: Geometry = SMALL,
        transfer: str = "direct",
        reaches: Callable[[int, int], bool] = all_reachable,
        chunk_bytes: int = 128,
        *,
        searches: bool = False,
    ) -> None:
        self.engine, self.case = engine, case
        self.format = RowFormat(x.dtype, x.shape[1])
        self.world = engine.world(len(case.bounds) - 1, reaches)
        self.ranks = engine.ranks(self.world)
        if transfer == "direct" and not engine.pointers:
            transfer = "get"
        self.backends = engine.backends(self.world, geometry, searches=searches)
        self.rows = [
            backend.rows(np.diff(case.bounds), self.format, symmetric=True) for backend in self.backends
        ]
        self.write(x)
        plans = plans_of(case, transfer, 1)
        self.plans = [plans[rank] for rank in self.ranks]
        for backend, plan in zip(self.backends, self.plans, strict=True):
            backend.chunk_bytes = chunk_bytes
            backend.prepare(plan, self.format)

    def write(self, x: np.ndarray) -> None:
        """All ranks' rows, [N, F]."""
        for rank, rows in zip(self.ranks, self.rows, strict=True):
            self.engine.fill(rows.local, x[self.part(rank)])

    def part(self, rank: int) -> slice:
        """A rank's rows."""
        return slice(int(self.case.bounds[rank]), int(self.case.bounds[rank + 1]))

    def each(self, rng: np.random.Generator) -> Iterator[tuple]:
        """(backend, plan, rows, part of the rows, part of the edges), in an order of execution of its own each."""
        for at, rank in enumerate(self.ranks):
            self.engine.seed(int(rng.integers(1 << 60)), rank)
            self.backends[at].publish(self.rows[at])
            yield self.backends[at], self.plans[at], self.rows[at], self.part(rank), self.case.edges(rank)

    def aggregate(self, rng: np.random.Generator, reduce="sum", weight=None, epilogue=None) -> np.ndarray:
        """All ranks' outputs, [N, F]; their rows are NaN before. epilogue(part) makes a rank's."""
        return self.calls(rng, [self.rows], reduce, weight, epilogue)[0]

    def more_rows(self, x: np.ndarray) -> list[Rows]:
        """Further rows of all ranks, beside the world's own."""
        made = []
        for rank, backend in zip(self.ranks, self.backends, strict=True):
            rows = backend.rows(np.diff(self.case.bounds), self.format, symmetric=True)
            self.engine.fill(rows.local, x[self.part(rank)])
            made.append(rows)
        return made

    def calls(
        self, rng: np.random.Generator, sets: list[list[Rows]], reduce="sum", weight=None, epilogue=None
    ) -> list[np.ndarray]:
        """The same over several sets of rows, a call each, which a rank may begin when its own last one has ended."""
        outputs: list[list] = [[] for _ in sets]
        kept = []
        op = "copy" if weight is None else "mul"
        for at, (rank, backend, plan) in enumerate(zip(self.ranks, self.backends, self.plans, strict=True)):
            edge = None
            if weight is not None:
                edge = self.engine.array(weight[self.case.edges(rank)][plan.edge])
            kept.append((edge, epilogue and epilogue(self.part(rank))))
            for rows, into in zip(sets, outputs, strict=True):
                into.append(self.engine.nan_rows(backend, plan.destinations + MARGIN, self.format))
                backend.ready(plan, rows[at], reduce)
        self.engine.seed(int(rng.integers(1 << 60)))
        with self.engine.together(self.world) as of:
            for rows, into in zip(sets, outputs, strict=True):  # no rank is launched ahead of the others
                for at, (backend, plan) in enumerate(zip(self.backends, self.plans, strict=True)):
                    edge, finish = kept[at]
                    out = into[at][: plan.destinations]
                    with of(self.ranks[at]):
                        backend.publish(rows[at])
                        backend.aggregate(plan, op, reduce, rows[at], out, edge=edge, epilogue=finish)
        return [self._joined(each) for each in outputs]

    def one_by_one(self, rng: np.random.Generator, ranks: Sequence[int], reduce="sum") -> np.ndarray:
        """All ranks' outputs, [N, F], whose kernels run one after another on one stream, in this order of ranks."""
        outputs = [
            self.engine.nan_rows(backend, plan.destinations + MARGIN, self.format)
            for backend, plan in zip(self.backends, self.plans, strict=True)
        ]
        for backend, plan, rows in zip(self.backends, self.plans, self.rows, strict=True):
            backend.ready(plan, rows, reduce)
        for rank in ranks:
            self.engine.seed(int(rng.integers(1 << 60)), rank)
            plan = self.plans[rank]
            self.backends[rank].aggregate(
                plan, "copy", reduce, self.rows[rank], outputs[rank][: plan.destinations]
            )
        return self._joined(outputs)

    def _joined(self, outputs: list) -> np.ndarray:
        found = []
        for beyond, plan in zip(map(self.engine.numpy, outputs), self.plans, strict=True):
            behind = beyond[plan.destinations :].astype(np.float32)
            assert np.isnan(behind).all(), "wrote behind its rows"
            found.append(beyond[: plan.destinations])
        return np.concatenate(self.engine.everywhere(found))

    def edge_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) of all edges."""
        return reference.edge_list(self.case.indptr, self.case.indices)
