"""This package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mgg_hpc.runtime import backends, mpi
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs

from .. import ours
from .task import DAMPING, Task, finite

set_threads = ours.set_threads
about = ours.about

Timed = Callable[[], tuple[float, Callable[[], np.ndarray]]]


def _part(task: Task, *, weights: bool = False) -> parts.Part:
    comm = mpi.world()
    made = backends.make(backends.choose_cpu("serial", comm), comm, threads=ours.threads())
    return parts.load(Path(task.file), comm, made, weights=weights)


def _timed(part: parts.Part, name: str, found: Callable[[], Iterator[runs.Run]]) -> Timed:
    """Return a run whose clock is that of the traversals, without loading, checking or renaming."""

    def run() -> tuple[float, Callable[[], np.ndarray]]:
        done = list(found())
        whole = np.empty(part.nodes, np.float64)
        whole[part.ids] = done[-1].arrays[name]
        return sum(each.seconds for each in done), lambda: finite(whole)

    return run


def bfs(**inputs: Any) -> dict[str, Timed]:
    """Return the run "mgg"."""
    task = Task(**inputs)
    part = _part(task)
    return {"mgg": _timed(part, "depth", lambda: runs.bfs(part, task.sources, check=False))}


def sssp(**inputs: Any) -> dict[str, Timed]:
    """Return the run "mgg"; lengths are drawn from both ends' ids, as those of the file are."""
    task = Task(**inputs)
    part = _part(task, weights=True)
    return {"mgg": _timed(part, "distance", lambda: runs.sssp(part, task.sources, check=False))}


def cc(**inputs: Any) -> dict[str, Timed]:
    """Return the run "mgg"."""
    task = Task(**inputs)
    part = _part(task)
    return {"mgg": _timed(part, "component", lambda: runs.components(part, check=False))}


def pagerank(**inputs: Any) -> dict[str, Timed]:
    """Return the run "mgg"."""
    task = Task(**inputs)
    part = _part(task)

    def found() -> Iterator[runs.Run]:
        return runs.pagerank(part, damping=DAMPING, tolerance=task.tolerance, check=False)

    return {"mgg": _timed(part, "rank", found)}
