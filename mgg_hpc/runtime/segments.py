"""Find what MPI libraries leave behind when a job is killed: shared-memory segments, and MPICH's files of the cores."""

from __future__ import annotations

import contextlib
import os
import time
from fnmatch import fnmatch
from pathlib import Path

FOLDER = Path("/dev/shm")

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

# MPICH's process managers write a file for the ranks to read while they start, always in this folder.
NOTES_FOLDER = Path("/tmp")
_NOTES = "hydra_hwloc_xmlfile_*"
_MANAGER = "hydra_pmi_proxy"
_STARTING_SECONDS = 60.0

_YOUNG_SECONDS = 2.0  # a segment may exist for a moment before a process maps it


def stale() -> list[Path]:
    """Return the segments of this user that no process maps: leftovers of earlier jobs."""
    newest = time.time() - _YOUNG_SECONDS
    return _unmapped([path for path, state in _files(FOLDER, PATTERNS) if state.st_ctime < newest]) + _notes(
        0.0
    )


def left_since(start: float) -> list[Path]:
    """Return the segments of this user made since ``start`` (seconds of the epoch) that no process maps."""
    return _unmapped([path for path, state in _files(FOLDER, PATTERNS) if state.st_ctime >= start]) + _notes(
        start
    )


def remove(paths: list[Path]) -> int:
    """Remove segments, and return the bytes that they held."""
    freed = 0
    for path in paths:
        with contextlib.suppress(OSError):  # removed by another clean-up
            held = path.stat().st_blocks * 512
            path.unlink()
            freed += held
    return freed


def _notes(start: float) -> list[Path]:
    """Return MPICH's files since ``start`` that no rank reads any more: no process manager runs, or they are old."""
    found = _files(NOTES_FOLDER, (_NOTES,))  # before looking for managers, so that no new one is missed
    oldest = time.time() - _STARTING_SECONDS
    running = _is_running(_MANAGER) if found else False
    return [
        path for path, state in found if state.st_ctime >= start and (not running or state.st_ctime < oldest)
    ]


def _is_running(name: str) -> bool:
    """Return whether a process of this user has this name."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            mine = process.name.isdigit() and process.stat().st_uid == os.getuid()
            if mine and (process / "comm").read_text().strip() == name:
                return True
    return False


def _files(folder: Path, patterns: tuple[str, ...]) -> list[tuple[Path, os.stat_result]]:
    """Return the regular files of this user in a folder whose names match one of the patterns."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if any(fnmatch(entry.name, pattern) for pattern in patterns) and entry.is_file(
                follow_symlinks=False
            ):
                state = entry.stat(follow_symlinks=False)
                if state.st_uid == os.getuid():
                    found.append((Path(entry.path), state))
    return found


def _unmapped(paths: list[Path]) -> list[Path]:
    """Return the files that no process maps or holds open, as far as this user may look."""
    if not paths:
        return []
    used = in_use(FOLDER)
    return [path for path in paths if str(path) not in used]


def in_use(folder: Path) -> set[str]:
    """Return the names below ``folder`` that some process maps or holds open."""
    names: set[str] = set()
    prefix = f"{folder}/"
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            names |= _files_of(process, prefix)
    return names


def _files_of(process: Path, prefix: str) -> set[str]:
    """Return the names with this prefix that a process holds open or maps.

    Open files come first: a process that begins to use a segment opens it, maps it and closes it.
    """
    names: set[str] = set()
    with contextlib.suppress(OSError):  # it ended, or belongs to another user
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(handle.readlink())
                if target.startswith(prefix):
                    names.add(target)
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            start = line.find(prefix)
            if start >= 0:
                names.add(line[start:].removesuffix(" (deleted)"))
    return names
