"""Our kernels on a GPU at given knobs, over the same rows: what the study of the design space times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...data.graph import Graph
from ...errors import InputError
from ...plan import halo, halo_schedule, workload
from ...plan.layout import RowFormat
from ...plan.overlap import transfer_only
from ...plan.workload import Plan
from ...runtime.backends.arguments import Geometry, Options, Rows
from ...runtime.backends.cuda.kernels import DeviceBackend
from ...runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from ...runtime.backends.simulated import World
from ..bench.aggregate import gpu_alone
from ..bench.harness.gpu import Call, Device, drawn_rows, edges_of, problem_of
from ..bench.overlap.gpu_transfers import OWNER_SHARE, cut

Cut = tuple[str, int, int]  # transfer, ps, dist: what a plan on the GPU depends on


@dataclass(frozen=True, order=True)
class Setting:
    """A kernel and its knobs."""

    transfer: str
    ps: int
    dist: int
    wpb: int

    def __str__(self) -> str:
        return f"{self.transfer} with ps {self.ps}, dist {self.dist}, wpb {self.wpb}"

    @property
    def cut(self) -> Cut:
        """The part of a setting that does not depend on wpb."""
        return self.transfer, self.ps, self.dist


@dataclass
class Run:
    """The calls of a setting: calls[i] sums set i of rows; out: the last set's sums."""

    setting: Setting
    calls: Sequence[Call]
    out: Any


class Ranks:
    """One simulated PE, which owns all rows, in sets as many as `mgg bench aggregate` has.

    x: [N, dim]. destinations: of the first PE. sets: each PE's rows, and where the first one's sums go.
    """

    def __init__(self, device: Device, graph: Graph, format: RowFormat) -> None:
        self._device, self._graph = device, graph
        self._problem = problem_of(device, graph, format.dtype.name, format.dim, None, edges_of(graph))
        self.x, self.destinations = self._problem.x, graph.nodes
        pairs = zip(self._problem.sources, self._problem.outputs, strict=True)
        self.sets: list[tuple[list[Rows], Any]] = [([rows], out) for rows, out in pairs]

    def plans(self, transfer: str) -> list[Plan]:
        """Return the plan of each PE."""
        return [gpu_alone.plan_of(self._problem.edges, transfer)]

    def backends(self, transfer: str, geometry: Geometry) -> tuple[World, list[DeviceBackend]]:
        """Return the world of PEs and the backend of each."""
        return World(1), [gpu_alone.backend_of(self._device, transfer, geometry)]


class TwoRanks(Ranks):
    """Two simulated PEs, the second of which owns the last ``share`` of the rows, in page-locked memory of the host.

    Raises InputError where no edge comes from there.
    """

    def __init__(self, device: Device, graph: Graph, format: RowFormat, share: float) -> None:
        self._device, self._graph, self._edges = device, graph, cut(graph, share)
        self.x = drawn_rows(graph, format)
        if not self._edges[0].remote_edges:
            raise InputError(f"--share {share:g}: no edge of {graph.name} comes from there; expected more")
        self.destinations = own = self._edges[0].destinations
        _, backends = self.backends("direct", DEFAULT_GEOMETRY)
        counts = np.array([own, graph.nodes - own])
        rows = [each.rows(counts, format, symmetric=True) for each in backends]
        for mine, part in zip(rows, (slice(0, own), slice(own, None)), strict=True):
            mine.local[:] = device.arrays.uploaded(self.x[part])
        self.sets: list[tuple[list[Rows], Any]] = [(rows, backends[0].memory.padded(own, format))]

    def plans(self, transfer: str) -> list[Plan]:
        """See Ranks."""
        if transfer != "halo":
            return [workload.direct(each, transfer) for each in self._edges]
        sums, owner = (plan for plan, _ in halo.of_all_ranks(self._edges, 1))
        return [sums, transfer_only(owner, edges=False)]

    def backends(self, transfer: str, geometry: Geometry) -> tuple[World, list[DeviceBackend]]:
        """See Ranks."""
        device, world, options = self._device, World(2), Options(geometry)
        made = [
            DeviceBackend(rank, world, options, device.module, device.arrays, table_memory=table)
            for rank, table in enumerate((device.arrays, device.slow["pinned"]))
        ]
        if transfer == "halo":
            made[0].share, made[1].share = 1 - OWNER_SHARE, OWNER_SHARE
        return world, made


class Runs:
    """A factory of runs. Those of one cut share plans on the GPU: a wpb changes nothing but the launch."""

    def __init__(self, device: Device, ranks: Ranks, format: RowFormat) -> None:
        self.device, self.ranks, self.format = device, ranks, format
        self._plans: dict[str, list[Plan]] = {}
        self._backends: dict[Cut, tuple[World, list[DeviceBackend]]] = {}

    def default(self, transfer: str) -> Setting:
        """Return the default knobs of a transfer."""
        knobs = gpu_alone.geometry_of(self.device, transfer, self.format)
        return Setting(transfer, knobs.ps, knobs.dist, knobs.wpb)

    def plans(self, setting: Setting) -> list[Plan]:
        """Return the plan of each PE, made at the first call."""
        if setting.transfer not in self._plans:
            self._plans[setting.transfer] = self.ranks.plans(setting.transfer)
        return self._plans[setting.transfer]

    def run(self, setting: Setting) -> Run:
        """Return a run that is ready to be timed. Raises InputError where the GPU cannot hold a block."""
        geometry, plans = Geometry(setting.ps, setting.dist, setting.wpb), self.plans(setting)
        if setting.cut not in self._backends:
            world, backends = self.ranks.backends(setting.transfer, geometry)
            for backend, plan in zip(backends, plans, strict=True):
                backend.prepare(plan, self.format)
            self._backends[setting.cut] = world, backends
        world, backends = self._backends[setting.cut]
        for backend in backends:
            backend.options = replace(backend.options, geometry=geometry)
        for backend, plan in zip(backends, plans, strict=True):
            backend.launch(plan, self.format)
        if world.size > 1:
            for backend, plan, rows in zip(backends, plans, self.ranks.sets[0][0], strict=True):
                backend.ready(plan, rows)

        def call(rows: Sequence[Rows], out: Any) -> None:
            sums = []
            for rank, (backend, plan) in enumerate(zip(backends, plans, strict=True)):
                backend.options = replace(backend.options, geometry=geometry)
                if rank == 0 or halo_schedule.crosses(plan):
                    to = out[: plan.destinations]
                    sums.append(partial(backend.aggregate, plan, "copy", "sum", rows[rank], to))
            if world.size > 1:
                self.device.together(world, sums)
            else:
                sums[0]()

        calls = [partial(call, rows, out) for rows, out in self.ranks.sets]
        return Run(setting, calls, self.ranks.sets[-1][1])

    def drop(self, kept: Collection[Cut]) -> None:
        """Release the plans on the GPU of all cuts but these."""
        self._backends = {cut: made for cut, made in self._backends.items() if cut in kept}


def runs_of(device: Device, graph: Graph, format: RowFormat, share: float) -> Runs:
    """Return the runs over one PE, or over two where a share of the rows is far away. Raises InputError as TwoRanks."""
    ranks = TwoRanks(device, graph, format, share) if share else Ranks(device, graph, format)
    return Runs(device, ranks, format)
