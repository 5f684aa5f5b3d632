"""A case of the table, played on every rank by one process, or by one process a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cases
import numpy as np
import reference
from world import plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Epilogue, Geometry, Rows
from mgg_hpc.runtime.backends.simulated import all_reachable

from .engine import SMALL, Engine

MARGIN = 40  # rows behind each output, which nothing may touch
OF_EDGES = ("edges", "edge_score", "edge_score_gradient")  # arrays with a row for each edge


def drawn_reach(engine: Engine, ranks: int, rng: np.random.Generator) -> Callable[[int, int], bool]:
    """Whether a pointer of one rank leads to another: to all but over the shim."""
    reach = np.ones((ranks, ranks), bool)
    if engine.device == "shim":
        reach = rng.random((ranks, ranks)) < rng.choice([0.0, 0.5, 1.0])
    reach |= reach.T | np.eye(ranks, dtype=bool)
    return lambda rank, peer: bool(reach[rank, peer])


class Played:
    """A case on every rank of an engine: rows, plans and backends of the ranks that this process plays.

    transfer: "direct" ("get" where no pointers lead to other PEs), "get" or "halo". reaches(rank, peer):
    whether a pointer does, unless an MPI job says so. chunk_bytes: of a halo. searches: whether other geometries will
    be tried. threads: of each rank of CPUs. Under an MPI job, calls are collective.
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
        threads: int = 2,
    ) -> None:
        self.engine, self.case = engine, case
        self.format = RowFormat(x.dtype, x.shape[1])
        self.world = engine.world(len(case.bounds) - 1, reaches)
        self.ranks = engine.ranks(self.world)
        if transfer == "direct" and not engine.pointers:
            transfer = "get"
        self.backends = engine.backends(self.world, geometry, searches=searches, threads=threads)
        self.rows = self.more_rows(x)
        plans = plans_of(case, transfer, engine.rounds)
        self.plans = [plans[rank] for rank in self.ranks]
        for backend, plan in zip(self.backends, self.plans, strict=True):
            backend.chunk_bytes = chunk_bytes
            backend.prepare(plan, self.format)

    def write(self, x: np.ndarray) -> None:
        """All ranks' rows, [N, F]."""
        for rank, rows in zip(self.ranks, self.rows, strict=True):
            self.engine.fill(rows.local, x[self.case.rows(rank)])

    def more_rows(self, x: np.ndarray) -> list[Rows]:
        """Further rows of all ranks, beside the world's own."""
        made = []
        for rank, backend in zip(self.ranks, self.backends, strict=True):
            rows = backend.rows(np.diff(self.case.bounds), self.format, symmetric=True)
            self.engine.fill(rows.local, x[self.case.rows(rank)])
            made.append(rows)
        return made

    def aggregate(self, rng: np.random.Generator, reduce="sum", weight=None, epilogue=None) -> np.ndarray:
        """All ranks' outputs, [N, F]; their rows are NaN before. CPUs sum twice: schedules are used again."""
        sets = [self.rows] * (2 if self.engine.device == "serial" else 1)
        return self.calls(rng, sets, reduce, weight, epilogue)[-1]

    def calls(
        self,
        rng: np.random.Generator,
        sets: list[list[Rows]],
        reduce: str = "sum",
        weight: np.ndarray | None = None,
        epilogue: Epilogue | None = None,
        order: Sequence[int] = (),
    ) -> list[np.ndarray]:
        """The same over several sets of rows, a call each. epilogue: its scale is of all nodes. order: see `run`."""
        finish = epilogue or Epilogue()
        bias = self.engine.array(finish.bias)
        given = {"edges": weight, "scale": finish.scale}

        def call(backend, plan, rows, out, mine):
            own = Epilogue(mine.get("scale"), bias, finish.relu)
            backend.aggregate(plan, reduce, rows, **out, edge=mine.get("edges"), epilogue=own)

        def ready(backend, plan, rows):
            backend.ready(plan, rows, reduce)

        given = {name: array for name, array in given.items() if array is not None}
        return [each["out"] for each in self.run(rng, sets, {"out": self.format}, given, call, ready, order)]

    def run(
        self,
        rng: np.random.Generator,
        sets: list[list[Rows]],
        outputs: dict[str, Any],
        given: dict[str, np.ndarray],
        call: Callable[..., None],
        ready: Callable[..., None] | None = None,
        order: Sequence[int] = (),
    ) -> list[dict[str, np.ndarray]]:
        """What call(backend, plan, rows, outputs, given) leaves in outputs, for each set of all ranks' rows.

        A rank may begin a call when its own last one has ended. outputs: formats by name; of OF_EDGES: how many values
        of each edge. They are NaN before, and what lies behind them must be after. given: arrays of all nodes by name;
        of OF_EDGES: of all edges; "epoch": for all ranks. ready(backend, plan, rows) allocates all that a call on a GPU
        does. order: ranks whose kernels run one after another instead, on one stream.

        Returns, for each set, the outputs of all nodes, or of all edges in the CSR's order.
        """
        mine = [self._mine(at, given) for at in range(len(self.ranks))]
        made = [[self._outputs(at, outputs) for at in range(len(self.ranks))] for _ in sets]
        if ready and self.engine.device != "serial":
            for each in sets:
                for backend, plan, rows in zip(self.backends, self.plans, each, strict=True):
                    ready(backend, plan, rows)

        def play(at, rows, into):
            backend, plan = self.backends[at], self.plans[at]
            out = {name: array[: self._count(at, name)] for name, array in into.items()}
            backend.publish(rows)
            call(backend, plan, rows, out, mine[at])

        turns = [
            [partial(play, at, rows[at], into[at]) for at in range(len(self.ranks))]
            for rows, into in zip(sets, made, strict=True)
        ]
        self.engine.seed(int(rng.integers(1 << 60)))
        for rank in order:
            self.engine.seed(int(rng.integers(1 << 60)), rank)
            turns[0][rank]()
        if not order:
            self.engine.together(self.world, turns)
        return [{name: self._joined(name, [of[name] for of in each]) for name in outputs} for each in made]

    def _count(self, at: int, name: str) -> int:
        plan = self.plans[at]
        return plan.edges if name in OF_EDGES else plan.destinations

    def _mine(self, at: int, given: dict[str, np.ndarray]) -> dict[str, Any]:
        rank, mine = self.ranks[at], {}
        for name, array in given.items():
            part = slice(None) if name == "epoch" else self.case.rows(rank)
            of_edges = name in OF_EDGES
            own = array[self.case.edges(rank)][self.plans[at].edge] if of_edges else array[part]
            mine[name] = self.engine.array(np.ascontiguousarray(own))
        return mine

    def _outputs(self, at: int, formats: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, format in formats.items():
            count = self._count(at, name) + MARGIN
            if name in OF_EDGES:
                wide = np.promote_types(
                    np.float32, self.format.dtype if self.format.dtype != "bfloat16" else "f4"
                )
                made[name] = self.engine.array(np.full((count, format), np.nan, wide))
            else:
                made[name] = self.engine.nan_rows(self.backends[at], count, format)
        return made

    def _joined(self, name: str, outputs: list) -> np.ndarray:
        parts = []
        for at, (plan, beyond) in enumerate(zip(self.plans, map(self.engine.numpy, outputs), strict=True)):
            count = self._count(at, name)
            assert np.isnan(beyond[count:].astype(np.float32)).all(), f"wrote behind {name}"
            part = beyond[:count]
            if name in OF_EDGES:
                part = np.empty_like(part)
                part[plan.edge] = beyond[:count]
            parts.append(part)
        return np.concatenate(self.engine.everywhere(parts))

    def edge_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) of all edges."""
        return reference.edge_list(self.case.indptr, self.case.indices)
