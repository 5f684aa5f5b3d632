"""The PEs of a job, each a process with a GPU, and memory on NVSHMEM's symmetric heap."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import mpi
from ..simulated import Peers, all_reachable
from . import heap
from .device_arrays import DeviceArrays
from .module import as_input_error

if TYPE_CHECKING:
    from mpi4py import MPI

ALIGNMENT = 512  # bytes; NVSHMEM's own
SIDE_BY_SIDE = "kernels run side by side (MPS)"
SHARED_GPU = {3: "kernels take turns", 4: SIDE_BY_SIDE}  # nvshmemx_init_status_t


class NvshmemPeers(Peers):
    """All ranks of a communicator as PEs of the same numbers. Making it is collective, and starts NVSHMEM.

    memory: arrays on this rank's GPU. reaches(rank, peer): whether kernels of ``rank`` may use pointers to memory of
    ``peer`` where there are any. Only one can exist in a process at a time. Raises InputError where NVSHMEM does
    not start: on the ranks where it fails, which ends the others.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        module: Any,
        memory: DeviceArrays,
        reaches: Callable[[int, int], bool] = all_reachable,
    ) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._module, self._reaches, self._of = module, reaches, memory
        made = None
        with mpi.agree(comm), as_input_error():
            made = module.nvshmem_unique_id() if self.rank == 0 else None
        unique_id = comm.bcast(made)
        # Not within `agree`: where only some ranks fail, the others wait for them in here, and not for their word.
        with as_input_error():
            status = module.nvshmem_start(unique_id, self.rank, self.size)
        self.shared_gpu = SHARED_GPU.get(status, "")
        self.memory = SymmetricMemory(module, memory, heap.grows(comm, module))
        probe = memory.address(self.memory.zeros(1))
        reached = self._seen(probe).all()
        self.gets = not all(comm.allgather(bool(reached)))

    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        """Return where this rank's kernels find all PEs' memory at this address, [P]; 0 where no pointer leads."""
        return self._seen(address)

    def _seen(self, address: int) -> NDArray[np.uint64]:
        seen = [
            self._module.nvshmem_pointer(address, pe) if self._reaches(self.rank, pe) else 0
            for pe in range(self.size)
        ]
        return np.array(seen, dtype=np.uint64)

    def barrier(self, stream: int) -> None:
        """Launch a barrier on a stream, behind which what all PEs wrote before can be read. Collective."""
        self._module.nvshmem_barrier(stream)

    def release(self) -> None:
        """Free all symmetric memory, which no array may use any more. Collective; waits for all PEs' kernels."""
        self.barrier(self._of.stream())
        self._of.finish()
        self.memory.release()

    def finish(self) -> None:
        """Free everything, and end NVSHMEM. Collective."""
        self.release()
        self._module.nvshmem_finish()


class SymmetricMemory:
    """Bytes on the symmetric heap, seen as device arrays.

    Arrays are cut from a block that was reserved, or allocated one by one where it has no room: collective then, and
    InputError where the heap may have no more. grows: whether it can become larger than at the start. left: bytes of
    the block that are not cut yet. held: bytes of all blocks.
    """

    def __init__(self, module: Any, of: DeviceArrays, grows: bool) -> None:
        self._module, self._of, self.grows = module, of, grows
        self._blocks: list[int] = []
        self._next, self.left = 0, 0
        self.held = 0

    def reserve(self, nbytes: int) -> None:
        """Allocate a block, from which arrays are cut from now on. Collective.

        Raises InputError where there is no room.
        """
        with as_input_error():
            self._next, self.left = self._allocate(nbytes), nbytes

    def zeros(self, nbytes: int) -> Any:
        nbytes = max(nbytes, 1)  # an array of nothing has no address
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > self.left:
            return self._of.view(self._allocate(size), nbytes)
        at = self._next
        self._next, self.left = at + size, self.left - size
        return self._of.view(at, nbytes)

    def _allocate(self, nbytes: int) -> int:
        heap.need_room(self.held + nbytes, self.grows)
        self._blocks.append(self._module.nvshmem_allocate(nbytes))
        self.held += nbytes
        return self._blocks[-1]

    def address(self, array: Any) -> int:
        return self._of.address(array)

    def release(self) -> None:
        """Free everything. Collective."""
        self._next, self.left, self.held = 0, 0, 0
        while self._blocks:
            self._module.nvshmem_release(self._blocks.pop())
