"""Read the files of a run for its report: settings, epochs, summary, profile and the tuner's path."""

from __future__ import annotations

import csv
import json
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
from ...training.profile.profiler import FOLDER, trace_name

TUNING = "tuning.json"
LARGEST_JSON = 1 << 28  # bytes


@dataclass(frozen=True)
class Run:
    """The content of a run's folder.

    name: the last parts of the folder's path, which differ from those of the other runs on the page. metrics: float64
    [epochs] by column of metrics.csv. summary: None for a run that has not ended. profile: what
    ``mgg train --profile`` wrote, or None. traces: ranks and the paths of their traces, in the order of ranks; ranks
    whose trace is missing are left out. tuning: what the search for ps, dist and wpb wrote, or None.
    """

    name: str
    folder: Path
    settings: Settings
    metrics: dict[str, NDArray[np.float64]]
    summary: dict[str, Any] | None
    profile: dict[str, Any] | None
    traces: list[tuple[int, Path]]
    tuning: dict[str, Any] | None

    @property
    def epochs(self) -> int:
        """Number of epochs that have ended."""
        return len(self.metrics["epoch"])


def read(paths: Sequence[Path]) -> list[Run]:
    """Read runs. Raises InputError for a folder that holds no run, a run named twice, and a damaged file."""
    folders = [run_folder.find(path) for path in paths]
    if len(set(folders)) < len(folders):
        raise InputError("a run is named twice; name each once")
    return [_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last two parts of each folder's path, or as many more as it takes for all names to differ."""
    parts = 2
    while True:
        names = [str(Path(*folder.parts[-parts:])) for folder in folders]
        if len(set(names)) == len(names):
            return names
        parts += 1


def _run(folder: Path, name: str) -> Run:
    """Return the run in a folder. Raises InputError for a damaged file."""
    settings = config.load(folder / run_folder.JOB)
    summary = _document(folder / run_folder.SUMMARY, "mgg-summary")
    profile = _document(folder / FOLDER / run_folder.SUMMARY, "mgg-profile")
    return Run(
        name=name,
        folder=folder,
        settings=settings,
        metrics=_metrics(folder / run_folder.METRICS),
        summary=summary,
        profile=profile,
        traces=[] if profile is None else _traces(folder / FOLDER, profile),
        tuning=_document(folder / TUNING, "mgg-tuning"),
    )


def _traces(folder: Path, profile: dict[str, Any]) -> list[tuple[int, Path]]:
    """Return the ranks of a profile that have a trace in its folder, and the traces' paths. Raises InputError."""
    ranks = profile.get("ranks")
    if type(ranks) is not int or ranks < 1:
        raise InputError(
            f"{folder / run_folder.SUMMARY}: ranks must be a whole number of at least 1, not {ranks!r:.40}; remove "
            f"the file to report on the rest of the run"
        )
    # The folder is listed, and not asked for every rank: a damaged file may name very many.
    numbers = (each.name.removeprefix("rank-").split(".")[0] for each in folder.iterdir() if each.is_file())
    known = sorted({int(number) for number in numbers if number.isdecimal() and len(number) < 10})
    paths = ((rank, folder / trace_name(rank)) for rank in known if rank < ranks)
    return [(rank, path) for rank, path in paths if path.is_file()]


def _document(path: Path, kind: str) -> dict[str, Any] | None:
    """Return the content of a JSON file of this format, or None where there is none. Raises InputError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise InputError(f"{path}: has more than {LARGEST_JSON >> 20} MiB; it is not what a run writes")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: is damaged ({error}); remove it to report on the rest of the run"
        ) from error
    if not isinstance(found, dict) or found.get("format") != kind or found.get("version") != 1:
        raise InputError(f"{path}: is no {kind} of version 1; remove it to report on the rest of the run")
    return found


def _metrics(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns of metrics.csv. A last line without its end, which a run is writing, is left out.

    Raises InputError for lines that are not an epoch each, in order, with a number in every column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing; without it there is nothing to report") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is damaged, it is no text ({error})") from error
    lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    header = lines[0] if lines else ["epoch"]
    if header[0] != "epoch" or len(set(header)) != len(header):
        raise InputError(f"{path}: is damaged, its first line must name columns, 'epoch' first")
    rows = []
    for number, line in enumerate(lines[1:], 1):
        try:
            row = [float(value) for value in line]
        except ValueError as error:
            raise InputError(f"{path}: is damaged, line {number + 1} is not of numbers ({error})") from error
        if len(row) != len(header) or row[0] != number:
            raise InputError(
                f"{path}: is damaged, line {number + 1} must have {len(header)} values, epoch {number} first"
            )
        rows.append(row)
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(header))
    return dict(zip(header, table.T, strict=True))
