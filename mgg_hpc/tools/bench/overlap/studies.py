"""Schedules that MGG's are compared with on GPUs (OSDI '23, section 7.2; arXiv, section 2).

Their kernels are in cuda/bench/studies.cu: sums of float32 rows that pointers reach; and in cuda/bench/scopes.cu: of
rows that NVSHMEM's calls bring. A call of "bulk" has a second, small launch, which gives the credits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan import launch
from ....plan.halo_schedule import HaloSchedule
from ....plan.launch import Launch
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ....runtime.backends.arguments import Options
from ....runtime.backends.cuda.device_arrays import DeviceArrays, TorchArrays
from ....runtime.backends.cuda.kernels import DeviceBackend
from ....runtime.backends.simulated import Peers
from . import ring

LEVELS = {"thread": 1, "block": 256}  # lanes that get a row together; a warp takes as many as the row needs
SCOPES = {"thread": 32, "warp": 32, "block": 256}  # lanes of a worker (cuda/bench/scopes.h)


@dataclass(frozen=True)
class Ablation:
    """The differences of a schedule from MGG's; the defaults are MGG's.

    partition: split destinations of many edges into neighbour partitions. interleave: get remote rows `dist` stages
    ahead, or when they are needed. level: the unit that gets a row, a "thread", a "warp" or a "block". bulk: sum
    nothing before all of a halo has arrived. ring: rows come as whole partitions, passed on from rank to rank
    (`ring.ring`). scope: the threads that make each call of the transport, a "thread", a "warp" or a "block", for
    rows that no pointer reaches; "" where one lane of a worker gets all of its rows.
    """

    partition: bool = True
    interleave: bool = True
    level: str = "warp"
    bulk: bool = False
    ring: bool = False
    scope: str = ""


class Unreached:
    """The ranks of a job, to whose memory no pointer is to lead: NVSHMEM's calls move all rows (`Peers`).

    peers: the same ranks, with pointers where there are any.
    """

    gets = True

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.size, self.memory = peers.size, peers.memory

    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        """See Peers."""
        return only_own(self._peers.allocate(number, rank, address, nbytes), rank)

    def barrier(self, stream: int) -> None:
        """See Peers."""
        self._peers.barrier(stream)


def only_own(addresses: NDArray[np.uint64], rank: int) -> NDArray[np.uint64]:
    """Return the addresses of rows, [P], without those of other ranks."""
    found = np.zeros_like(addresses)
    found[rank] = addresses[rank]
    return found


def native(module: Any) -> Any:
    """Return the native module of these kernels. The tests' shim has them in ``module`` itself.

    Raises InputError where it is not built or does not load.
    """
    if hasattr(module, "studies"):
        return module.studies
    try:
        from .... import _cuda_studies
    except ImportError as error:
        raise InputError(
            f"the native module mgg_hpc._cuda_studies does not load ({error}); build it with mgg_hpc._cuda (make cuda)"
        ) from error
    return _cuda_studies


class AblationModule:
    """A native module whose plans run the kernels of an ablation."""

    def __init__(self, module: Any, memory: DeviceArrays, ablation: Ablation) -> None:
        self._module, self._ablation, self._studies = module, ablation, native(module)
        self._plan = _plan_class(module, self._studies, memory, ablation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Plan(  # noqa: N802
        self, chunks: Any, segments: Any, indices: Any, destinations: int, part_edges: int, rank: int
    ) -> Any:
        """Return a plan in device memory; see the module's."""
        if not self._ablation.partition:
            part_edges = np.iinfo(np.int32).max
        return self._plan(chunks, segments, indices, destinations, part_edges, rank)

    def Halo(  # noqa: N802
        self,
        pushers: int,
        claim: int,
        fixed: int,
        slots: int,
        alone: bool,
        blocks: int,
        pushes: int,
        arrivals: int,
        holds: bool,
    ) -> Any:
        """Return the native halo; see the module's. A kernel that holds arrived rows sums after all have arrived."""
        holds = holds or self._ablation.bulk
        return self._module.Halo(pushers, claim, fixed, slots, alone, blocks, pushes, arrivals, holds)

    def occupancy_float32(
        self, transfer: str, max: bool, far: bool, lanes: int, packs: int, threads: int, shared_bytes: int
    ) -> Any:
        """Return the resources that a kernel takes; see the module's."""
        if transfer == "get" and self._ablation.scope:
            return self._module.scoped_get_occupancy(self._ablation.scope, threads, shared_bytes)
        if transfer == "get" and _changes_gets(self._ablation):
            late = not self._ablation.interleave
            return self._studies.get_occupancy(late, lanes, packs, threads, shared_bytes)
        if transfer == "halo" and self._ablation.ring:
            return self._studies.ring_occupancy(lanes, packs, threads, shared_bytes)
        return self._module.occupancy_float32(transfer, max, far, lanes, packs, threads, shared_bytes)


def _changes_gets(ablation: Ablation) -> bool:
    return not ablation.interleave or ablation.level != "warp"


def _plan_class(module: Any, studies: Any, memory: DeviceArrays, ablation: Ablation) -> Any:
    base: Any = module.Plan

    class AblationPlan(base):
        """A plan in device memory. own_rows: of this rank, where rows are passed on."""

        own_rows = 0

        def get_float32(self, rows: Any, total: Any, get: Any, launch: Any) -> None:
            if ablation.scope:
                module.scoped_get(self, rows, total, get, ablation.scope, launch)
            elif _changes_gets(ablation):
                studies.get(self, rows, total, get, not ablation.interleave, launch)
            else:
                super().get_float32(rows, total, get, launch)

        def halo_float32(
            self, rows: int, dim: int, total: Any, exchange: Any, schedule: Any, halo: Any, launch: Any
        ) -> None:
            if ablation.ring:
                studies.ring(self, rows, dim, total, exchange, schedule, halo, self.own_rows, launch)
            else:
                super().halo_float32(rows, dim, total, exchange, schedule, halo, launch)
            if ablation.bulk:  # a kernel that holds what has arrived gives no credits
                exchange.let_go(schedule, module.LaunchShape(1, 1, 1, 32, 0, memory.stream()))

    return AblationPlan


class AblationBackend(DeviceBackend):
    """A rank of a GPU's backend that sums float32 rows by another schedule than MGG's."""

    def __init__(
        self,
        rank: int,
        world: Peers,
        options: Options,
        module: Any,
        memory: DeviceArrays,
        ablation: Ablation,
        table_memory: DeviceArrays | None = None,
    ) -> None:
        self.ablation = ablation
        super().__init__(rank, world, options, AblationModule(module, memory, ablation), memory, table_memory)

    def native_plan(self, plan: Plan) -> Any:
        """Return the plan on the GPU, made once."""
        made = super().native_plan(plan)
        if isinstance(plan, ring.RingPlan):
            made.own_rows = int(plan.bounds[plan.rank + 1] - plan.bounds[plan.rank])
        return made

    def in_chunks(self, plan: Plan, rows: int, fewest: int) -> HaloSchedule:
        """Return the rows that cross in a call; see `halo_schedule.in_chunks`."""
        if isinstance(plan, ring.RingPlan):
            return ring.in_chunks(plan, rows, fewest)
        return super().in_chunks(plan, rows, fewest)

    def sized(self, transfer: str, local: int, remote: int, format: RowFormat) -> Launch:
        """Return the launch of a transfer, for gets by the ablation's scope or level."""
        level, scope = self.ablation.level, self.ablation.scope
        if transfer != "get" or (level == "warp" and not scope):
            return super().sized(transfer, local, remote, format)
        lanes, wpb = SCOPES[scope] if scope else LEVELS[level], self.geometry.wpb
        knobs = {"ps": self.geometry.ps, "dist": self.geometry.dist, "wpb": wpb}
        threads = lanes if lanes > launch.LANES else launch.LANES * wpb
        return launch.staged(local, remote, format, (lanes, 1), threads, **knobs, limits=self.limits)


class ManagedArrays(TorchArrays):
    """Tensors whose pages move to the processor that touches them (CUDA's unified memory). module: see `native`."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._module = module
        self._blocks: dict[int, Any] = {}

    def zeros(self, nbytes: int) -> Any:
        """See DeviceArrays."""
        block = self._module.Managed(nbytes)
        made = self.view(block.address, nbytes)
        self._blocks[made.data_ptr()] = block
        return made

    def to_host(self, array: Any) -> None:
        """Move the pages of a whole array to the host, and wait."""
        self._blocks[array.data_ptr()].to_host(array.numel() * array.element_size())
