"""Schedules that MGG's are compared with on GPUs (OSDI '23, section 7.2; arXiv, section 2).

Their kernels are in cuda/bench/studies.cu: sums of float32 rows that pointers reach. A call of "bulk" has a second,
small launch, which gives the credits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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


@dataclass(frozen=True)
class Ablation:
    """The differences of a schedule from MGG's; the defaults are MGG's.

    partition: split destinations of many edges into neighbour partitions. interleave: get remote rows `dist` stages
    ahead, or when they are needed. level: the unit that gets a row, a "thread", a "warp" or a "block". bulk: sum
    nothing before all of a halo has arrived. ring: rows come as whole partitions, passed on from rank to rank
    (`ring.ring`).
    """

    partition: bool = True
    interleave: bool = True
    level: str = "warp"
    bulk: bool = False
    ring: bool = False


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


class StudyModule:
    """A native module whose plans run the kernels of an ablation."""

    def __init__(self, module: Any, memory: DeviceArrays, ablation: Ablation) -> None:
        self._module, self._ablation, self._studies = module, ablation, native(module)
        self._plan = _plan_class(module, self._studies, memory, ablation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Plan(self, *arguments: Any) -> Any:  # noqa: N802
        """Return a plan in device memory; see the module's."""
        if not self._ablation.partition:
            *most, _, rank = arguments
            arguments = (*most, np.iinfo(np.int32).max, rank)  # edges of a part
        return self._plan(*arguments)

    def Halo(self, *arguments: Any) -> Any:  # noqa: N802
        """Return the native halo; see the module's. A kernel that holds arrived rows sums after all have arrived."""
        *most, holds = arguments
        return self._module.Halo(*most, holds or self._ablation.bulk)

    def occupancy_float32(self, transfer: str, *kernel: Any) -> Any:
        """Return the resources that a kernel takes; see the module's."""
        _max, _far, *sizes = kernel
        if transfer == "get" and _changes_gets(self._ablation):
            return self._studies.get_occupancy(not self._ablation.interleave, *sizes)
        if transfer == "halo" and self._ablation.ring:
            return self._studies.ring_occupancy(*sizes)
        return self._module.occupancy_float32(transfer, *kernel)


def _changes_gets(ablation: Ablation) -> bool:
    return not ablation.interleave or ablation.level != "warp"


def _plan_class(module: Any, studies: Any, memory: DeviceArrays, ablation: Ablation) -> Any:
    base: Any = module.Plan

    class StudyPlan(base):
        """A plan in device memory. own_rows: of this rank, where rows are passed on."""

        own_rows = 0

        def get_float32(self, rows: Any, total: Any, get: Any, geometry: Any) -> None:
            if _changes_gets(ablation):
                studies.get(self, rows, total, get, not ablation.interleave, geometry)
            else:
                super().get_float32(rows, total, get, geometry)

        def halo_float32(self, *call: Any) -> None:
            *most, geometry = call
            if ablation.ring:
                studies.ring(self, *most, self.own_rows, geometry)
            else:
                super().halo_float32(*call)
            if ablation.bulk:  # a kernel that holds what has arrived gives no credits
                exchange, schedule = most[3], most[4]
                exchange.let_go(schedule, module.LaunchShape(1, 1, 1, 32, 0, memory.stream()))

    return StudyPlan


class StudyBackend(DeviceBackend):
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
        super().__init__(rank, world, options, StudyModule(module, memory, ablation), memory, table_memory)

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
        """Return the launch of a transfer, for gets by the ablation's level."""
        level = self.ablation.level
        if transfer != "get" or level == "warp":
            return super().sized(transfer, local, remote, format)
        lanes, wpb = LEVELS[level], self.geometry.wpb
        knobs = {"ps": self.geometry.ps, "dist": self.geometry.dist, "wpb": wpb}
        threads = lanes if level == "block" else launch.LANES * wpb
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
