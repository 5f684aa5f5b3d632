"""Shared-memory segments that MPI libraries leave in /dev/shm when a job is killed."""

from __future__ import annotations

import contextlib
import os
import time
from fnmatch import fnmatch
from pathlib import Path

FOLDER = Path("/dev/shm")

# MPICH; Open MPI 4 and 5 (byte transfer, one-sided windows); UCX below either of them.
PATTERNS = (
    "mpich_shm_*",
    "mpich_comm_world*",
    "vader_segment.*",
    "sm_segment.*",
    "osc_rdma.*",
    "osc_sm.*",
    "ucx_shm_posix_*",
)

_YOUNG_SECONDS = 2.0  # a segment may exist for a moment before its maker maps it


def stale() -> list[Path]:
    """Segments of this user that no process maps: what a job of the past has left."""
    newest = time.time() - _YOUNG_SECONDS
    return _unmapped([path for path, state in _segments() if state.st_ctime < newest])


def left_since(start: float) -> list[Path]:
    """Segments of this user made since ``start`` (seconds of the epoch) that no process maps."""
    return _unmapped([path for path, state in _segments() if state.st_ctime >= start])


def remove(paths: list[Path]) -> int:
    """Remove segments; returns the bytes that they held."""
    freed = 0
    for path in paths:
        with contextlib.suppress(OSError):  # another clean-up was faster
            held = path.stat().st_blocks * 512
            path.unlink()
            freed += held
    return freed


def _segments() -> list[tuple[Path, os.stat_result]]:
    """Regular files of this user in /dev/shm that are named as MPI libraries name theirs."""
    found = []
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in entries:
            if any(fnmatch(entry.name, pattern) for pattern in PATTERNS) and entry.is_file(
                follow_symlinks=False
            ):
                state = entry.stat(follow_symlinks=False)
                if state.st_uid == os.getuid():
                    found.append((Path(entry.path), state))
    return found


def _unmapped(paths: list[Path]) -> list[Path]:
    """Those that no process maps or holds open, as far as this user may look."""
    if not paths:
        return []
    used = in_use(FOLDER)
    return [path for path in paths if str(path) not in used]


def in_use(folder: Path) -> set[str]:
    """Names below ``folder`` that some process maps or holds open."""
    names: set[str] = set()
    prefix = f"{folder}/"
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            names |= _files_of(process, prefix)
    return names


def _files_of(process: Path, prefix: str) -> set[str]:
    names: set[str] = set()
    with contextlib.suppress(OSError):  # it ended, or belongs to a user who cannot map our segments
        for line in (process / "maps").read_text(errors="replace").splitlines():
            start = line.find(prefix)
            if start >= 0:
                names.add(line[start:].removesuffix(" (deleted)"))
    with contextlib.suppress(OSError):
        for handle in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(handle.readlink())
                if target.startswith(prefix):
                    names.add(target)
    return names
