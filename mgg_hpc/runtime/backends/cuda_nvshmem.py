"""The PEs of a job, each a process with a GPU, and memory on NVSHMEM's symmetric heap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import ROW_ALIGNMENT
from .. import mpi
from .cuda_memory import Memory
from .world import everybody

if TYPE_CHECKING:
    from mpi4py import MPI

SIDE_BY_SIDE = "kernels run side by side (MPS)"
SHARED_GPU = {3: "kernels take turns", 4: SIDE_BY_SIDE}  # nvshmemx_init_status_t


@contextmanager
def _as_input_error() -> Iterator[None]:
    """What NVSHMEM says where it does not start is about the machine, and not about this program."""
    try:
        yield
    except RuntimeError as error:
        raise InputError(str(error)) from error


class Job:
    """All ranks of a communicator as PEs of the same numbers. Making it is collective, and starts NVSHMEM.

    memory: arrays on this rank's GPU. reaches(rank, peer): whether kernels of ``rank`` may use pointers to memory of
    ``peer`` where there are any. Only one job can run in a process at a time. Raises InputError, the same on all
    ranks, where NVSHMEM does not start.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        module: Any,
        memory: Memory,
        reaches: Callable[[int, int], bool] = everybody,
    ) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._module, self._reaches, self._of = module, reaches, memory
        self._held: list[int] = []
        made, status = None, 0
        with mpi.agree(comm), _as_input_error():
            made = module.nvshmem_unique_id() if self.rank == 0 else None
        unique_id = comm.bcast(made)
        with mpi.agree(comm), _as_input_error():
            status = module.nvshmem_start(unique_id, self.rank, self.size)
        self.shared_gpu = SHARED_GPU.get(status, "")
        self.memory = SymmetricMemory(module, memory, self._held)
        probe = memory.address(self.memory.zeros(1))
        reached = self._seen(probe).all()
        self.gets = not all(comm.allgather(bool(reached)))

    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        """Where this rank's kernels find all PEs' memory at this symmetric address, [P]; 0 where no pointer leads."""
        return self._seen(address)

    def _seen(self, address: int) -> NDArray[np.uint64]:
        seen = [
            self._module.nvshmem_pointer(address, pe) if self._reaches(self.rank, pe) else 0
            for pe in range(self.size)
        ]
        return np.array(seen, dtype=np.uint64)

    def barrier(self, stream: int) -> None:
        """On a stream: ends once all PEs have got there, and what they wrote before can be read. Collective."""
        self._module.nvshmem_barrier(stream)

    def release(self) -> None:
        """Give back all symmetric memory, which no array may use any more. Collective; waits for all PEs' kernels."""
        self.barrier(self._of.stream())
        self._of.finish()
        while self._held:
            self._module.nvshmem_release(self._held.pop())

    def finish(self) -> None:
        """Give everything back, and end NVSHMEM. Collective."""
        self.release()
        self._module.nvshmem_finish()


class SymmetricMemory:
    """Bytes on the symmetric heap, seen as arrays of another Memory: allocating is collective.

    held: where addresses are kept until all are given back.
    """

    def __init__(self, module: Any, of: Memory, held: list[int]) -> None:
        self._module, self._of, self._held = module, of, held

    def zeros(self, nbytes: int) -> Any:
        """See Memory; as many bytes on every rank, or a few more. Raises RuntimeError where the heap has no room."""
        size = max(nbytes, ROW_ALIGNMENT)  # an array of nothing has no address
        self._held.append(self._module.nvshmem_allocate(size))
        return self._of.view(self._held[-1], size)

    def address(self, array: Any) -> int:
        """See Memory."""
        return self._of.address(array)
