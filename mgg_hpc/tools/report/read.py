"""Read the files of a run for its report: settings, epochs, summary, profile and the tuner's path."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import config
from ...config import Settings
from ...errors import InputError
from ...training import run_folder

LARGEST = 1 << 28  # bytes of a JSON file, unpacked


@dataclass(frozen=True)
class Run:
    """The content of a run's folder.

    name: the last parts of the folder's path, which differ from those of the other runs on the page. metrics: float64
    [epochs] by column of metrics.csv. summary: empty for a run that has not ended. profile: what
    ``mgg train --profile`` wrote, or empty. traces: paths by rank, in order; ranks whose trace is missing are left
    out. tuning: what the search for ps, dist and wpb wrote, or empty.
    """

    name: str
    folder: Path
    settings: Settings
    metrics: dict[str, NDArray[np.float64]]
    summary: dict[str, Any]
    profile: dict[str, Any]
    traces: dict[int, Path]
    tuning: dict[str, Any]

    @property
    def epochs(self) -> int:
        """Number of epochs that have ended."""
        return len(self.metrics["epoch"])

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Part of the summary for each rank, which summaries of earlier versions lack."""
        return list(self.summary.get("per_rank", ()))


def read(paths: Sequence[Path], *, clicks: bool = False) -> list[Run]:
    """Read runs. clicks: as for `config.load`.

    Raises InputError for a folder that holds no run, a run named twice, and a damaged file.
    """
    folders = [run_folder.find(path) for path in paths]
    if len(set(folders)) < len(folders):
        raise InputError("a run is named twice; name each once")
    parts, names = 2, [str(Path(*folder.parts[-2:])) for folder in folders]
    while len(set(names)) < len(names):
        parts += 1
        names = [str(Path(*folder.parts[-parts:])) for folder in folders]
    return [_run(folder, name, clicks) for folder, name in zip(folders, names, strict=True)]


def content(path: Path) -> Any:
    """Return what a JSON file holds, which may be compressed. Raises InputError for a damaged or too large file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        return json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: is damaged ({error}); remove it to report on the rest of the run"
        ) from error


def _run(folder: Path, name: str, clicks: bool) -> Run:
    settings, metrics = (
        config.load(folder / run_folder.JOB, of_run=True, clicks=clicks),
        _metrics(folder / run_folder.METRICS),
    )
    summary = _document(folder / run_folder.SUMMARY, "mgg-summary")
    profile = _document(folder / run_folder.PROFILE / run_folder.SUMMARY, "mgg-profile")
    ranks = profile.get("ranks", 0)
    if type(ranks) is not int or (profile and ranks < 1):
        where = folder / run_folder.PROFILE / run_folder.SUMMARY
        raise InputError(f"{where}: ranks must be a whole number of at least 1, not {ranks!r:.40}")
    files = {path.name: path for path in (folder / run_folder.PROFILE).glob("rank-*.json.gz")}
    numbers = sorted(int(each[5:-8]) for each in files if re.fullmatch("rank-[0-9]{1,9}[.]json[.]gz", each))
    traces = {rank: files[f"rank-{rank}.json.gz"] for rank in numbers if rank < ranks}
    tuning = _document(folder / run_folder.TUNING, "mgg-tuning")
    return Run(name, folder, settings, metrics, summary, profile, traces, tuning)


def _document(path: Path, kind: str) -> dict[str, Any]:
    """Return the content of a JSON file of this format, or an empty one where there is no file. Raises InputError."""
    if not path.exists():
        return {}
    found = content(path)
    if not isinstance(found, dict) or found.get("format") != kind or found.get("version") != 1:
        raise InputError(f"{path}: is no {kind} of version 1; remove it to report on the rest of the run")
    return found


def _metrics(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns of metrics.csv. A last line without its end, which a run is writing, is left out.

    Raises InputError for lines that are not an epoch each, in order, with a number in every column.
    """
    try:
        text = path.read_text(encoding="utf-8")
        first, *lines = text[: text.rfind("\n") + 1].splitlines() or ["epoch"]
        header = first.split(",")
        table = np.array([line.split(",") for line in lines], np.float64).reshape(
            len(lines), -1 if lines else len(header)
        )
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; without it there is nothing to report") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged ({error})") from error
    if header[0] != "epoch" or len(set(header)) != table.shape[1]:
        raise InputError(f"{path}: is damaged, its first line must name each column, 'epoch' first")
    if not np.array_equal(table[:, 0], np.arange(len(table)) + 1):
        raise InputError(f"{path}: is damaged, its lines must be of epochs 1, 2, 3 and so on")
    return dict(zip(header, table.T, strict=True))
