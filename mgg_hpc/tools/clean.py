"""`mgg clean`: remove what killed jobs and interrupted writes have left behind.

- this user's segments in /dev/shm, named as MPI libraries name them, that no process maps, and files of MPICH's
  process manager in /tmp that no rank reads any more;
- folders of `mgg launch` in the temporary folder whose job has no process any more;
- in a folder given by the user, temporary files ``.NAME.ID.tmp`` of unfinished writes (ID: 12 hexadecimal digits, or
  the number of the process that wrote) that no process has open, and unfinished checkpoints of runs in which no process
  of this machine or of one that shares locks is training;
- in that folder also ``.NAME.build``, where an import or another build of a graph file was stopped: it begins anew
  then; and ``NAME.plans``, where plans of a graph file are kept that is not there any more.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from ..data.assembly.work import discard, unfinished
from ..errors import InputError
from ..runtime import leftovers
from ..training import run_folder
from ..training.checkpoints import folders

_PLAN = re.compile(r"[0-9a-f]{16}-(matrix|halo)-[a-z]+-\d+of\d+-[0-9a-f]{16}\.plan")
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{12}|\d+)\.tmp")


def process_clean(folder: Path | None, dry_run: bool) -> int:
    """Remove what killed jobs and interrupted writes left on this machine, and print the names of the files.

    folder: where to look for unfinished files too, or None. dry_run: True to print the names only.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: not a folder")
    found, builds = leftovers.stale(), list[Path]()
    if folder is not None:
        builds = [path for path in unfinished(folder.resolve()) if _is_mine(path)]
        left = [path for path in temporary_files(folder) if path.parent not in builds]
        found += left + unfinished_checkpoints(folder) + builds + plans_without_graph(folder)
    held = sum(_bytes(path) for path in found)
    for path in found:
        print(f"{'would remove' if dry_run else 'removed'} {path}")
        if dry_run:
            continue
        if path in builds:
            discard(path)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if found:
        print(f"{len(found)} left behind, {held / 2**20:.1f} MiB")
    else:
        print("nothing was left behind")
    return 0


def temporary_files(folder: Path) -> list[Path]:
    """Return the temporary files of this user below ``folder`` that no process has open."""
    matching = [
        path
        for path in sorted(folder.resolve().rglob(".*.tmp"))
        if _TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink() and _is_mine(path)
    ]
    used = leftovers.in_use(folder.resolve()) if matching else set()
    return [path for path in matching if str(path) not in used]


def unfinished_checkpoints(folder: Path) -> list[Path]:
    """Return the folders below ``folder`` of checkpoints that were being written as their run was killed."""
    found = []
    for parent in folder.resolve().rglob(run_folder.CHECKPOINTS):
        drafts = [path for path in folders.drafts(parent) if _is_mine(path)]
        if drafts and (parent.parent / run_folder.METRICS).exists():
            with suppress(InputError, OSError), run_folder.claimed(parent.parent, seconds=0):
                found += drafts
    return found


def plans_without_graph(folder: Path) -> list[Path]:
    """Return the folders below ``folder`` of kept plans (and nothing else) whose graph file is gone."""
    return [
        path
        for path in sorted(folder.resolve().rglob("*.plans"))
        if path.is_dir()
        and not path.is_symlink()
        and _is_mine(path)
        and not path.with_suffix("").exists()
        and all(_PLAN.fullmatch(each.name) for each in path.iterdir())
    ]


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:  # removed in the meantime
        return False


def _bytes(path: Path) -> int:
    """Return the bytes that a file, or a folder with all that is in it, takes."""
    try:
        inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
        return sum(each.lstat().st_blocks * 512 for each in (path, *inside))
    except OSError:
        return 0
