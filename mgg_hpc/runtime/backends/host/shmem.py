"""Ranks on any number of nodes: symmetric rows live in OpenSHMEM's heap.

Peers on this node are read by pointer; rows of others are fetched or sent by the transport.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.layout import RowFormat
from ... import cores, find_mpi, mpi
from ..arguments import Options, Rows
from ..base import Capabilities
from .components import HostMemory
from .kernels import HostBackend

INSTALL = "install it (Debian, Ubuntu: apt install openmpi-bin libopenmpi-dev)"

# Measured with Open MPI 4.1.4 and UCX 1.13, bytes of each rank. A heap is rounded up to whole huge pages and gets one
# more, each allocation in it some 100 bytes; three workers (the default context's and one for each channel of gets)
# have a queue in /dev/shm.
_PAGE = 2 << 20
_ALLOCATIONS = 1 << 20
_QUEUES = 3 * (4 << 20) + (1 << 20)

# UCX copies puts and gets over TCP through segments of 8 KiB, and reads 64 KiB at a time. Larger ones halve a
# put's cost in processor time, and each call of the library, of which computing ranks make few, moves more.
_SETTINGS = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k"}


@dataclass
class _Heap:
    """OpenSHMEM's heap on this rank, in bytes. A process has one; its size is 0 until OpenSHMEM starts, then fixed."""

    size: int = 0
    used: int = 0


_heap = _Heap()


def load() -> Any:
    """Return the native module. Raises InputError that names what is missing."""
    loaded = find_mpi.Library(sys.modules["mpi4py.MPI"].Get_library_version(), None)
    if loaded.family != "openmpi":  # another MPI in the same process would be the end of it
        raise InputError(
            f"run.backend: shmem uses Open MPI's OpenSHMEM, but Python loads {loaded.name}; "
            "start the job with mgg launch --mpi system, or name Open MPI's libmpi.so.40 in MPI4PY_LIBMPI"
        )
    try:
        from .... import _shmem
    except ImportError as error:
        built = list(Path(__file__).parents[3].glob("_shmem*.so"))
        reason = f"does not load ({error})" if built else "is not built: this machine had no OpenSHMEM"
        raise InputError(
            f"run.backend: shmem's native module mgg_hpc._shmem {reason}; {INSTALL} "
            "and install this package again"
        ) from error
    if loaded.major != find_mpi.Library(_shmem.version(), None).major:
        raise InputError(
            f"run.backend: shmem was built for {_shmem.version()}, but Python loads {loaded.name}; "
            "install this package again with the MPI that it shall run on"
        )
    return _shmem


class ShmemMemory(HostMemory):
    """OpenSHMEM's heap, for one rank of all that the launcher started; PE and rank are the same number."""

    grows = False

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        world = sys.modules["mpi4py.MPI"].COMM_WORLD
        if (comm.rank, comm.size) != (world.Get_rank(), world.Get_size()):
            raise InputError("run.backend: shmem is for all ranks of a job together")
        self._comm, self._shmem = comm, load()
        self._allocations: dict[int, int] = {}  # bytes, by address

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        # Starts OpenSHMEM, which takes the size of its heap then and once.
        need = int(self._comm.allreduce(nbytes, sys.modules["mpi4py.MPI"].MAX))
        if _heap.size:
            if need > _heap.size - _heap.used:
                raise InputError(
                    f"the symmetric heap of {_heap.size} bytes has {_heap.size - _heap.used} left and cannot grow, "
                    f"but {need} are needed; use a process of its own for this job, or where layers ask for rows "
                    "wider than before, open the graph with widest= of the widest, or more"
                )
            return
        size = -(-(need + _ALLOCATIONS) // _PAGE) * _PAGE
        with mpi.agree(self._comm):
            _check_room(mpi.node(self._comm), size)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._shmem.start(size)
        atexit.register(self._shmem.finish)  # runs before MPI's end, and ends MPI as well
        _heap.size = size - _ALLOCATIONS
        if (self._shmem.me(), self._shmem.size()) != (self.rank, self.size):
            raise RuntimeError(
                f"rank {self.rank} of {self.size} is PE {self._shmem.me()} of {self._shmem.size()}"
            )

    def symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        # Raises MemoryError where the rows need more than was reserved.
        nbytes = int(counts.max(initial=0)) * format.row_bytes
        if nbytes > _heap.size - _heap.used:
            raise MemoryError(
                f"{nbytes} bytes of symmetric rows, but {_heap.size - _heap.used} of the reserved {_heap.size} are left"
            )
        address = self._shmem.allocate(nbytes)
        self._allocations[address] = nbytes
        _heap.used += nbytes
        buffer = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        buffer[:] = 0
        mpi.barrier(self._comm)  # no rank writes here before that
        pointers = [self._shmem.pointer(address, pe) for pe in range(self.size)]
        return Rows(format, np.array(pointers, dtype=np.uint64), counts, buffer, self.rank, True)

    @property
    def transport_address(self) -> int:
        return int(self._shmem.transport_address())

    def publish(self, rows: Rows) -> None:
        # Gets from a rank that waits here make progress: MPI and OpenSHMEM share an engine.
        mpi.barrier(self._comm)

    def release(self, rows: Rows) -> None:
        address = int(rows.addresses[self.rank])
        super().release(rows)
        self._give_back(address)

    def close(self) -> None:
        super().close()
        for address in reversed(list(self._allocations)):
            self._give_back(address)

    def _give_back(self, address: int) -> None:
        _heap.used -= self._allocations.pop(address)
        self._shmem.release(address)


class ShmemBackend(HostBackend):
    """One rank of all that the launcher started."""

    def __init__(self, comm: Any, options: Options) -> None:
        # The node that holds all ranks is the node of each, so that all ranks get the same answer.
        capabilities = Capabilities("shmem", reaches_peers=mpi.node(comm).size == comm.size)
        super().__init__(ShmemMemory(comm), options, capabilities, comm)


def _check_room(node: Any, heap: int) -> None:
    """Refuse a heap that this node cannot hold for each of its ranks; collective over the node.

    UCX takes the heap from System V shared memory, which is limited by memory alone, and from /dev/shm only where
    the kernel's limit for one segment (kernel.shmmax) is lower.
    """
    try:
        limit = int(Path("/proc/sys/kernel/shmmax").read_text())
    except (OSError, ValueError):
        limit = 0
    room = heap + _PAGE + _QUEUES
    mpi.check_room(node, room, {mpi.MEMORY: cores.memory_available})
    mpi.check_room(node, _QUEUES if heap + _PAGE <= limit else room, {mpi.SHARED: mpi.free_shared})
