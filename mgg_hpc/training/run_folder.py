"""The numbered folder of a run; its files appear whole or not at all."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data.atomic_write import replacement
from ..errors import InputError

METRICS = "metrics.csv"
SUMMARY = "summary.json"
JOB = "job.toml"
CHECKPOINTS = "checkpoints"


def create(parent: Path) -> Path:
    """Create and return the next numbered folder in ``parent`` (001, 002, ...); ``latest`` points to it.

    Raises InputError if it cannot be written to.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        last = max((int(p.name) for p in parent.iterdir() if p.name.isdigit()), default=0)
        for number in itertools.count(last + 1):
            folder = parent / f"{number:03d}"
            with suppress(FileExistsError):
                folder.mkdir()
                break
        (folder / CHECKPOINTS).mkdir()
        temporary = parent / f".latest.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        temporary.replace(parent / "latest")
    except OSError as error:
        raise InputError(
            f"run.folder: {parent} cannot be written to ({error.strerror}); name another"
        ) from error
    return folder


def find(path: Path) -> Path:
    """Return the folder of a run: ``path``, or the latest one in this folder of runs. Raises InputError."""
    for folder in (path, path / "latest"):
        if (folder / JOB).is_file():
            return folder.resolve()
    raise InputError(f"{path}: holds no run ({JOB} is missing); name a folder that 'mgg train' made")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one. Raises InputError where the device is full."""
    with replacement(path, force=True, size=len(content)) as temporary:
        temporary.write_bytes(content)


def write_summary(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Write summary.json and return its path."""
    path = folder / SUMMARY
    write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())
    return path


class MetricsFile:
    """metrics.csv: a header, then one line an epoch, readable while the run goes on."""

    def __init__(self, folder: Path, columns: list[str]) -> None:
        self._file = (folder / METRICS).open("w", newline="", buffering=1)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(columns)

    def add(self, values: list[float | int]) -> None:
        """Write the line of an epoch; floats with 9 significant digits, which determine a float32 exactly."""
        self._writer.writerow([f"{v:.9g}" if isinstance(v, float) else v for v in values])

    def close(self) -> None:
        """Close the file after writing everything to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
