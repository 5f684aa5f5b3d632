"""The choice of a backend (base.py) by its name. Each backend's runtime is imported only if it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import InputError, StoppedBySignal
from ...plan.layout import RowFormat
from .arguments import BY_WIDTH, Geometry, Options
from .base import Backend

# Geometry that "auto" means on CPUs. Blocks of 4,096 edges are small against a thread's share and large against the
# cost of claiming one.
DEFAULT_GEOMETRY = Geometry(ps=256, dist=BY_WIDTH, wpb=16)

NARROW = RowFormat(np.dtype(np.float32), 1)
ON_CPUS = ("auto", "serial", "shm", "shmem")


def needs_gpus(name: str) -> bool:
    """Return whether the backend of this name runs only on GPUs."""
    return name == "cuda"


@dataclass(frozen=True)
class Chosen:
    """A backend's name, and why it was chosen. gpu: this rank's GPU, a `cuda.rank.Gpu`, or None."""

    name: str
    why: str
    gpu: Any = None

    @property
    def heap_grows(self) -> bool:
        """Whether symmetric memory grows on every machine; of others, `Memory.grows` tells once they are made."""
        return self.name in ("serial", "shm")


def choose(name: str, comm: Any, dtype: str = "float32", share_gpu: bool = False) -> Chosen:
    """Return the backend of this name, or the best one for "auto", before anything large is read. Collective.

    dtype: type of rows. share_gpu: whether several ranks may drive one GPU. Raises InputError, the same on all ranks,
    that names what is missing where the backend cannot run.
    """
    without = ""
    if name in ("auto", "cuda"):
        gpu, without = _gpu(name, comm, dtype, share_gpu)
        if gpu is not None:
            return Chosen("cuda", "every rank has a GPU" if name == "auto" else "asked for", gpu)
    return choose_cpu(name, comm, without)


def choose_cpu(name: str, comm: Any, without: str = "") -> Chosen:
    """Return the backend of CPUs of this name, or the best one for "auto". without: why there are no GPUs."""
    from .. import mpi

    here = mpi.node(comm).size
    with mpi.agree(comm):
        if name not in ON_CPUS:
            raise InputError(f"run.backend: {name} is none of {', '.join(ON_CPUS)}")
        if name == "serial" and comm.size > 1:
            raise InputError("run.backend: serial is for one rank; use shm (or auto) for several")
        if name == "shm" and here != comm.size:
            raise InputError(
                f"run.backend: shm needs all {comm.size} ranks on one node, but this one holds {here}; "
                "use shmem (or auto), or start the job on one node (sbatch --nodes=1)"
            )
    if name != "auto":
        return Chosen(name, "asked for")
    if comm.size == 1:
        return Chosen("serial", f"one rank: its rows stay private{without}")
    if here == comm.size:
        return Chosen("shm", f"all ranks on one node{without}")
    return Chosen("shmem", f"ranks on several nodes{without}")


def make(
    chosen: Chosen,
    comm: Any,
    *,
    threads: int = 1,
    widest: RowFormat = NARROW,
    searches: bool = False,
    **knobs: int,
) -> Backend:
    """Make the backend that was chosen. Collective.

    Args:
        threads: number of threads of this rank.
        widest: format of the widest rows that will be summed; GPUs choose the default of ps by it.
        searches: whether a search will try other knobs, for which GPUs reserve memory.
        knobs: values of ps, dist, wpb and far_ps (`Geometry`) in place of the backend's defaults.

    Raises InputError, the same on all ranks, if the backend cannot run with them.
    """
    from .. import mpi

    with mpi.agree(comm):
        if chosen.name == "cuda":
            from .cuda import rank as cuda_rank

            return cuda_rank.backend(comm, chosen.gpu, threads, widest, searches, knobs)
        options = Options(replace(DEFAULT_GEOMETRY, **knobs), threads)
        if chosen.name == "shmem":
            from .host.shmem import ShmemBackend

            return ShmemBackend(comm, options)
        from .host.kernels import SerialBackend, SharedBackend
        from .simulated import World

        return (
            SerialBackend(0, World(1), options) if chosen.name == "serial" else SharedBackend(comm, options)
        )


@contextmanager
def closed_on_error(close: Callable[[], None]) -> Iterator[None]:
    """Call ``close`` after an error that all ranks have, or a stop; after any other error the job is ended anyway."""
    try:
        yield
    except (InputError, StoppedBySignal):
        close()
        raise


def _gpu(name: str, comm: Any, dtype: str, share: bool) -> tuple[Any, str]:
    """Return this rank's GPU if every rank has one; else None, and the reason where there is a driver for GPUs."""
    from .. import device

    if name == "auto" and not all(comm.allgather(device.has_driver())):
        return None, ""
    from .cuda import rank as cuda_rank

    try:
        return cuda_rank.take(comm, dtype, share), ""
    except InputError as error:
        if name == "cuda":
            raise
        return None, f"; no GPUs: {error}"
