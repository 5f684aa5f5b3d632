"""Size NVSHMEM's symmetric heap, and check that each rank's GPU can hold it, before NVSHMEM starts.

NVSHMEM takes its heap down where an allocation does not fit, while other ranks wait for theirs; so what a job needs is
checked before, allocated as one block, and cut up here (`nvshmem.SymmetricMemory`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import InputError
from ....plan.cuda_grid import PACK, Limits
from ... import mpi
from ...device import GpuAssignment
from ..arguments import Geometry

if TYPE_CHECKING:
    from mpi4py import MPI

GRANULE = 512 << 20  # bytes in which NVSHMEM maps a GPU's memory; the first also holds NVSHMEM's own data
SMALL = 20 << 20  # signals, gradients, staged rows of gathers, and rounding each array up
RINGS = 4  # plans whose rows are fetched through memory: forward, backward, and those of a measurement

# Environment variables that NVSHMEM reads as it starts: a heap that grows has addresses up to MOST bytes, and one that
# does not has SIZE bytes.
NO_VMM, IBGDA = "NVSHMEM_DISABLE_CUDA_VMM", "NVSHMEM_IB_ENABLE_IBGDA"
MOST, SIZE = "NVSHMEM_MAX_MEMORY_PER_GPU", "NVSHMEM_SYMMETRIC_SIZE"
USUAL_MOST, USUAL_SIZE = 128 << 30, 1 << 30  # the latter is NVSHMEM's own default


@dataclass(frozen=True)
class RankGpu:
    """A rank's GPU: its node and UUID, its name, and its free bytes before the heap exists."""

    gpu: tuple[int, str]
    name: str
    free: int


def mapped_bytes(requested: int, *, started: bool) -> int:
    """Return the bytes that NVSHMEM maps for a block of this size, with its own granule unless it has started."""
    return (-(-requested // GRANULE) + (not started)) * GRANULE


def network_bytes(requested: int, limits: Limits, geometry: Geometry) -> int:
    """Return the bytes of the heap that transfers over a network take: packed rows, and rings of fetched rows.

    A ring has dist stages of far_ps rows for each worker, and as many stages of at least a row are in shared memory.
    """
    row_a_stage = min(
        limits.threads_per_multiprocessor * 2 * PACK * geometry.dist, limits.shared_per_multiprocessor
    )
    return requested + RINGS * limits.multiprocessors * row_a_stage * (geometry.far_ps or geometry.ps)


def lack_of_room(mapped: int, gpus: list[RankGpu], largest: int) -> str | None:
    """Return why ``mapped`` bytes of each rank do not fit, or None where they do.

    gpus: of each rank; ranks that share a GPU share its free bytes. largest: the rank that needs that much.
    """
    for rank, mine in enumerate(gpus):
        sharing = sum(other.gpu == mine.gpu for other in gpus)
        if mapped * sharing > mine.free:
            many = f" for the {sharing} ranks that share it" if sharing > 1 else ""
            return (
                f"rank {rank}'s {mine.name} needs {mapped * sharing / 2**30:.1f} GiB of symmetric memory{many}, and "
                f"has {mine.free / 2**30:.1f} GiB free; every rank's is as large as that of rank {largest}, the "
                'largest. Use more GPUs, fewer or narrower layers (model.hidden), or train.dtype = "bfloat16"'
            )
    return None


def check(comm: MPI.Intracomm, module: Any, assignment: GpuAssignment, mapped: int, largest: int) -> None:
    """Raise InputError, the same on all ranks, where some GPU has no room for ``mapped`` bytes. Collective."""
    with mpi.agree(comm):
        free, _ = module.memory()
        name = module.limits()["name"]
    node = mpi.node(comm).bcast(comm.Get_rank())
    gpus = comm.allgather(RankGpu((node, assignment.uuid), name, free))
    with mpi.agree(comm):
        if said := lack_of_room(mapped, gpus, largest):
            raise InputError(said)


def is_on(name: str) -> bool:
    """Return whether an environment variable turns something on, as NVSHMEM reads it."""
    return os.environ.get(name, "0").lower() in ("1", "true", "yes", "on", "y", "t")


def grows(comm: MPI.Intracomm, module: Any) -> bool:
    """Return whether NVSHMEM's heap can grow once it has started: no rank lacks or disables VMM. Collective."""
    with mpi.agree(comm):
        mine = bool(module.virtual_memory()) and not is_on(NO_VMM)
    return all(comm.allgather(mine))


def check_limit(nbytes: int, growing: bool) -> None:
    """Raise InputError for more bytes than NVSHMEM's heap may have: allocating them may end the process.

    Of a heap that does not grow NVSHMEM itself takes a granule. Raises InputError for a limit that is no size.
    """
    name, most, own = (MOST, USUAL_MOST, 0) if growing else (SIZE, USUAL_SIZE, GRANULE)
    said = os.environ.get(name, "").strip().lower()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)b?", said)
    if said and not found:
        raise InputError(f'{name} = "{said}": expected bytes, or a number with k, m, g or t')
    if found:
        most = int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))
    most = max(0, most - own)
    if nbytes > most:
        raise InputError(
            f"a rank needs {nbytes / 2**30:.1f} GiB of symmetric memory, and {name} allows {most / 2**30:.1f} GiB: "
            "leave it to this program, or raise it"
        )


def set_sizes(mapped: int) -> None:
    """Set the size of NVSHMEM's heap before it starts, unless the user has."""
    os.environ.setdefault(SIZE, str(mapped))
    os.environ.setdefault(MOST, str(max(USUAL_MOST, 2 * mapped)))  # a second block may follow
