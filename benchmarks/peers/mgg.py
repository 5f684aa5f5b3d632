"""This package."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

import mgg_hpc as mgg
import peers
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn import saga
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends import native
from mgg_hpc.runtime.sampler import Sampler, shuffled
from mgg_hpc.tools.bench.aggregate import Aggregation
from mgg_hpc.tools.bench.epoch import Epochs, Shape, job_of
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs

from . import nets, programs
from .traversals import DAMPING, Task, finite

BACKENDS = {"cpu": "serial", "cuda": "cuda"}
ABOUT = f"{mgg.__version__} ({native.load().instruction_set()})"


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg" and "gather floor"."""
    rows = np.load(x, mmap_mode="r").astype(np.dtype(dtype))
    graph, values = Graph("", np.load(indptr), np.load(indices)), None if weight is None else np.load(weight)
    one = Aggregation(graph, rows, weight=values, backend=BACKENDS[peers.DEVICE], threads=peers.THREADS)

    def sums() -> Any:
        one.sums()
        return one.out

    return {"mgg": sums, "gather floor": one.floor}


def epoch(file: str, weights: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg": first the validation rows' loss before training; then epochs of `mgg train` and their loss.

    weights: the file into which the initial weights are written, for other libraries. inputs: the fields of a Shape,
    and more that other libraries take.
    """
    shape, backend = Shape(**{each.name: inputs[each.name] for each in fields(Shape)}), BACKENDS[peers.DEVICE]
    job = job_of(Path(file), shape, mpi.world(), threads=peers.THREADS, backend=backend)
    np.savez(weights, **{name: value.cpu().numpy() for name, value in job.model.state_dict().items()})
    epochs = Epochs(job)
    calls = itertools.chain([epochs.untrained], itertools.repeat(epochs.step))
    return {"mgg": lambda: np.array(next(calls)())}


def traverse(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", whose clock leaves out loading, checks and renaming.

    Lengths are drawn from the ids of both ends of an edge, as the lengths of the inputs are.
    """
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


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg", the sampler on all threads, and "mgg loader", without features."""
    task = nets.Sampled(**inputs)
    rows, loader, epochs = np.load(task.rows), _loader(task), itertools.count(1)
    drawing = Sampler(np.load(task.indptr), np.load(task.indices))

    def one(part: np.ndarray, step: int) -> tuple[int, int]:
        drawn = drawing.sample(part, task.fanouts, seed=0, step=step)
        return sum(len(hop.indices) for hop in drawn.hops), len(drawn.nodes)

    def alone() -> np.ndarray:
        epoch = next(epochs)
        order = rows[shuffled(rows, 0, epoch, peers.THREADS)]
        parts = np.split(order, range(task.batch_size, len(order), task.batch_size))
        with ThreadPoolExecutor(peers.THREADS) as pool:
            return nets.means(pool.map(one, parts, itertools.count(epoch * len(parts))))

    def loaded() -> np.ndarray:
        return nets.means((batch.edges, batch.blocks[0].rows) for batch in loader)

    return {"mgg": alone, "mgg loader": loaded}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", an epoch; and write the initial weights for the other libraries."""
    task = nets.Sampled(**inputs)
    loader, drop = _loader(task), mgg.nn.Dropout(task.dropout)
    mgg.manual_seed(0)
    net = nets.Net(
        [mgg.nn.SAGEConv(each.inputs, each.outputs) for each in task.convolutions],
        lambda layer, i, h, blocks: layer(h, blocks[i], relu=i < len(blocks) - 1),
        lambda h, i, blocks: drop(h, blocks[i], rectified=True) if i else h,
    )
    np.savez(task.weights, **{name: value.numpy() for name, value in net.state_dict().items()})
    return {"mgg": nets.epoch_of(net, lambda: ((one.x, one.y, one.blocks, one.edges) for one in loader))}


def _loader(task: nets.Sampled) -> mgg.NeighborLoader:
    graph, rows = mgg.open(task.graph, threads=peers.THREADS), np.load(task.rows)
    return mgg.NeighborLoader(graph, task.fanouts, batch_size=task.batch_size, input_nodes=rows, shuffle=True)


class Program(saga.Layer):
    """A layer whose output is its accumulator. weights: its parameters by name."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, torch.nn.Parameter(value.detach()))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


class Gated(Program):
    """A vertex's neighbours, with a gate for each edge and column."""

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(linear(edge.src, self.far) + linear(edge.dst, self.near)) * edge.src


class Typed(Program):
    """A vertex's neighbours, each times the matrix of its edge's type."""

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return saga.typed_linear(edge.src, self.matrix, edge.data["type"])


def propagate(**inputs: Any) -> dict[str, programs.Run]:
    """Return the runs "mgg" and "mgg edge tensors" of a Task."""
    task = programs.Task(**inputs)
    graph, runs = mgg.open(task.file, threads=peers.THREADS), {}
    for name, fuse in (("mgg", True), ("mgg edge tensors", False)):
        x, weights = task.leaves()
        layer = Typed(weights) if task.program == "typed" else Gated(weights)
        layer.fuse, layer.accumulator = fuse, "max" if task.program == "gated-max" else "sum"
        runs[name] = task.run(partial(layer, x, graph), [x, *layer.parameters()])
    return runs
