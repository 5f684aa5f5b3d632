"""GAP Benchmark Suite (Beamer, Asanovic, Patterson, arXiv:1508.03619): its programs, in the folder MGG_GAPBS.

It is built from its public source by `make`. A run starts a program for each source, which reads the graph, searches
three times and prints the times; the median counts. PageRank leaves out the rank of nodes without out-edges, and takes
values of the same iteration where they are there (Gauss and Seidel), so it needs fewer iterations.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .task import DAMPING, Task

TRIALS = 3
WIDTHS = (1, 4, 16, 32, 64)  # delta of its shortest paths, of which the fastest is taken
PROGRAMS = ("bfs", "sssp", "cc", "pr")

Timed = Callable[[], tuple[float, Any]]


def _folder() -> Path:
    return Path(os.environ.get("MGG_GAPBS", "gapbs"))


for _name in PROGRAMS:
    if not (_folder() / _name).is_file():
        raise OSError(
            f"{_folder() / _name}: no such program; MGG_GAPBS names the folder in which GAPBS was built"
        )


def set_threads(count: int) -> None:
    """Do nothing: the programs read OMP_NUM_THREADS."""


def about() -> str:
    """Return what it is."""
    return "gapbs"


def _written(task: Task, *, weighted: bool) -> Path:
    """Write the graph as GAPBS serialises it, with lengths as integers."""
    path = Path(task.indptr).with_suffix(".wsg" if weighted else ".sg")
    indptr, indices, length = (np.load(each) for each in (task.indptr, task.indices, task.lengths))
    source = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    order = np.lexsort((source, indices))
    back = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=len(indptr) - 1))]).astype(np.int64)
    both = ((indptr, indices, length), (back, source[order], length[order]))
    with path.open("wb") as file:
        np.array([task.directed]).tofile(file)
        np.array([len(indices), len(indptr) - 1], np.int64).tofile(file)
        for offsets, ends, lengths in both[: 1 + task.directed]:
            offsets.astype(np.int64).tofile(file)
            columns = [ends, lengths.astype(np.int32)] if weighted else [ends]
            np.stack(columns, axis=1).astype(np.int32).tofile(file)
    return path


def _seconds(program: str, *arguments: object) -> float:
    words = [_folder() / program, "-n", TRIALS, *arguments]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    return statistics.median(float(each) for each in re.findall(r"Trial Time:\s+([\d.]+)", done.stdout))


def _runs(program: str, path: Path, sources: list[int], *options: object) -> dict[str, Timed]:
    def run() -> tuple[float, Any]:
        begin = [["-r", source] for source in sources] or [[]]
        return sum(_seconds(program, "-f", path, *each, *options) for each in begin), lambda: np.zeros(0)

    return {"gapbs": run}


def bfs(**inputs: Any) -> dict[str, Timed]:
    """Return the run "gapbs"."""
    task = Task(**inputs)
    return _runs("bfs", _written(task, weighted=False), task.sources)


def sssp(**inputs: Any) -> dict[str, Timed]:
    """Return the run "gapbs", with the width that is the fastest from the first source."""
    task = Task(**inputs)
    path = _written(task, weighted=True)
    took = {width: _seconds("sssp", "-f", path, "-r", task.sources[0], "-d", width) for width in WIDTHS}
    return _runs("sssp", path, task.sources, "-d", min(took, key=lambda width: took[width]))


def cc(**inputs: Any) -> dict[str, Timed]:
    """Return the run "gapbs"."""
    return _runs("cc", _written(Task(**inputs), weighted=False), [])


def pagerank(**inputs: Any) -> dict[str, Timed]:
    """Return the run "gapbs"."""
    task = Task(**inputs)
    assert DAMPING == 0.85  # it takes no other
    return _runs("pr", _written(task, weighted=False), [], "-i", 1000, "-t", task.tolerance)
