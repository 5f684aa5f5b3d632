"""Memory shared by all ranks of a node: the symmetric heap of one node."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from . import cores

if TYPE_CHECKING:
    from mpi4py import MPI

ALIGNMENT = 64  # bytes of a cache line, and of the widest vector register
_SHARED_FOLDER = "/dev/shm"  # folder of every MPI's segments on Linux

# Names of resources in error messages.
SHARED, MEMORY = f"free space of {_SHARED_FOLDER}", "available memory"


class SharedWindow:
    """Shared memory of equal size on each rank of a node, which all of them read and write through pointers.

    Collective over ``node`` (a communicator of one node) to make and to free. The bytes start as zero.
    Views made from it (`buffer`, or torch tensors over `address`) dangle once it is freed.

    one: make a single block of ``nbytes`` for the whole node, which every rank maps, instead of one for each rank. Its
    address and its buffer are the same for any rank. A page of it lies near the rank that writes it first.
    """

    def __init__(self, node: MPI.Intracomm, nbytes: int, *, one: bool = False) -> None:
        from mpi4py import MPI

        if nbytes < 0:
            raise ValueError(f"a window of {nbytes} bytes")
        self.node = node
        self.nbytes = nbytes
        # One more line than asked for: each rank's start is rounded up to a line (MPI promises less), and
        # no segment is empty, which some MPI libraries map nowhere.
        room = -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        places = {SHARED: free_shared, MEMORY: cores.memory_available}
        check_room(node, room, places, blocks=1 if one else node.Get_size())
        if one and node.Get_rank() > 0:
            room = ALIGNMENT
        info = MPI.Info.Create()
        info.Set("alloc_shared_noncontig", "true")  # separate pages for each rank, in memory near it
        try:
            window = MPI.Win.Allocate_shared(room, 1, info, node)
        except MPI.Exception as error:
            raise InputError(
                f"MPI cannot share {_size(room)} on rank {node.Get_rank()} of {node.Get_size()} "
                f"({error.Get_error_string()}): is {_SHARED_FOLDER} large enough?"
            ) from error
        finally:
            info.Free()
        self._window: MPI.Win | None = window
        window.Lock_all(MPI.MODE_NOCHECK)
        # Pages are mapped whole, so a start is rounded alike in every process.
        owners = [0 if one else rank for rank in range(node.Get_size())]
        starts = (window.Shared_query(rank)[0].address for rank in owners)
        self._addresses = [-(-start // ALIGNMENT) * ALIGNMENT for start in starts]
        if node.Get_size() == 1:
            self.buffer(0)[:] = 0  # a lone rank may get plain, used memory; shared pages are new and zero
        self.sync()
        node.Barrier()  # no rank reads before the pages of all ranks exist

    def address(self, rank: int) -> int:
        """Return the address in this process of the bytes of ``rank`` (of the node)."""
        if self._window is None:
            raise ValueError("the window has been freed")
        return self._addresses[rank]

    def buffer(self, rank: int) -> np.ndarray:
        """Return the bytes of ``rank`` as a uint8 array, without a copy."""
        from mpi4py import MPI

        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.asarray(MPI.buffer.fromaddress(self.address(rank), self.nbytes))

    def sync(self) -> None:
        """Order this rank's loads and stores before and after; with a barrier, writes become readable."""
        if self._window is None:
            raise ValueError("the window has been freed")
        self._window.Sync()

    def free(self) -> None:
        """Free the memory. Collective."""
        if self._window is not None:
            window, self._window = self._window, None
            window.Unlock_all()
            window.Free()


def check_room(
    node: MPI.Intracomm, room: int, places: dict[str, Callable[[], int]], blocks: int | None = None
) -> None:
    """Raise InputError on all ranks of a node if a segment does not fit, which would kill them at first touch.

    room: bytes of a block. places: for each resource that is needed, a function that returns its free bytes.
    blocks: number of blocks on the node. [default: one for each rank]
    """
    refusal = None
    if node.Get_rank() == 0:
        blocks = node.Get_size() if blocks is None else blocks
        total = room * blocks
        left = {name: measure() for name, measure in places.items()}
        name, free = min(left.items(), key=lambda place: place[1])
        if total > free:
            refusal = (
                f"the {node.Get_size()} ranks of this node need {_size(total)} of shared memory "
                f"({f'{_size(room)} each' if blocks > 1 else 'together'}), but the {name} is {_size(free)}: "
                "use more nodes, a smaller graph or narrower layers, or give the machine more"
            )
    refusal = node.bcast(refusal, root=0)
    if refusal is not None:
        raise InputError(refusal)


def free_shared() -> int:
    """Return the free bytes of /dev/shm."""
    try:
        state = os.statvfs(_SHARED_FOLDER)
    except OSError:
        return 2**63  # this system shares memory elsewhere; the memory check remains
    return state.f_bavail * state.f_frsize


def _size(nbytes: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} bytes" if unit == "bytes" else f"{nbytes:.1f} {unit}"
