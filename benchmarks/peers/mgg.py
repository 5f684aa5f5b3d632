"""This package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import peers
from mgg_hpc import __version__
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends import native
from mgg_hpc.tools.bench.aggregate import Aggregation
from mgg_hpc.tools.bench.epoch import Epochs, Shape, job_of

from .programs_mgg import propagate  # noqa: F401 - a task

BACKENDS = {"cpu": "serial", "cuda": "cuda"}


def about() -> str:
    """Return the version and the instruction set."""
    return f"{__version__} ({native.load().instruction_set()})"


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg" and "gather floor"."""
    from mgg_hpc.data.graph import Graph

    rows = np.load(x, mmap_mode="r").astype(np.dtype(dtype))
    graph, values = Graph("", np.load(indptr), np.load(indices)), None if weight is None else np.load(weight)
    one = Aggregation(graph, rows, weight=values, backend=BACKENDS[peers.DEVICE], threads=peers.THREADS)

    def mgg() -> Any:
        one.sums()
        return one.out

    return {"mgg": mgg, "gather floor": one.floor}


def epoch(file: str, weights: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return "mgg", an epoch of `mgg train`, which returns its loss, and "untrained", the validation rows' loss.

    weights: the file into which the initial weights are written, for other libraries. inputs: the fields of a Shape,
    and more that other libraries take.
    """
    shape, backend = Shape(**{each.name: inputs[each.name] for each in fields(Shape)}), BACKENDS[peers.DEVICE]
    job = job_of(Path(file), shape, mpi.world(), threads=peers.THREADS, backend=backend)
    np.savez(weights, **{name: value.cpu().numpy() for name, value in job.model.state_dict().items()})
    epochs = Epochs(job)
    return {"mgg": lambda: np.array(epochs.step()), "untrained": lambda: np.array(epochs.untrained())}


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", whose clock leaves out loading, checks and renaming.

    Lengths are drawn from the ids of both ends of an edge, as the lengths of the inputs are.
    """
    from mgg_hpc.runtime import backends
    from mgg_hpc.traversal import part as parts
    from mgg_hpc.traversal import runs

    from .traversals import DAMPING, Task, finite

    task, comm = Task(**inputs), mpi.world()
    if task.part == "cc":
        runs.check_undirected(task.file, directed=task.directed)
    backend = backends.make(backends.choose_cpu("serial", comm), comm, threads=peers.THREADS)
    graph = parts.load(Path(task.file), comm, backend, weights=task.part == "sssp")
    calls = {
        "bfs": ("depth", partial(runs.bfs, graph, task.sources)),
        "sssp": ("distance", partial(runs.sssp, graph, task.sources, random_lengths=True)),
        "cc": ("component", partial(runs.components, graph)),
        "pagerank": ("rank", partial(runs.pagerank, graph, damping=DAMPING, tolerance=task.tolerance)),
    }
    name, call = calls[task.part]

    def run() -> tuple[float, Callable[[], np.ndarray]]:
        done = list(call(check=False))
        whole = np.empty(graph.nodes, np.float64)
        whole[graph.ids] = done[-1].arrays[name]
        return sum(each.seconds for each in done), lambda: finite(whole)

    return {"mgg": run}
