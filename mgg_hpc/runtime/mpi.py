"""The ranks of a job: start MPI, agree on errors, wait, compute reproducible sums, and share memory on a node.

Nothing here imports torch, and importing this module does not start MPI; `world` does.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import sizes
from ..errors import InputError
from . import cores, exit_code, find_mpi
from .exit_code import RANKS, FailedElsewhere

if TYPE_CHECKING:
    from mpi4py import MPI

# Variables in which process managers store the number of ranks. The first one found counts, because an outer
# manager's variables reach the ranks of an inner one.
_SIZE_VARIABLES = (RANKS, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

_LONGEST_NAP = 1e-3  # seconds; of a rank that waits while ranks outnumber cores

ALIGNMENT = 64  # bytes of a cache line, and of the widest vector register
_SHARED_FOLDER = "/dev/shm"  # folder of every MPI's shared memory on Linux

# Names of resources in error messages.
SHARED, MEMORY = f"free space of {_SHARED_FOLDER}", "available memory"

_keyvals: dict[str, int] = {}


def world() -> MPI.Intracomm:
    """Start MPI (once) and return the communicator of all ranks.

    Every rank checks that the launcher started as many ranks as the communicator has. From here on an uncaught
    exception on any rank ends all of them.
    """
    mpi = _load()
    library = " ".join(mpi.Get_library_version().partition(",")[0].split()[:4])
    if not mpi.Is_initialized():
        promised = os.environ.get("OMPI_COMM_WORLD_SIZE")
        if promised and library.startswith("MPICH"):  # Open MPI's launcher would end it while it starts
            raise InputError(_mismatch(promised, "OMPI_COMM_WORLD_SIZE", 1, library))
        for name, value in find_mpi.Library(mpi.Get_library_version(), None).settings.items():
            os.environ.setdefault(name, value)  # read when MPI starts
        mpi.Init_thread(mpi.THREAD_SERIALIZED)  # one thread at a time calls MPI; cheaper than MULTIPLE
        atexit.register(lambda: mpi.Is_finalized() or mpi.Finalize())
    comm = mpi.COMM_WORLD
    exit_code.join(comm)
    _check_size(comm.Get_size(), library)
    return comm


def launched() -> bool:
    """Return whether a launcher has started this process as one of its ranks. MPI need not run."""
    return any(os.environ.get(name, "").strip() for name in _SIZE_VARIABLES)


def _load() -> Any:
    """Return the module mpi4py.MPI, without starting MPI."""
    if "mpi4py.MPI" not in sys.modules:
        try:
            import mpi4py

            mpi4py.rc.initialize = False
            from mpi4py import MPI  # noqa: F401
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"mpi4py found no MPI library ({reason}): install one with 'pip install mpich', "
                "or name yours in MPI4PY_LIBMPI"
            ) from error
    return sys.modules["mpi4py.MPI"]


def _check_size(size: int, library: str) -> None:
    """Raise InputError if the launcher started another number of ranks, for example N worlds of one rank."""
    values = {name: os.environ.get(name, "").strip() for name in _SIZE_VARIABLES}
    name, text = next((found for found in values.items() if found[1]), ("", str(size)))
    if not text.isdecimal():
        raise InputError(f"{name}={text!r} is not a number of ranks")
    if int(text) != size:
        raise InputError(_mismatch(text, name, size, library))


def _mismatch(promised: str, name: str, size: int, library: str) -> str:
    return (
        f"the launcher started {promised} ranks ({name}), but MPI has {size}: "
        f"Python loads {library}; start it with the launcher of the same MPI, as 'mgg launch' does, "
        "or under Slurm with the plugin that this MPI knows (srun --mpi=...)"
    )


@contextmanager
def agree(comm: MPI.Intracomm) -> Iterator[None]:
    """Turn an error on one rank into an error on all ranks. It wraps local work without collectives.

    The lowest failing rank decides. Its InputError is raised on every rank; with any other exception the
    failing ranks raise their own, and the rest raise `FailedElsewhere`, which prints nothing.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # all other ranks must raise too
        error = caught
    size = comm.Get_size()
    if size > 1:
        from mpi4py import MPI

        lowest = comm.allreduce(size if error is None else comm.Get_rank(), MPI.MIN)
        if lowest < size:
            mine = str(error) if isinstance(error, InputError) else None
            line = comm.bcast(mine, root=lowest)
            if line is not None and comm.Get_rank() != lowest:
                raise InputError(line) from error
            if error is None:
                raise FailedElsewhere(f"rank {lowest} failed")
    if error is not None:
        raise error


# ---- waiting --------------------------------------------------------------------------------------------


def barrier(comm: MPI.Intracomm) -> None:
    """Wait for all ranks, without occupying a core that a slower rank on this node needs."""
    if comm.Get_size() > 1:
        _wait(comm, comm.Ibarrier) if oversubscribed(comm) else comm.Barrier()


def _wait(comm: MPI.Intracomm, start: Callable[..., MPI.Request], *arguments: Any) -> None:
    """Start a collective and wait for it: in the MPI library, or by polling where ranks outnumber cores."""
    request = start(*arguments)
    if not oversubscribed(comm):
        request.Wait()
        return
    nap = 0.0
    while not request.Test():
        time.sleep(nap)  # 0 still yields the core
        nap = min(max(nap * 1.5, 1e-6), _LONGEST_NAP)


def _cached(comm: MPI.Intracomm, name: str, make: Callable[[], Any]) -> Any:
    """Return a value that is made once and kept as an attribute of the communicator."""
    from mpi4py import MPI

    if name not in _keyvals:
        _keyvals[name] = MPI.Comm.Create_keyval()
    value = comm.Get_attr(_keyvals[name])
    if value is None:
        value = make()
        comm.Set_attr(_keyvals[name], value)
    return value


def node(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of this rank's node, in the order of ranks. Collective at the first call."""
    from mpi4py import MPI

    return _cached(comm, "node", lambda: comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank()))


def oversubscribed(comm: MPI.Intracomm) -> bool:
    """Return whether the ranks of some node outnumber its cores. Collective at the first call."""
    return _layout(comm)[0]


def threads_share(comm: MPI.Intracomm) -> int:
    """Return this rank's share of its node's cores, in threads, at least 1. Collective at the first call."""
    return _layout(comm)[1]


def threads(comm: MPI.Intracomm, asked: int = 0) -> int:
    """Return the number of this rank's threads: ``asked`` if not 0, else OMP_NUM_THREADS, else its share.

    If OMP_NUM_THREADS is a list of numbers, the first one counts. Raises InputError if it is neither a number
    nor such a list. Collective at the first call.
    """
    share = threads_share(comm)  # collective, so it is called also where ``asked`` is given
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if not (given.isdecimal() and int(given) > 0) and given:
        raise InputError(
            f"OMP_NUM_THREADS={given!r} is not a number of threads; set it to 1 or more, or unset it"
        )
    return asked or int(given or share)


def _layout(comm: MPI.Intracomm) -> tuple[bool, int]:
    """Return the results of `oversubscribed` and `threads_share`.

    Ranks that are bound to separate cores get those; a core that k ranks share counts 1/k.
    """
    from mpi4py import MPI

    def measure() -> tuple[bool, int]:
        here, mine = node(comm), cores.affinity()
        sets = here.allgather(mine)
        quota = min(here.allgather(cores.quota()))
        share = sum(1.0 / sum(core in other for other in sets) for core in mine)
        share = min(share, quota / here.Get_size())
        crowded = here.Get_size() > min(len(frozenset().union(*sets)), quota)
        # All ranks must take the same path, since a blocking and a polled collective do not match.
        return comm.allreduce(crowded, MPI.LOR), max(1, int(share + 1e-9))

    return _cached(comm, "layout", measure)


def any_bits(comm: MPI.Intracomm, mine: int) -> int:
    """Return the bits that are set on any rank. Collective."""
    from mpi4py import MPI

    return _reduced(comm, mine, MPI.BOR)


def least(comm: MPI.Intracomm, mine: int) -> int:
    """Return the smallest of all ranks' integers. Collective."""
    from mpi4py import MPI

    return _reduced(comm, mine, MPI.MIN)


def largest(comm: MPI.Intracomm, mine: Sequence[int]) -> list[int]:
    """Return the largest of all ranks' integers at each place. Collective."""
    from mpi4py import MPI

    return _all_reduced(comm, mine, MPI.MAX)


def _reduced(comm: MPI.Intracomm, mine: int, operation: MPI.Op) -> int:
    return _all_reduced(comm, [mine], operation)[0]


def _all_reduced(comm: MPI.Intracomm, mine: Sequence[int], operation: MPI.Op) -> list[int]:
    if comm.Get_size() == 1:
        return list(mine)
    given, found = np.array(mine, dtype=np.int64), np.empty(len(mine), dtype=np.int64)
    _wait(comm, comm.Iallreduce, given, found, operation)
    return [int(each) for each in found]


# ---- sums -----------------------------------------------------------------------------------------------


def sum_in_rank_order(comm: MPI.Intracomm, array: np.ndarray) -> None:
    """Replace ``array`` by its sum over all ranks: bit for bit the same on each rank and in each run.

    MPI_Allreduce may add in the order of arrival, or along a tree that depends on the layout of ranks. Here
    each rank adds one slice, in the order 0, 1, ... P-1 (floats in float64), then all slices are shared.
    Collective; the array has the same size and type on all ranks.
    """
    size, rank = comm.Get_size(), comm.Get_rank()
    if not array.flags.c_contiguous:
        raise ValueError("sum_in_rank_order needs a contiguous array")
    if size == 1:
        return
    flat = array.reshape(-1)
    bounds = np.arange(size + 1, dtype=np.int64) * flat.size // size
    counts, starts = np.diff(bounds), bounds[:-1]
    mine = int(counts[rank])
    parts = np.empty((size, mine), flat.dtype)
    from mpi4py.util.dtlib import from_numpy_dtype

    kind = from_numpy_dtype(flat.dtype)
    received = ([mine] * size, [mine * source for source in range(size)])
    _wait(comm, comm.Ialltoallv, [flat, (counts, starts), kind], [parts, received, kind])
    wide = np.float64 if np.issubdtype(flat.dtype, np.floating) else flat.dtype
    total = parts[0].astype(wide)
    with np.errstate(over="ignore", invalid="ignore"):  # callers check for finite sums
        for part in parts[1:]:
            total += part
        narrow = total.astype(flat.dtype)
    _wait(comm, comm.Iallgatherv, [narrow, mine, kind], [flat, (counts, starts), kind])


# ---- shared memory --------------------------------------------------------------------------------------


class SharedWindow:
    """Shared memory of the ranks of a node, which all of them read and write through pointers.

    It is a block of zeros for each rank, or one block for the node. Creating and freeing it are collective over
    ``node``, the communicator of one node. Views of it (`buffer`, or tensors over `address`) must not be used
    once it is freed.

    nbytes: size of a block. one: make a single block for the whole node; `address` and `buffer` then return the
    same for each rank, and each page lies near the rank that writes it first. Raises InputError if the node has
    too little memory.
    """

    def __init__(self, node: MPI.Intracomm, nbytes: int, *, one: bool = False) -> None:
        from mpi4py import MPI

        self.node = node
        self.nbytes = nbytes
        # One cache line more than needed: each block's start is rounded up to a line (MPI promises less), and no block
        # is empty, which some MPI libraries map nowhere.
        room = -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        resources = {SHARED: free_shared, MEMORY: cores.memory_available}
        check_room(node, room, resources, blocks=1 if one else node.Get_size())
        if one and node.Get_rank() > 0:
            room = ALIGNMENT
        info = MPI.Info.Create()
        info.Set("alloc_shared_noncontig", "true")  # separate pages for each rank, in memory near it
        try:
            window = MPI.Win.Allocate_shared(room, 1, info, node)
        except MPI.Exception as error:
            raise InputError(
                f"MPI cannot share {sizes.shown(room)} on rank {node.Get_rank()} of {node.Get_size()} "
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
        """Return the address in this process of the block of a rank of the node."""
        if self._window is None:
            raise ValueError("the window has been freed")
        return self._addresses[rank]

    def buffer(self, rank: int) -> np.ndarray:
        """Return the block of a rank as a uint8 array, without a copy."""
        from mpi4py import MPI

        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.asarray(MPI.buffer.fromaddress(self.address(rank), self.nbytes))

    def sync(self) -> None:
        """Order this rank's loads and stores before and after the call; with a barrier, writes become readable."""
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
    node: MPI.Intracomm, room: int, resources: dict[str, Callable[[], int]], blocks: int | None = None
) -> None:
    """Raise InputError on all ranks of a node if shared memory does not fit: they would be killed at first touch.

    room: bytes of a block. resources: functions that return the free bytes of each resource, by its name in the error
    message. blocks: number of blocks on the node. [default: one for each rank]
    """
    refusal = None
    if node.Get_rank() == 0:
        blocks = node.Get_size() if blocks is None else blocks
        total = room * blocks
        left = {name: measure() for name, measure in resources.items()}
        name, free = min(left.items(), key=lambda each: each[1])
        if total > free:
            refusal = (
                f"the {node.Get_size()} ranks of this node need {sizes.shown(total)} of shared memory "
                f"({f'{sizes.shown(room)} each' if blocks > 1 else 'together'}), but the {name} is "
                f"{sizes.shown(free)}: use more nodes, a smaller graph or narrower layers, or give the machine more"
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
