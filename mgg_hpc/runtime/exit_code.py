"""End the processes of a job with one error line for the user and one exit code for the launcher.

Launchers change exit codes (MPICH's ORs those of all ranks), so the first rank records the job's code
in the file that ``mgg launch`` names in MGG_STATUS, and ``mgg launch`` returns this code.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import FAILED, STOPPED, WRONG_INPUT, InputError, StoppedBySignal

if TYPE_CHECKING:
    from mpi4py import MPI

STATUS = "MGG_STATUS"  # the file in which the first rank records the job's exit code
RANKS = "MGG_RANKS"  # the number of ranks of ``mgg launch``, which each rank checks

_DEPART_SECONDS = 1.0  # time that a rank which reports an error waits for the others to do the same
_PRINT_SECONDS = 0.1  # time for a launcher to print the last lines; MPICH's may drop them otherwise
_QUIET_SECONDS = 5.0  # time that a rank which failed because of another waits for that one to end the job
_STAGGER_SECONDS = 0.3  # time between ranks that print an uncaught error
_POLL_SECONDS = 1e-3
_FIRST_SECONDS = 10.0  # time that other ranks wait for the first to report the error

# Variables in which process managers store a rank: Open MPI, PMIx, PMI (MPICH, Slurm), Slurm.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


_departures: list[MPI.Intracomm] = []  # a communicator that only `_depart` uses


class Terminated(BaseException):
    """SIGTERM came to a program of one rank."""


class FailedElsewhere(Exception):  # noqa: N818 - it is a consequence, not an error to report
    """Another rank failed and prints why; this one ends without a message."""


def join(comm: MPI.Intracomm) -> None:
    """Make an uncaught error on any rank of ``comm`` end all ranks. Collective at the first call."""
    if _departures:
        return
    _departures.append(comm.Dup())
    if not hasattr(sys, "ps1"):  # errors at a prompt do not end the process
        sys.excepthook = _end_job
        unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        # `mgg launch` ends its ranks itself.
        if unhandled and comm.Get_size() == 1 and STATUS not in os.environ and _in_main_thread():
            signal.signal(signal.SIGTERM, partial(_terminate, os.getpid()))
    threading.excepthook = lambda failed: _end_job(
        failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
    )


def report(message: str, code: int) -> None:
    """Print ``message`` as one line on stderr, once a job, and record ``code`` as the job's exit code.

    Where MPI runs on several ranks it returns on every rank if all of them report, and ends the job if only some do.
    """
    line = " ".join(message.split())
    if _ranks_up() > 1:
        _depart(line, code)
    elif is_first():
        write(line)
        save(code)
    else:
        # Launchers end all ranks when one has ended with a code, so the first rank must report before.
        name, until = os.environ.get(STATUS), time.monotonic() + _FIRST_SECONDS
        while name and not Path(name).exists() and time.monotonic() < until:
            time.sleep(0.01)


def record(code: int) -> None:
    """Record ``code`` as the job's exit code, if this is the first rank."""
    if is_first():
        save(code)


def save(code: int) -> None:
    """Record ``code`` as the job's exit code, from any rank."""
    name = os.environ.get(STATUS)
    if name:
        # Without a launcher, or with one on another host, its own exit code counts.
        with contextlib.suppress(OSError):
            Path(name).write_text(f"{code}\n", encoding="ascii")


def write(text: str) -> None:
    """Write ``text`` and a newline to stderr in one call, so that ranks do not interleave within it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or absent stderr
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def is_first() -> bool:
    """Return whether this process reports for the job: MPI's rank 0.

    Before MPI is started, or where a launcher of another MPI started N worlds of one rank each, it is the first rank by
    the process manager's variables.
    """
    if _ranks_up() > 1:
        return sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in RANK_VARIABLES)


def _ranks_up() -> int:
    """Return the number of ranks of MPI, or 0 if it does not run in this process."""
    mpi = sys.modules.get("mpi4py.MPI")  # never import it: that would start MPI
    if mpi is None or not hasattr(mpi, "COMM_WORLD") or not mpi.Is_initialized() or mpi.Is_finalized():
        return 0
    return mpi.COMM_WORLD.Get_size()


def _depart(line: str, code: int) -> None:
    """End this rank's part in the job with an error line.

    If all ranks come here within a second (they agreed on the error, or each had it by itself), the line of rank 0 is
    printed, and each returns and ends as usual, so that the launcher prints nothing. Otherwise the others would wait
    for this rank for ever: print the line and end the job.
    """
    comm, arrived = _departures[0] if _departures else None, False
    if comm is not None:
        request, deadline = comm.Ibarrier(), time.monotonic() + _DEPART_SECONDS
        while not (arrived := request.Test()) and time.monotonic() <= deadline:
            time.sleep(_POLL_SECONDS)
    if comm is not None and arrived:
        if comm.Get_rank() == 0:
            write(line)
            save(code)
        comm.Barrier()  # the line is printed before a rank's end makes a launcher end the others
        return
    rank = sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank()
    time.sleep(min(rank * _STAGGER_SECONDS, 2.0))
    write(line)
    save(code)
    _abort(code)


def _end_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End all ranks after one readable message; the excepthook of every rank.

    A single rank ends as Python does: files are flushed, and atexit functions run.
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
    ends = {
        InputError: (f"error: {error}", WRONG_INPUT),
        StoppedBySignal: (str(error), STOPPED),
        KeyboardInterrupt: ended_by(signal.SIGINT),
        Terminated: ended_by(signal.SIGTERM),
    }
    ended = next((each for known, each in ends.items() if issubclass(kind, known)), None)
    if ended is not None and _in_main_thread():
        message, code = ended
        report(f"mgg: {message}", code)
        _flush_files()
        raise SystemExit(code)  # in an excepthook it sets the exit code of Python
    # Often all ranks fail alike: the lowest one prints, and ends the others while they wait.
    time.sleep(min(rank * _STAGGER_SECONDS, 2.0))
    where = f"rank {rank} of {size}: " if size > 1 else ""
    text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
    line = ": ".join([kind.__name__, *filter(None, [" ".join(str(error).split())])])
    write(f"mgg: error: {where}{line}\n{text}")
    save(FAILED)
    if size > 1:
        _abort(FAILED)


def ended_by(number: int) -> tuple[str, int]:
    """Return the message and the exit code of a job that a signal ended."""
    name = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    return f"error: {name}", 128 + number


def _terminate(process: int, number: int, frame: object) -> None:
    """Handle a signal to a process; the processes that it has forked end as without a handler."""
    if os.getpid() != process:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    raise Terminated


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _flush_files() -> None:
    """Flush open files, which Python does not close while frames of an uncaught error hold them."""
    buffered = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
    for each in gc.get_objects():
        if issubclass(type(each), buffered):
            with contextlib.suppress(OSError, ValueError):  # closed, or its disk is full
                each.flush()


def _abort(code: int) -> None:
    sys.stdout.flush()
    time.sleep(_PRINT_SECONDS)
    sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(code)
