"""Find and remove leftovers of killed jobs: shared memory of MPI libraries, MPICH's files, folders of launches."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from .exit_code import STATUS

SHARED_MEMORY = Path("/dev/shm")

# MPICH; Open MPI 4 and 5 (byte transfer, one-sided windows); UCX below either of them. The heap of OpenSHMEM is System
# V memory, which is marked for removal as soon as it is mapped, so the kernel frees it with its last process.
PATTERNS = (
    "mpich_shm_*",
    "mpich_comm_world*",
    "vader_segment.*",
    "sm_segment.*",
    "osc_rdma.*",
    "osc_sm.*",
    "ucx_shm_posix_*",
)
_YOUNG_SECONDS = 2.0  # shared memory may exist for a moment before a process maps it

# MPICH's process managers write a file for the ranks to read while they start, always in this folder.
NOTES_FOLDER = Path("/tmp")
_NOTES = "hydra_hwloc_xmlfile_*"
_MANAGER = "hydra_pmi_proxy"
_STARTING_SECONDS = 60.0

LAUNCH_PREFIX = "mgg-launch-"  # prefix of a launch's folder in the temporary folder
STATUS_FILE = "status"  # file in that folder that MGG_STATUS names
_LAUNCHING_SECONDS = 10.0  # a newer folder may belong to a launch that has no rank yet

# Variables in which process managers store a rank's number on its machine: Open MPI, PMIx, MPICH, Slurm.
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def remove_stale() -> None:
    """Remove what `stale` finds. Of the ranks that a launcher has started on a machine, only the first does it."""
    if all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS):
        remove(stale())


def stale() -> list[Path]:
    """Return the leftovers of earlier jobs of this user: files that no process uses, and folders of launches."""
    newest = time.time() - _YOUNG_SECONDS
    return _unused(0.0, newest) + _stale_launches()


def left_since(start: float) -> list[Path]:
    """Return the files of MPI libraries made since ``start``, in seconds of the epoch, that no process uses."""
    return _unused(start, float("inf"))


def remove(paths: list[Path]) -> None:
    """Remove files and folders; some may be gone already."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _unused(start: float, end: float) -> list[Path]:
    """Return shared memory made between two times that no process maps, and MPICH's files that no rank will read."""
    paths = [path for path, made in _files(SHARED_MEMORY, PATTERNS) if start <= made < end]
    used = in_use(SHARED_MEMORY) if paths else set()
    # Before looking for managers, so that no new one is missed.
    notes = [(path, made) for path, made in _files(NOTES_FOLDER, (_NOTES,)) if made >= start]
    oldest = time.time() - _STARTING_SECONDS if notes and _manager_runs() else float("inf")
    return [path for path in paths if str(path) not in used] + [path for path, made in notes if made < oldest]


def _processes() -> list[Path]:
    """Return the folders in /proc of all processes."""
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _manager_runs() -> bool:
    """Return whether a process manager of MPICH of this user runs."""
    for process in _processes():
        with contextlib.suppress(OSError):
            name = (process / "comm").read_text().strip()
            if name == _MANAGER and process.stat().st_uid == os.getuid():
                return True
    return False


def _files(folder: Path, patterns: tuple[str, ...]) -> list[tuple[Path, float]]:
    """Return the regular files of this user in a folder whose names match a pattern, with the times of their change."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if any(fnmatch(entry.name, pattern) for pattern in patterns):
                state = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and state.st_uid == os.getuid():
                    found.append((Path(entry.path), state.st_ctime))
    return found


def _stale_launches() -> list[Path]:
    """Return the folders of launches of this user that were killed before they could remove them."""
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{LAUNCH_PREFIX}*")):
        with contextlib.suppress(OSError):  # removed in the meantime
            state = path.lstat()
            old = time.time() - state.st_mtime >= _LAUNCHING_SECONDS
            if state.st_uid == os.getuid() and old and not job_processes(path / STATUS_FILE):
                found.append(path)
    return found


def job_processes(status: Path) -> dict[int, list[bytes]]:
    """Return the environment variables of each process of a job, by process number.

    status: the job's status file. Processes of the job are those that inherited MGG_STATUS with its path, in any
    session.
    """
    found, mark = {}, f"{STATUS}={status}".encode()
    for process in _processes():
        with contextlib.suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if mark in variables and int(process.name) != os.getpid():
                found[int(process.name)] = variables
    return found


def in_use(folder: Path) -> set[str]:
    """Return the names below ``folder`` that some process maps or holds open, as far as this user may look."""
    return set().union(*(files_of(process, f"{folder}/") for process in _processes()))


def files_of(process: Path, prefix: str) -> set[str]:
    """Return the names with this prefix that a process (its folder in /proc) holds open or maps.

    Open files come first: a process that begins to use shared memory opens it, maps it and closes it.
    """
    names: set[str] = set()
    with contextlib.suppress(OSError):  # it ended, or belongs to another user
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(handle.readlink())
                if target.startswith(prefix):
                    names.add(target)
    with contextlib.suppress(OSError):
        mapped = (process / "maps").read_text(errors="replace").splitlines()
        if not mapped:  # it is ending: it gave its memory back, and is about to close its files
            return set()
        for line in mapped:
            start = line.find(prefix)
            if start >= 0:
                names.add(line[start:].removesuffix(" (deleted)"))
    return names
