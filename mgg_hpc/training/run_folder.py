"""The numbered folder of a run. Its files appear whole or not at all, and are readable by their owner only."""

from __future__ import annotations

import csv
import errno
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..data.atomic_write import replacement, sync, temporary
from ..errors import InputError

METRICS = "metrics.csv"
SUMMARY = "summary.json"
TUNING = "tuning.json"
JOB = "job.toml"
CHECKPOINTS, PROFILE = "checkpoints", "profile"  # folders
CLAIM_SECONDS = 10.0  # time for a killed job to end


def create(parent: Path) -> Path:
    """Make and return the next numbered folder in ``parent`` (001, 002, ...), and let ``latest`` point to it.

    Raises InputError if it cannot be written to.
    """
    try:
        make_folders(parent)
        last = max((int(p.name) for p in parent.iterdir() if p.name.isdecimal()), default=0)
        for number in itertools.count(last + 1):
            folder = parent / f"{number:03d}"
            with suppress(FileExistsError):
                folder.mkdir(0o700)
                break
        for made in (folder, folder / CHECKPOINTS):
            make_private(made)
        link = temporary(parent / "latest")
        link.symlink_to(folder.name)
        link.replace(parent / "latest")
        sync(parent)
    except OSError as error:
        raise InputError(
            f"run.folder: {parent} cannot be written to ({error.strerror}); name another"
        ) from error
    return folder


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, and wait until their names are on the disk. mode: of the folder."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode, parents=True, exist_ok=True)
    for each in missing:
        with suppress(PermissionError):  # a folder may be writable and not readable
            sync(each.parent)


def make_private(folder: Path) -> None:
    """Make a folder unless it exists, and let only its owner enter it, regardless of the umask."""
    folder.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)


@contextmanager
def claimed(folder: Path, seconds: float = CLAIM_SECONDS) -> Iterator[None]:
    """Keep other processes out of a run within ``with``, by a lock on metrics.csv.

    Raises InputError if another process holds the lock for ``seconds`` more, which a killed job may need to end. A file
    system without locks keeps no one out.
    """
    descriptor = private(str(folder / METRICS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + seconds
        while not _locked(descriptor):
            if time.monotonic() >= deadline:
                raise InputError(
                    f"{folder}: another job is training in it; wait until it has ended, or end it"
                )
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file; return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def find(path: Path) -> Path:
    """Return the folder of a run: ``path`` itself, or the latest run in it. Raises InputError."""
    for folder in (path, path / "latest"):
        if (folder / JOB).is_file():
            return folder.resolve()
    raise InputError(f"{path}: holds no run ({JOB} is missing); name a folder that 'mgg train' made")


def latest(parent: Path) -> Path | None:
    """Return the latest run in a folder of runs, or None if there is none."""
    return (parent / "latest").resolve() if (parent / "latest" / JOB).is_file() else None


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an opener for `open`."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one. Raises InputError if the device is full."""
    with replacement(path, force=True, size=len(content), mode=0o600) as name:
        name.write_bytes(content)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a document as `write_whole` does, and return its path."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())
    return path


class MetricsFile:
    """metrics.csv: a header, then one line per epoch, readable while the run goes on.

    kept: bytes of an existing file to append to; 0 begins a new one. Raises InputError if the file is shorter.
    """

    def __init__(self, folder: Path, columns: list[str], kept: int = 0) -> None:
        path = folder / METRICS
        size = path.stat().st_size if path.exists() else 0
        if size < kept:
            raise InputError(
                f"{path}: has {size} bytes, but {kept} when the checkpoint was written; put them back"
            )
        mode = "r+" if kept else "w"
        self._file = open(path, mode, newline="", buffering=1, opener=private)  # noqa: SIM115 - see `close`
        self._file.truncate(kept)
        self._file.seek(0, os.SEEK_END)
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not kept:
            self._writer.writerow(columns)

    def add(self, values: list[float | int]) -> None:
        """Write the line of an epoch; floats with 9 significant digits, which determine a float32 exactly."""
        self._writer.writerow([f"{v:.9g}" if isinstance(v, float) else v for v in values])

    @property
    def bytes(self) -> int:
        """Length of the file."""
        self._file.flush()
        return os.fstat(self._file.fileno()).st_size

    def sync(self) -> None:
        """Wait until all lines are on the disk. May be called from any thread."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write everything to the disk, and close the file."""
        self._file.flush()
        self.sync()
        self._file.close()
