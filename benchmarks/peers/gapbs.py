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

from .traversals import DAMPING, Task

TRIALS = 3
WIDTHS = (1, 4, 16, 32, 64)  # delta of its shortest paths, of which the fastest is taken
PROGRAMS = {"bfs": "bfs", "sssp": "sssp", "cc": "cc", "pagerank": "pr"}
FOLDER = Path(os.environ.get("MGG_GAPBS", "gapbs"))

for _name in PROGRAMS.values():
    if not (FOLDER / _name).is_file():
        raise OSError(f"{FOLDER / _name}: no such program; MGG_GAPBS names the folder of a built GAPBS")

ABOUT = "gapbs"  # its programs print no version


def traverse(**inputs: Any) -> dict[str, Callable[[], tuple[float, Any]]]:
    """Return the run "gapbs", which has no result. The programs read OMP_NUM_THREADS.

    Shortest paths are found by the one of WIDTHS that is the fastest from the first source.
    """
    task = Task(**inputs)
    path, program = _written(task), PROGRAMS[task.part]
    begin: list[list[object]] = [["-r", source] for source in task.sources]
    options: list[object] = []
    if task.part in ("cc", "pagerank"):
        begin = [[]]
    if task.part == "pagerank":
        assert DAMPING == 0.85  # it takes no other
        options = ["-i", 1000, "-t", task.tolerance]
    if task.part == "sssp":
        took = {width: _seconds(program, "-f", path, *begin[0], "-d", width) for width in WIDTHS}
        options = ["-d", min(took, key=lambda width: took[width])]

    def run() -> tuple[float, Any]:
        return sum(_seconds(program, "-f", path, *each, *options) for each in begin), np.zeros(0)

    return {"gapbs": run}


def _written(task: Task) -> Path:
    """Write the graph as GAPBS serialises it, for shortest paths with lengths as integers."""
    weighted = task.part == "sssp"
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
    words = [FOLDER / program, "-n", TRIALS, *arguments]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    return statistics.median(float(each) for each in re.findall(r"Trial Time:\s+([\d.]+)", done.stdout))
