"""Storage and kernels behind one seam (base.py), chosen by name; each backend's runtime is imported only if chosen."""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from .base import BY_WIDTH, Backend, Geometry, Options

# What "auto" stands for on CPUs. Blocks of 4,096 edges are small against a thread's share and large against the
# cost of claiming one.
DEFAULT_GEOMETRY = Geometry(ps=256, dist=BY_WIDTH, wpb=16)


def choose(name: str, comm: Any, options: Options) -> tuple[Backend, str]:
    """The backend ``name`` for this communicator, and why it was taken. Collective.

    Raises InputError where a backend asked for by name cannot run, and says what is missing.
    """
    from .. import mpi

    here = mpi.node(comm).size
    if name == "auto" and comm.size == 1:
        name, why = "serial", "one rank: its rows stay private"
    elif name == "auto" and here == comm.size:
        name, why = "shm", "all ranks on one node"
    elif name == "auto":
        name, why = "shmem", "ranks on several nodes"
    else:
        why = "asked for"
    if name == "serial":
        if comm.size > 1:
            raise InputError("run.backend: serial is for one rank; use shm (or auto) for several")
        from .serial import SerialBackend, World

        return SerialBackend(0, World(1), options), why
    if name == "shmem":
        from .shmem import ShmemBackend

        return ShmemBackend(comm, options), why
    if here != comm.size:
        raise InputError(
            f"run.backend: shm needs all {comm.size} ranks on one node, but this one holds {here}; "
            "use shmem (or auto), or start the job on one node (sbatch --nodes=1)"
        )
    from .shm import SharedBackend

    return SharedBackend(comm, options), why
