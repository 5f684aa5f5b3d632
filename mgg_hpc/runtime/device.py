"""Assign a GPU to each rank, and find the cores near it.

Slurm may show each rank only its own GPU, or all GPUs of the node; mpirun shows all. So the ranks of a node exchange
the UUIDs of the GPUs that they see, and each takes another one. Parts of one GPU (MIG) share an address on the bus, but
have UUIDs of their own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..sizes import counted
from . import cores, mpi

if TYPE_CHECKING:
    from mpi4py import MPI

VISIBLE = "CUDA_VISIBLE_DEVICES"
_BUS = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class GpuAssignment:
    """The GPU of a rank, or the part of a GPU (MIG).

    device: its index among the GPUs that this process sees. place: its address on the PCI bus. ranks: number of ranks
    that drive it.
    """

    device: int
    uuid: str
    place: str
    ranks: int


def has_driver() -> bool:
    """Return whether CUDA's driver is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def take(comm: MPI.Intracomm, module: Any, share: bool = False) -> GpuAssignment:
    """Take a GPU and make it the current one of this process. Collective.

    share: whether several ranks may drive one GPU. Raises InputError, the same on all ranks, where there are too few.
    """
    here = mpi.node(comm)
    with mpi.agree(comm):
        count, why = module.devices()
        uuids = module.device_uuids() if count else []
    seen = here.allgather((uuids, os.environ.get(VISIBLE), why))
    with mpi.agree(comm):
        for rank, (found, shown, reason) in enumerate(seen):
            if not found:
                who = f"rank {rank} of this node's {here.Get_size()} sees " if here.Get_size() > 1 else ""
                said = "" if shown is None else f"; {VISIBLE} is {shown!r} there"
                raise InputError(f"{who}no CUDA device ({reason or 'none is visible'}){said}")
        taken = assign([found for found, _, _ in seen], share)
        mine = taken[here.Get_rank()]
        try:
            module.use_device(mine)
        except RuntimeError as error:  # used exclusively by another process, or broken
            raise InputError(f"rank {comm.Get_rank()} cannot use its GPU: {error}") from error
        place = module.device_places()[mine]
    ranks = [found[at] for (found, _, _), at in zip(seen, taken, strict=True)]
    return GpuAssignment(mine, uuids[mine], place, ranks.count(uuids[mine]))


def assign(seen: Sequence[Sequence[str]], share: bool) -> list[int]:
    """Return for each rank of a node the index of its GPU among the GPUs that the rank sees.

    seen: UUIDs that each rank sees. As many ranks as possible get a GPU of their own (a maximum matching); with
    ``share`` each other rank gets the GPU with the fewest ranks. Raises InputError if there are too few GPUs.
    """
    owner: dict[str, int] = {}

    def assignment(rank: int, tried: set[str]) -> bool:
        for uuid in seen[rank]:
            if uuid in tried:
                continue
            tried.add(uuid)
            if uuid not in owner or assignment(owner[uuid], tried):
                owner[uuid] = rank
                return True
        return False

    standing = [rank for rank in range(len(seen)) if not assignment(rank, set())]
    every = sorted({uuid for uuids in seen for uuid in uuids})
    if standing and not share:
        if len(every) >= len(seen):  # enough, but some ranks do not see theirs
            rank = standing[0]
            raise InputError(
                f"ranks of this node see the same GPUs: rank {rank} of it sees {', '.join(seen[rank])}, which others "
                f"take; show each rank its own, or all {len(every)} to every rank ({VISIBLE}, srun --gpus-per-task=1)"
            )
        raise InputError(
            f"{counted(len(seen), 'rank')} on this node, but {counted(len(every), 'GPU')}: start at most "
            f"{len(every)} a node, or have ranks share a GPU (--share-gpu; for tests, since kernels take turns)"
        )
    taken = {rank: uuid for uuid, rank in owner.items()}
    load = dict.fromkeys(every, 0) | dict.fromkeys(owner, 1)
    for rank in standing:
        uuid = min(seen[rank], key=lambda uuid: load[uuid])
        taken[rank] = uuid
        load[uuid] += 1
    return [list(uuids).index(taken[rank]) for rank, uuids in enumerate(seen)]


def near_cores(place: str) -> frozenset[int]:
    """Return the cores near a GPU at a bus address; none if the kernel does not list them."""
    try:
        return cores.parse_list((_BUS / place.lower() / "local_cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()


def stay_near(comm: MPI.Intracomm, assignment: GpuAssignment) -> None:
    """Bind this process to the cores near its GPU, unless a launcher has bound the ranks of this node. Collective."""
    here, place = mpi.node(comm), assignment.place
    mine = cores.affinity()
    bound = len(set(here.allgather(mine))) > 1
    near = near_cores(place) & mine
    if near and not bound:
        os.sched_setaffinity(0, near)
