"""One rank of a job on its GPU: what training runs on.

NVSHMEM starts when it is known how much symmetric memory a job takes (`RankBackend.reserve`); a rank that is alone
needs none of it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import InputError
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ... import device, mpi
from ...device import GpuAssignment
from ...watchdog import Watchdog
from ..base import Options, Request, Rows
from ..simulated import World
from . import heap
from . import module as cuda_module
from .arrays import DTYPES
from .collectives import NcclSums, PeerSums, Sums
from .kernels import DeviceBackend, default_geometry
from .memory import Memory, TorchMemory
from .nvshmem import SIDE_BY_SIDE, Job

if TYPE_CHECKING:
    from mpi4py import MPI

OLDEST = 80  # compute capability, times ten
TOGETHER_SECONDS = 60.0  # for all ranks to start NVSHMEM together, or to end it

# cuBLAS gives the same bits each time if each of its streams has a workspace of its own. NVSHMEM would start NCCL, and
# bind multicast, for collectives that nothing here calls.
_SETTINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVSHMEM_DISABLE_NCCL": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

_jobs: list[Job] = []  # this process's, of which NVSHMEM allows one


def hardware() -> tuple[Any, Memory]:
    """The native module, and the memory of the GPU that it drives. Raises InputError where they are missing."""
    return cuda_module.load(), TorchMemory()


@dataclass(frozen=True)
class Gpu:
    """A rank's GPU, its native module and its memory. shared: whether any rank's is shared with others."""

    seat: GpuAssignment
    module: Any
    memory: Memory
    shared: bool


def take(comm: MPI.Intracomm, dtype: str, share: bool) -> Gpu:
    """A GPU for this rank. dtype: of rows. share: whether several ranks may drive one. Collective.

    Raises InputError, the same on all ranks, where some rank has none.
    """
    with mpi.agree(comm):
        if dtype not in DTYPES:
            raise InputError(f'train.dtype = "{dtype}" is for CPUs: GPU kernels take "float32" or "bfloat16"')
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        module, memory = hardware()
    seat = device.take(comm, module, share)
    with mpi.agree(comm), cuda_module.as_input_error():
        found = module.limits()
        if found["compute_capability"] < OLDEST:
            raise InputError(
                f"{found['name']} has compute capability {found['compute_capability'] / 10}, and kernels are built for "
                f"{OLDEST / 10} and newer"
            )
        memory.begin(seat.device)
    device.stay_near(comm, seat)
    return Gpu(seat, module, memory, max(comm.allgather(seat.ranks)) > 1)


def backend(comm: MPI.Intracomm, gpu: Gpu, request: Request) -> RankBackend:
    """The backend on it. Raises InputError for what the GPU cannot hold."""
    default = default_geometry(request.widest, cuda_module.limits_of(gpu.module))
    return RankBackend(comm, gpu, request.options(default))


@contextmanager
def _together(rank: int, what: str) -> Iterator[None]:
    """What all ranks do within NVSHMEM or NCCL: one that fails, or is gone, leaves the others in it."""
    with Watchdog(rank, TOGETHER_SECONDS) as watched:
        watched.step(what)
        yield


def _job(comm: MPI.Intracomm, gpu: Gpu, mapped: int) -> Job:
    """This process's job, which starts NVSHMEM the first time. Collective. Raises InputError where it cannot."""
    if not _jobs:
        here = comm.allgather(mpi.node(comm).Get_size())
        with mpi.agree(comm):
            if min(here) < max(here):
                raise InputError(
                    f"NVSHMEM needs as many ranks on each node, and nodes have {min(here)} to {max(here)} of them "
                    "(srun --ntasks-per-node)"
                )
        heap.announce(mapped)
        with _together(comm.Get_rank(), "starting NVSHMEM with all ranks"):
            _jobs.append(Job(comm, gpu.module, gpu.memory))
        atexit.register(_finish)  # before MPI ends, which has registered before
    return _jobs[0]


def _finish() -> None:
    job = _jobs.pop()
    with _together(job.rank, "ending NVSHMEM with all ranks"):
        job.finish()


class RankBackend(DeviceBackend):
    """See module. Kernels of ranks that share a GPU take turns, unless MPS runs."""

    timed = True

    def __init__(self, comm: MPI.Intracomm, gpu: Gpu, options: Options) -> None:
        super().__init__(comm.rank, World(comm.size), options, gpu.module, gpu.memory)
        self._gpu, self.seat, self.shared = gpu, gpu.seat, gpu.shared
        self.threads, self.share = options.threads, 1 / gpu.seat.ranks
        self._comm = comm
        self._job: Job | None = None
        self._sums: Sums | None = None

    @property
    def reaches_peers(self) -> bool:  # type: ignore[override]
        """See Backend; before NVSHMEM has started, what is likely."""
        if self._job is None:
            return mpi.node(self._comm).size == self.size
        return not self.has_gets

    @property
    def records(self) -> bool:  # type: ignore[override]
        """See Backend. Barriers between ranks of one GPU are the host's."""
        return not self.shared and self.device != "cpu"

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """See Backend.reserve; starts NVSHMEM at the first call."""
        if self.size == 1:
            return
        need = max(self._comm.allgather(nbytes))
        if self._job is not None:
            if need > self._job.memory.left:
                self._map(self._job, need, largest)
            return
        need += heap.SMALL
        mapped = heap.mapped_bytes(need, started=bool(_jobs))
        heap.check(self._comm, self.native, self.seat, mapped, largest)
        self._job = _job(self._comm, self._gpu, mapped)
        if self._job.shared_gpu == SIDE_BY_SIDE:
            self.share = 1.0  # each process sees its part of the GPU only
        self.join(self._job)
        # Whether pointers lead everywhere is known only now.
        more = heap.beside(need, self.limits, self.geometry) if self.has_gets else 0
        self._map(self._job, need + more, largest)

    def _map(self, job: Job, nbytes: int, largest: int) -> None:
        mapped = heap.mapped_bytes(nbytes, started=True)
        heap.check(self._comm, self.native, self.seat, mapped, largest)
        job.memory.reserve(nbytes)

    def free_bytes(self) -> int:
        """See Backend."""
        return super().free_bytes() // self.seat.ranks

    def reserved_bytes(self) -> int:
        """See Backend."""
        return self._job.memory.left if self._job else 0

    def rows(self, counts: Any, format: RowFormat, symmetric: bool) -> Rows:
        """See Backend.rows. Raises RuntimeError for symmetric rows that nobody has reserved memory for."""
        if symmetric and self.size > 1 and self._job is None:
            raise RuntimeError("symmetric rows before Backend.reserve")
        return super().rows(counts, format, symmetric)

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """See Backend.prepare. Raises InputError for `direct` where some rank's memory is out of reach."""
        if plan.transfer == "direct" and self.has_gets and any(self._comm.allgather(plan.remote_edges)):
            raise InputError(
                'plan.transfer is "direct", but some GPUs are out of reach of pointers (NVLink, PCIe peer access); '
                'use "halo", "get" or "auto"'
            )
        super().prepare(plan, widest)

    def sum_over_ranks(self, values: Any) -> None:
        """See Backend.sum_over_ranks: by NCCL where each rank has a GPU of its own, else over the symmetric heap."""
        if self.size == 1:
            return
        if self._sums is None:
            if self.records and NcclSums.available():
                self._sums = NcclSums(self._comm)
            else:
                self._sums = PeerSums(self)
        self._sums.add_up(values)

    def close(self) -> None:
        """See Backend.close. NVSHMEM ends with the process."""
        self.memory.finish()
        with _together(self.rank, "giving back symmetric memory with all ranks"):
            if self._sums is not None:
                self._sums.close()
            if self._job is not None:
                self._job.release()
        self._sums = self._job = None
