"""`mgg runs`: a table of the runs in a folder, with their scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from rich.table import Table

from ..errors import InputError
from ..sizes import counted
from ..training import run_folder
from ..training.screen import console, duration
from .report.read import Run, read

DEPTH = 3  # of the folders of runs below the folder that is named


def process_runs(folder: Path) -> None:
    """Print a line for each run below a folder. Raises InputError where there is none."""
    found = sorted(path.parent for path in _jobs(folder))
    if not found:
        raise InputError(
            f"{folder}: holds no runs; 'mgg train' makes them, in runs/ if run.folder names no other"
        )
    table = Table(title=f"{counted(len(found), 'run')} in {folder}")
    for name in ("run", "model", "graph", "epochs", "validation", "test", "time of epochs"):
        side: Literal["left", "right"] = "left" if name in ("run", "model", "graph") else "right"
        table.add_column(name, justify=side, overflow="fold")
    for path in found:
        name = str(path.relative_to(folder))
        try:
            (run,) = read([path], clicks=True)
        except InputError:
            table.add_row(name, "damaged")  # mgg report says how
        else:
            table.add_row(name, *_cells(run))
    console().print(table)


def _jobs(folder: Path) -> Iterator[Path]:
    """Yield the job files of runs."""
    for depth in range(DEPTH + 1):
        for path in folder.glob("*/" * depth + run_folder.JOB):
            if (path.parent / run_folder.METRICS).exists() and not path.parent.is_symlink():
                yield path


def _chosen(run: Run) -> int:
    """Return the index of the epoch whose weights are kept: the best (ties: the lower validation loss), or the last."""
    columns = run.metrics
    if run.settings.train.select == "last" or not columns["val_loss"].any():  # no validation nodes
        return -1
    return int(np.lexsort((columns["val_loss"], -columns["val_accuracy"]))[0])


def _cells(run: Run) -> Iterator[str]:
    """Yield the text of each column after the name."""
    settings, columns, clicks = run.settings, run.metrics, run.settings.dlrm.data
    yield "dlrm" if clicks else Path(settings.model.module).name or settings.model.name
    yield (
        Path(clicks).stem
        if clicks
        else run.summary.get("graph", {}).get("name", Path(settings.graph.file).stem)
    )
    yield f"{run.epochs}" if run.summary else f"{run.epochs} of {settings.train.epochs}, not ended"
    if not run.epochs:
        return
    if clicks:
        yield from ("-", f"AUC {columns['auc'][-1]:.4f}")
    else:
        best, splits = _chosen(run), run.summary.get("splits", {})
        for split in ("val", "test"):
            yield f"{columns[f'{split}_accuracy'][best]:.4f}" if splits.get(split, 1) else "-"
    yield duration((columns["epoch_ms"].sum() + columns["eval_ms"].sum()) / 1000)
