"""Start a job's ranks with the launcher that belongs to Python's MPI, and end all of them together.

The exit code is the one that the first rank recorded (launchers mangle codes); without a record, 0 if the launcher
returned 0, 128 + the signal if a signal ended the job (130 after Ctrl-C), else 1. SIGTERM, SIGUSR1 and SIGINT are
passed on to ranks that save their state (`signals`), and the launcher waits for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DONE, FAILED, InputError, did_you_mean
from . import cores, exit_code, find_mpi, leftovers, signals
from .exit_code import RANKS

TERMINAL = "MGG_TERMINAL"  # number of columns of the terminal, to which ranks write through pipes

PARALLEL = ("train", "resume", "predict", "tune", "traverse")  # commands that share their work between ranks
SAVING = ("train", "resume")  # commands that save their state when a signal asks them to end
SAVE_SECONDS = 120.0  # time that they get for it

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_START_SECONDS = 20.0  # time between the start of a rank that will save, and its listening to signals
_GRACE_SECONDS = 2.0  # time between SIGTERM and SIGKILL
_KILL_SECONDS = 1.5  # time for the kernel to remove killed processes
_PR_SET_PDEATHSIG = 1  # linux/prctl.h: a signal for the child when its parent dies
_prctl = ctypes.CDLL(None).prctl  # before a fork: a child of a program with threads may not look it up


class _Signalled(BaseException):
    """A signal asks this process, and so the job, to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def process_launch(
    ranks: int,
    arguments: Sequence[str],
    mpi: str = "auto",
    dry_run: bool = False,
    save_seconds: float = SAVE_SECONDS,
) -> int:
    """Run ``mgg`` with ``arguments``, or the Python program that they begin with, on ``ranks`` ranks; see `run`."""
    name = arguments[0]
    if name.endswith(".py"):
        program = [sys.executable, *arguments]
    elif name in PARALLEL:
        # Started from a checkout without an installation, ranks find the package in the current folder;
        # otherwise that folder's files must not replace Python's own modules.
        in_checkout = Path(__file__).resolve().parents[2] == Path.cwd()
        program = [sys.executable, *([] if in_checkout else ["-P"]), "-m", "mgg_hpc", *arguments]
    else:
        raise InputError(
            f"mgg launch: {name} is not for several ranks; "
            f"launch runs {', '.join(PARALLEL)} and Python programs (NAME.py){did_you_mean(name, PARALLEL)}"
        )
    return run(program, ranks, mpi=mpi, dry_run=dry_run, saves=name in SAVING, save_seconds=save_seconds)


def run(
    command: Sequence[str],
    ranks: int,
    *,
    mpi: str = "auto",
    dry_run: bool = False,
    saves: bool = False,
    save_seconds: float = SAVE_SECONDS,
) -> int:
    """Run ``command`` as ``ranks`` ranks on this machine and return the job's exit code.

    mpi: "system" prefers the MPI of the machine. dry_run: print the command instead. saves: True if ranks will install
    signal handlers and save their state; after a signal the launcher waits 20 s for them to do so. save_seconds: time
    that ranks get to save.
    """
    environment = dict(os.environ)
    if mpi == "system" and find_mpi.LIBRARY not in environment:
        environment[find_mpi.LIBRARY] = str(find_mpi.system_library())
        environment.pop("MPI4PY_MPIABI", None)  # it would name the interface of another library
    found = find_mpi.library(environment)
    for name, value in _settings(found, ranks).items():
        environment.setdefault(name, value)
    environment[RANKS] = str(ranks)
    full = [str(find_mpi.launcher(found)), *find_mpi.launcher_flags(found), "-n", str(ranks), *command]
    if dry_run:
        changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        print(shlex.join(["env", *(f"{name}={value}" for name, value in sorted(changed.items())), *full]))
        return DONE
    leftovers.remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=leftovers.LAUNCH_PREFIX))
    try:
        status = folder / leftovers.STATUS_FILE
        environment[exit_code.STATUS] = str(status)
        silenced = found.family == "mpich"
        return _run(full, environment, status, ranks, saves, save_seconds, silenced=silenced)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(found: find_mpi.Library, ranks: int) -> dict[str, str]:
    """Return environment variables for ranks and launcher; variables that the user has set take precedence."""
    settings = find_mpi.launcher_environment(found)
    settings["OMP_NUM_THREADS"] = str(max(1, cores.available() // ranks))
    if sys.stderr.isatty():
        settings[TERMINAL] = str(shutil.get_terminal_size().columns)
    if not sys.stdout.isatty():
        settings["TTY_COMPATIBLE"] = "0"  # Open MPI gives ranks a terminal, but the output is none
    return settings


def _all_listen(status: Path, ranks: int, saves: bool, process: subprocess.Popen[bytes]) -> bool:
    """Wait until all ranks have installed signal handlers; return False if the job ends or time runs out.

    status: the job's status file. saves: False if ranks install no handlers, for which there is no wait.
    """
    deadline = time.monotonic() + (_START_SECONDS if saves else 0.0)
    while process.poll() is None:
        if len(list(status.parent.glob(f"{status.name}{signals.LISTENS}*"))) >= ranks:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return False


def _run(
    command: list[str],
    environment: dict[str, str],
    status: Path,
    ranks: int,
    saves: bool,
    save_seconds: float,
    *,
    silenced: bool,
) -> int:
    """Run the launcher until it ends or a signal comes, remove what remains, and return the exit code.

    silenced: pause the launcher before ranks are ended, on which it would print a banner. It leaves no files.
    """
    start = time.time()
    code = caught = 0
    process = None
    try:
        with _handled_by(_raise):
            # In a session of its own the launcher does not get the terminal's Ctrl-C: this process ends the ranks.
            # Standard input is empty, since a background session that reads from a terminal is stopped.
            # A signal waits until the launcher is known, or it would be left alone.
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=_begin,  # noqa: PLW1509 - this program runs no threads here
                )
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            code = process.wait()
    except _Signalled as request:
        caught = request.number
        with _handled_by(signal.SIG_IGN):  # a second Ctrl-C changes nothing
            if process is not None and _all_listen(status, ranks, saves, process):
                _signal(_ranks(status), caught if caught in signals.ASKING else signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(save_seconds)
            else:
                ended, job = _ranks(status), leftovers.job_processes(status)
                silenced = silenced and not any(map(_catches, ended))  # or what they print then would be lost
                if silenced:
                    _signal(job.keys() - {*ended}, signal.SIGSTOP)
                _signal(ended if silenced else job, signal.SIGTERM)
                deadline = time.monotonic() + _GRACE_SECONDS
                while time.monotonic() < deadline and any(map(_alive, ended)):
                    time.sleep(0.02)
            _kill(leftovers.job_processes(status))
            if process is not None:
                process.wait()
    if code or caught:
        _kill(leftovers.job_processes(status))
        leftovers.remove(leftovers.left_since(start))
    return _job_code(status, code, caught)


def _job_code(status: Path, code: int, caught: int) -> int:
    """Return the exit code; if no rank recorded one, print what is known."""
    with contextlib.suppress(OSError, ValueError):
        return int(status.read_text(encoding="ascii"))
    if caught:
        message, ending = exit_code.ended_by(caught)
        exit_code.write(f"mgg: {message}")
        return ending
    if code == 0:
        return DONE
    number = -code if code < 0 else code - 128  # MPICH's launcher ORs the ranks' codes, and so hides signals
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        hint = "; is the machine out of memory?" if number == signal.SIGKILL else ""
        exit_code.write(f"mgg: error: a rank was ended by {name}{hint}")
        return 128 + number
    exit_code.write(
        f"mgg: error: a rank crashed, was killed, or could not start (its launcher returned {code})"
    )
    return FAILED


# ---- ending ---------------------------------------------------------------------------------------------


def _raise(number: int, frame: object) -> None:
    for each in _ENDING:  # a second one, before they are ignored for good
        signal.signal(each, signal.SIG_IGN)
    raise _Signalled(number)


@contextlib.contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    """Handle the signals that end a process by ``handler`` within ``with``."""
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def end_with_parent() -> None:
    """Make the kernel end this child when its parent is killed. Runs in the child before exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _begin() -> None:
    """Let signals reach this child, and make it end with its parent. Runs in the child before exec."""
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _kill(processes: Iterable[int]) -> None:
    """Kill processes that this job started, and wait until the kernel has freed their memory."""
    _signal(processes, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline and any(_alive(number) for number in processes):
        time.sleep(0.01)


def _catches(number: int) -> bool:
    """Return whether a process has a handler of SIGTERM."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _alive(number: int) -> bool:
    """Return whether a process still runs; a zombie does not, and holds no memory."""
    try:
        state = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def _ranks(status: Path) -> list[int]:
    """Return the process ids of the job's ranks, without its launchers."""
    # In a script of Slurm the launcher itself has such a variable, of the step that the script is.
    names = tuple(f"{name}=".encode() for name in exit_code.RANK_VARIABLES if name not in os.environ)
    processes = leftovers.job_processes(status)
    return [
        process
        for process, variables in processes.items()
        if any(each.startswith(names) for each in variables)
    ]
