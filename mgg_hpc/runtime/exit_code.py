"""How a process of a job says why it ends: one line for the person, one number for the launcher.

Launchers mangle exit codes (MPICH's ORs those of all ranks), so the first rank records the job's code
in the file that ``mgg launch`` names in MGG_STATUS, and ``mgg launch`` returns what it finds there.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import FAILED, WRONG_INPUT, InputError

if TYPE_CHECKING:
    from mpi4py import MPI

STATUS = "MGG_STATUS"  # the file in which the first rank records the job's exit code

_DEPART_SECONDS = 1.0  # how long a rank that reports an error waits for the others to do the same
_PASSED_ON_SECONDS = 0.1  # for a launcher to print our last lines; MPICH's may drop what it holds
_QUIET_SECONDS = 5.0  # how long a rank that failed because of another waits for that one to end the job
_STAGGER_SECONDS = 0.3  # a rank's head start over the next in printing an uncaught error
_POLL_SECONDS = 1e-3
_FIRST_SECONDS = 10.0  # that other ranks wait for the first to say why all of them end

# What process managers call a process's rank: Open MPI, PMIx, PMI (MPICH, Slurm), Slurm's own.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


_departures: list[MPI.Intracomm] = []  # a communicator of its own, so that leaving never meets other traffic


class FailedElsewhere(Exception):  # noqa: N818 - it is a consequence, not an error to report
    """Another rank failed and prints why; this one ends without a word."""


def join(comm: MPI.Intracomm) -> None:
    """Have an uncaught error on any rank of ``comm`` end all ranks from now on. Collective at the first call."""
    if _departures:
        return
    _departures.append(comm.Dup())
    if not hasattr(sys, "ps1"):  # at a prompt an error is no reason to end
        sys.excepthook = _end_job
    threading.excepthook = lambda failed: _end_job(
        failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
    )


def report(message: str, code: int) -> None:
    """Print ``message`` as one line on stderr, once a job, and record ``code`` as the job's exit code.

    Where MPI runs on several ranks this also settles how they end, see `_depart`: it returns on every
    rank if all of them report, and ends the job if only some do.
    """
    line = " ".join(message.split())
    if _ranks_up() > 1:
        _depart(line, code)
    elif is_first():
        write(line)
        record(code)
    else:
        _await_first()


def _await_first() -> None:
    """Wait for the first rank to report: launchers end all ranks when one has ended with a code."""
    name, until = os.environ.get(STATUS), time.monotonic() + _FIRST_SECONDS
    while name and not Path(name).exists() and time.monotonic() < until:
        time.sleep(0.01)


def record(code: int) -> None:
    """Record ``code`` as the job's exit code; ranks other than the first do nothing."""
    if is_first():
        save(code)


def save(code: int) -> None:
    """Record ``code`` as the job's exit code, from any rank."""
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
    """Return whether this process reports for the job.

    MPI knows where it runs on several ranks. Before it is up, or where a launcher of another MPI started
    N worlds of one rank each, the process manager's variables tell the N processes apart.
    """
    if _ranks_up() > 1:
        return sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in _RANK_VARIABLES)


def _ranks_up() -> int:
    """Return the number of ranks of the MPI that runs in this process; 0 without one."""
    mpi = sys.modules.get("mpi4py.MPI")  # never import it: that would start MPI
    if mpi is None or not hasattr(mpi, "COMM_WORLD") or not mpi.Is_initialized() or mpi.Is_finalized():
        return 0
    return mpi.COMM_WORLD.Get_size()


def _depart(line: str, code: int) -> None:
    """End this rank's part in the job with an error line; the collective half of `report`.

    If all ranks come here within a second (they agreed on the error, or each met it by itself), the
    lowest one's line is printed, and each returns and may end as usual, so that the launcher has nothing
    to add. If some do not come, they would wait for us for ever: print the line and end the job.
    """
    comm = _departures[0] if _departures else None
    if comm is not None and _all_arrive(comm.Ibarrier(), _DEPART_SECONDS):
        if comm.Get_rank() == 0:
            write(line)
            save(code)
        comm.Barrier()  # the line is out before any rank's end can make a launcher end the others
        return
    rank = sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank()
    time.sleep(min(rank * _STAGGER_SECONDS, 2.0))
    write(line)
    save(code)
    _abort(code)


def _all_arrive(request: MPI.Request, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The excepthook of every rank: one readable message, then the end of all ranks.

    One rank is left to end as Python does: what programs have opened is written, and their atexit runs.
    """
    mpi = sys.modules["mpi4py.MPI"]
    if mpi.Is_finalized():
        sys.__excepthook__(kind, error, trace)
        return
    comm = mpi.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    if issubclass(kind, FailedElsewhere):
        time.sleep(_QUIET_SECONDS)
        _abort(FAILED)
    in_thread = threading.current_thread() is not threading.main_thread()
    if issubclass(kind, InputError) and not in_thread:
        report(f"mgg: error: {error}", WRONG_INPUT)
        _flush_files()
        raise SystemExit(WRONG_INPUT)  # from an excepthook: the code with which Python ends
    # Often all ranks fail alike: let the lowest one speak, and be ended by it while we wait.
    time.sleep(min(rank * _STAGGER_SECONDS, 2.0))
    where = f"rank {rank} of {size}: " if size > 1 else ""
    text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    write(f"mgg: error: {where}{_one_line(error)}\n{text}")
    save(FAILED)
    if size > 1:
        _abort(FAILED)


def _flush_files() -> None:
    """Flush open files, which Python does not close while frames of an uncaught error hold them."""
    buffered = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
    for each in gc.get_objects():
        if issubclass(type(each), buffered):
            with contextlib.suppress(OSError, ValueError):  # closed, or its disk is full
                each.flush()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _abort(code: int) -> None:
    sys.stdout.flush()
    time.sleep(_PASSED_ON_SECONDS)
    sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(code)
