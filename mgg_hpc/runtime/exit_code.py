"""How a process of a job says why it ends: one line for the person, one number for the launcher.

Launchers mangle exit codes (MPICH's ORs those of all ranks), so the first rank records the job's code
in the file that ``mgg launch`` names in MGG_STATUS, and ``mgg launch`` returns what it finds there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

STATUS = "MGG_STATUS"  # the file in which the first rank records the job's exit code

_FIRST_SECONDS = 10.0  # that other ranks wait for the first to say why all of them end

# What process managers call a process's rank: Open MPI, PMIx, PMI (MPICH, Slurm), Slurm's own.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def report(message: str, code: int) -> None:
    """Print ``message`` as one line on stderr, once a job, and record ``code`` as the job's exit code.

    Where MPI runs on several ranks this also settles how they end, see `mpi.depart`: it returns on every
    rank if all of them report, and ends the job if only some do.
    """
    line = " ".join(message.split())
    if _ranks_up() > 1:
        from . import mpi

        mpi.depart(line, code)
    elif is_first():
        write(line)
        record(code)
    else:
        _await_first()


def _await_first() -> None:
    """Launchers end all ranks when one of them has ended with a code; the first may still have to speak."""
    name, until = os.environ.get(STATUS), time.monotonic() + _FIRST_SECONDS
    while name and not Path(name).exists() and time.monotonic() < until:
        time.sleep(0.01)


def record(code: int) -> None:
    """Record ``code`` as the job's exit code; ranks other than the first do nothing."""
    if is_first():
        save(code)


def save(code: int) -> None:
    """Record ``code`` from whichever rank calls: for the one that speaks for all of them."""
    name = os.environ.get(STATUS)
    if name:
        # The launcher may be gone, or on another host: then its own exit code must do.
        with contextlib.suppress(OSError):
            Path(name).write_text(f"{code}\n", encoding="ascii")


def write(text: str) -> None:
    """Write ``text`` and a newline to stderr in one call, so that ranks do not interleave within it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or absent stderr
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def is_first() -> bool:
    """Whether this process speaks for the job.

    MPI knows where it runs on several ranks. Before it is up, or where a launcher of another MPI started
    N worlds of one rank each, the process manager's variables tell the N processes apart.
    """
    if _ranks_up() > 1:
        return sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in _RANK_VARIABLES)


def _ranks_up() -> int:
    """The number of ranks of the MPI that is running in this process; 0 without one."""
    mpi = sys.modules.get("mpi4py.MPI")  # never import it: that would start MPI
    if mpi is None or not hasattr(mpi, "COMM_WORLD") or not mpi.Is_initialized() or mpi.Is_finalized():
        return 0
    return mpi.COMM_WORLD.Get_size()
