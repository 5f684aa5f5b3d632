"""The backend of one rank of a job on its GPU.

NVSHMEM starts once the size of a job's symmetric memory is known (`RankMemory.reserve`); a single rank needs none.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ... import device, mpi
from ...device import GpuAssignment
from ...watchdog import Limit, Watchdog
from ..arguments import Options, Rows
from ..simulated import World
from . import heap
from . import module as cuda_module
from .arrays import DTYPES
from .collectives import NcclSums, PeerSums
from .context import DeviceCollectives, DeviceMemory
from .device_arrays import DeviceArrays
from .kernels import DeviceBackend
from .launches import default_geometry
from .nvshmem import SIDE_BY_SIDE, NvshmemPeers

if TYPE_CHECKING:
    from mpi4py import MPI

OLDEST = 80  # compute capability, times ten
TOGETHER_SECONDS = 60.0  # limit for all ranks to start NVSHMEM together, or to end it

# cuBLAS is deterministic if each of its streams has a workspace of its own. NVSHMEM would start NCCL, and bind
# multicast, for collectives that nothing here calls.
_SETTINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVSHMEM_DISABLE_NCCL": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

_started: list[NvshmemPeers] = []  # at most one: NVSHMEM starts once in a process


def hardware() -> tuple[Any, DeviceArrays]:
    """Return the native module, and the arrays of the GPU that it drives. Raises InputError where they are missing."""
    return cuda_module.load(), DeviceArrays()


@dataclass(frozen=True)
class Gpu:
    """A rank's GPU, its native module and its arrays. shared: whether any ranks share a GPU."""

    assignment: GpuAssignment
    module: Any
    arrays: DeviceArrays
    shared: bool


def take(comm: MPI.Intracomm, dtype: str, share: bool) -> Gpu:
    """Assign a GPU to this rank. dtype: of rows. share: whether several ranks may use one. Collective.

    Raises InputError, the same on all ranks, where some rank gets none.
    """
    with mpi.agree(comm):
        if dtype not in DTYPES:
            raise InputError(f'train.dtype = "{dtype}" is for CPUs: GPU kernels take "float32" or "bfloat16"')
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        module, arrays = hardware()
    assignment = device.take(comm, module, share)
    with mpi.agree(comm), cuda_module.as_input_error():
        found = module.limits()
        if found["compute_capability"] < OLDEST:
            raise InputError(
                f"{found['name']} has compute capability {found['compute_capability'] / 10}, and kernels are built for "
                f"{OLDEST / 10} and newer"
            )
        arrays.begin(assignment.device)
    device.stay_near(comm, assignment)
    return Gpu(assignment, module, arrays, max(comm.allgather(assignment.ranks)) > 1)


def backend(
    comm: MPI.Intracomm, gpu: Gpu, threads: int, widest: RowFormat, searches: bool, knobs: dict[str, int]
) -> RankBackend:
    """Return the backend on a rank's GPU. Arguments as for `backends.make`. Collective.

    The default of ps is the least over all ranks' GPUs, so that searches take the same steps on all ranks. Raises
    InputError where the GPU cannot hold rows of the widest format.
    """
    with mpi.agree(comm):
        mine = default_geometry(widest, cuda_module.limits_of(gpu.module))
    default = replace(mine, ps=min(comm.allgather(mine.ps)))
    return RankBackend(comm, gpu, Options(replace(default, **knobs), threads, searches))


@contextmanager
def _together(rank: int, what: str) -> Iterator[None]:
    """Limit the time of a collective step within NVSHMEM or NCCL, where a rank that fails leaves the others waiting."""
    with Watchdog(rank, Limit(TOGETHER_SECONDS)) as watched:
        watched.step(what)
        yield


def _peers(comm: MPI.Intracomm, gpu: Gpu, mapped: int) -> NvshmemPeers:
    """Return all ranks as PEs; starts NVSHMEM the first time. Collective. Raises InputError where that fails."""
    if not _started:
        here = comm.allgather(mpi.node(comm).Get_size())
        with mpi.agree(comm):
            if min(here) < max(here):
                raise InputError(
                    f"NVSHMEM needs as many ranks on each node, and nodes have {min(here)} to {max(here)} of them "
                    "(srun --ntasks-per-node)"
                )
        heap.set_sizes(mapped)
        with _together(comm.Get_rank(), "starting NVSHMEM with all ranks"):
            _started.append(NvshmemPeers(comm, gpu.module, gpu.arrays))
        atexit.register(_finish)  # before MPI ends, which has registered before
    return _started[0]


def _finish() -> None:
    peers = _started.pop()
    with _together(peers.rank, "ending NVSHMEM with all ranks"):
        peers.finish()


class RankBackend(DeviceBackend):
    """One rank of a job on one GPU. Kernels of ranks that share a GPU take turns, unless MPS runs.

    peers: all ranks, once NVSHMEM has started. sums: how gradients are summed, from the first sum on.
    """

    timed = True

    def __init__(self, comm: MPI.Intracomm, gpu: Gpu, options: Options) -> None:
        super().__init__(comm.rank, World(comm.size), options, gpu.module, gpu.arrays)
        self.comm, self.gpu = comm, gpu
        self.share, self.alone = 1 / gpu.assignment.ranks, gpu.assignment.ranks == 1
        self.peers: NvshmemPeers | None = None
        self.sums: NcclSums | PeerSums | None = None
        self._warned = False
        self._stream.records = self.records

    @property
    def spans_nodes(self) -> bool:
        """Whether some ranks are on other nodes than others."""
        return mpi.node(self.comm).size < self.size

    @property
    def reaches_peers(self) -> bool:  # type: ignore[override]
        """Whether pointers lead to all peers; before NVSHMEM has started, a guess."""
        return not (self.spans_nodes if self.peers is None else self.has_gets)

    @property
    def records(self) -> bool:
        """Whether launches can be recorded: not if ranks share a GPU, as the host then makes them wait."""
        return not self.gpu.shared and self.device != "cpu"

    @property
    def memory(self) -> RankMemory:
        return RankMemory(self)

    @property
    def collectives(self) -> RankCollectives:
        return RankCollectives(self)

    def rows(self, counts: Any, format: RowFormat, symmetric: bool) -> Rows:
        # Raises RuntimeError for symmetric rows before memory is reserved.
        if symmetric and self.size > 1 and self.peers is None:
            raise RuntimeError("symmetric rows before Memory.reserve")
        return super().rows(counts, format, symmetric)

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        # Raises InputError for `direct` where some rank's memory is out of reach.
        if plan.transfer == "direct" and self.has_gets and any(self.comm.allgather(plan.remote_edges)):
            raise InputError(
                'plan.transfer is "direct", but some GPUs are out of reach of pointers (NVLink, PCIe peer access); '
                'use "halo", "get" or "auto"'
            )
        by_proxy = (
            plan.transfer == "get" and self.has_gets and self.spans_nodes and not heap.is_on(heap.IBGDA)
        )
        if by_proxy and self.rank == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f'plan.transfer is "get" over several nodes without {heap.IBGDA}=1: a thread of the host sends each '
                'row\'s request; set it where the network has InfiniBand GPUDirect Async, or use "halo"',
                stacklevel=2,
            )
        super().prepare(plan, widest)


class RankMemory(DeviceMemory):
    """Memory of a rank's GPU, and NVSHMEM's heap."""

    def __init__(self, backend: RankBackend) -> None:
        super().__init__(backend)
        self._backend = backend

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        # Starts NVSHMEM at the first call.
        backend = self._backend
        if backend.size == 1:
            return
        need = max(backend.comm.allgather(nbytes))
        if backend.peers is not None:
            if need > backend.peers.memory.left:
                self._map(backend.peers, need, largest)
            return
        need += heap.SMALL
        # Whether pointers lead everywhere is known only once NVSHMEM runs, and then a heap that does not grow has its
        # size.
        over_network = need + heap.network_bytes(need, backend.limits, backend.largest)
        growing = heap.grows(backend.comm, backend.native)
        most = over_network if backend.spans_nodes or not growing else need
        mapped = heap.mapped_bytes(most, started=bool(_started))
        heap.check(backend.comm, backend.native, backend.gpu.assignment, mapped, largest)
        backend.peers = _peers(backend.comm, backend.gpu, mapped)
        if backend.peers.shared_gpu == SIDE_BY_SIDE:
            backend.share = 1.0  # each process sees its part of the GPU only
        backend.join(backend.peers)
        self._map(backend.peers, over_network if backend.has_gets else need, largest)

    def overhead(self, nbytes: int) -> int:
        # Before NVSHMEM has started, a guess.
        backend = self._backend
        if backend.size == 1:
            return 0
        if backend.reaches_peers:
            return heap.SMALL
        return heap.SMALL + heap.network_bytes(nbytes + heap.SMALL, backend.limits, backend.largest)

    def _map(self, peers: NvshmemPeers, nbytes: int, largest: int) -> None:
        backend, mapped = self._backend, heap.mapped_bytes(nbytes, started=True)
        if peers.memory.grows:  # else the heap has all of its memory already
            heap.check(backend.comm, backend.native, backend.gpu.assignment, mapped, largest)
        with mpi.agree(backend.comm):
            heap.check_limit(peers.memory.held + nbytes, peers.memory.grows)
        peers.memory.reserve(nbytes)

    def reserved(self) -> int:
        return self._backend.peers.memory.left if self._backend.peers else 0

    def free(self) -> int:
        return super().free() // self._backend.gpu.assignment.ranks

    def close(self) -> None:
        # NVSHMEM itself ends with the process.
        backend = self._backend
        backend.stream.finish()
        with _together(backend.rank, "giving back symmetric memory with all ranks"):
            if backend.sums is not None:
                backend.sums.close()
            if backend.peers is not None:
                backend.peers.release()
        backend.sums = backend.peers = None


class RankCollectives(DeviceCollectives):
    """Collective operations of all ranks of a job: on the GPUs, or by MPI on the host."""

    def __init__(self, backend: RankBackend) -> None:
        super().__init__(backend.rank, backend.size)
        self._backend, self.comm = backend, backend.comm

    def sum(self, values: Any) -> None:
        # By NCCL where each rank has a GPU of its own, else over the symmetric heap.
        backend = self._backend
        if backend.size == 1:
            return
        if backend.sums is None:
            by_nccl = backend.records and NcclSums.available()
            backend.sums = NcclSums(backend.comm) if by_nccl else PeerSums(backend)
        backend.sums.add_up(values)

    def least(self, mine: int) -> int:
        return mpi.least(self.comm, mine)

    def sum_on_host(self, values: NDArray[np.float64]) -> None:
        mpi.sum_in_rank_order(self.comm, values)
