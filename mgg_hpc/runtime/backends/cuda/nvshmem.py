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
    """All ranks of a communicator as PEs of the same numbers. Construction is collective, and starts NVSHMEM.

    Only one can exist in a process.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        module: Any,
        memory: DeviceArrays,
        reaches: Callable[[int, int], bool] = all_reachable,
    ) -> None:
        """Start NVSHMEM.

        Args:
            memory: arrays of this rank's GPU.
            reaches: function (rank, peer): whether kernels of a rank may use pointers to memory of a peer.

        Raises:
            InputError: where NVSHMEM does not start, only on ranks where that fails, which ends the others.
        """
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._module, self._reaches, self._arrays = module, reaches, memory
        made = None
        with mpi.agree(comm), as_input_error():
            made = module.nvshmem_unique_id() if self.rank == 0 else None
        unique_id = comm.bcast(made)
        # Not within `agree`: where only some ranks fail, the others wait in NVSHMEM, and never reach an agreement.
        with as_input_error():
            status = module.nvshmem_start(unique_id, self.rank, self.size)
        self.shared_gpu = SHARED_GPU.get(status, "")
        self.memory = SymmetricMemory(module, memory, heap.grows(comm, module))
        probe = memory.address(self.memory.zeros(1))
        self.gets = not all(comm.allgather(bool(self.allocate(0, self.rank, probe, 1).all())))

    def allocate(self, number: int, rank: int, address: int, nbytes: int) -> NDArray[np.uint64]:
        """Return the addresses of all PEs' memory in this process, [P]; 0 where no pointer leads there."""
        seen = [
            self._module.nvshmem_pointer(address, pe) if self._reaches(self.rank, pe) else 0
            for pe in range(self.size)
        ]
        return np.array(seen, dtype=np.uint64)

    def barrier(self, stream: int) -> None:
        """Launch a barrier on a stream, after which everything that PEs wrote before can be read. Collective."""
        self._module.nvshmem_barrier(stream)

    def release(self) -> None:
        """Free all symmetric memory, which no array may use any more. Collective; waits for all PEs' kernels."""
        self.barrier(self._arrays.stream())
        self._arrays.finish()
        self.memory.release()

    def finish(self) -> None:
        """Free everything, and end NVSHMEM. Collective."""
        self.release()
        self._module.nvshmem_finish()


class SymmetricMemory:
    """Bytes on the symmetric heap as device arrays.

    Arrays are cut from a reserved block, or allocated one by one where it has no room, which is collective and raises
    InputError at the heap's limit.

    Attributes:
        grows: whether the heap can become larger than at the start.
        left: bytes of the block that are not cut yet.
        held: bytes of all blocks.
    """

    def __init__(self, module: Any, arrays: DeviceArrays, grows: bool) -> None:
        self._module, self._arrays, self.grows = module, arrays, grows
        self._blocks: list[int] = []
        self._next, self.left = 0, 0
        self.held = 0

    def reserve(self, nbytes: int) -> None:
        """Allocate a block for later arrays. Collective. Raises InputError where there is no room."""
        with as_input_error():
            self._next, self.left = self._allocate(nbytes), nbytes

    def zeros(self, nbytes: int) -> Any:
        """Return zeros, uint8 [nbytes]."""
        nbytes = max(nbytes, 1)  # an empty array has no address
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > self.left:
            return self._arrays.view(self._allocate(size), nbytes)
        address = self._next
        self._next, self.left = address + size, self.left - size
        return self._arrays.view(address, nbytes)

    def _allocate(self, nbytes: int) -> int:
        heap.check_limit(self.held + nbytes, self.grows)
        self._blocks.append(self._module.nvshmem_allocate(nbytes))
        self.held += nbytes
        return self._blocks[-1]

    def address(self, array: Any) -> int:
        """Return the address of an array."""
        return self._arrays.address(array)

    def release(self) -> None:
        """Free everything. Collective."""
        self._next, self.left, self.held = 0, 0, 0
        while self._blocks:
            self._module.nvshmem_release(self._blocks.pop())
