"""This package."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.shapes import Shape
from torch import Tensor
from torch.nn.functional import linear

import mgg_hpc as mgg
import peers
from mgg_hpc import config
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn import saga
from mgg_hpc.plan import cuda_grid, workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import backends, cores, mpi
from mgg_hpc.runtime.backends import native
from mgg_hpc.runtime.backends.arguments import Rows
from mgg_hpc.runtime.sampler import Sampler, shuffled
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs

from . import nets, programs
from .traversals import DAMPING, Task, finite

AHEAD = (4, 16, 64)  # prefetch distances of the floor of CPUs, in edges; the fastest counts
FLOOR_EDGES = 8  # that a worker reads at once (cuda/gpu/rows/gather.cuh)
FLOOR_THREADS = (128, 256, 512)  # of a CUDA block; the fastest counts
WARM_UP = 3
BACKENDS = {"cpu": "serial", "cuda": "cuda"}
ABOUT = f"{mgg.__version__} ({native.load().instruction_set()})"


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg" and "gather floor": sums of rows, and their reading alone (cuda/bench/gather_floor.cpp)."""
    given = np.load(x, mmap_mode="r").astype(np.dtype(dtype))
    graph, nodes, comm = Graph("", np.load(indptr), np.load(indices)), len(given), mpi.world()
    format = RowFormat(given.dtype, given.shape[1])
    chosen = backends.choose(BACKENDS[peers.DEVICE], comm)
    backend: Any = backends.make(chosen, comm, threads=peers.THREADS, widest=format)
    uploaded = backend.arrays.uploaded if peers.DEVICE == "cuda" else np.asarray
    keep, bounds = weight is not None, np.array([0, nodes])
    plan = workload.direct(workload.split(0, bounds, graph.indptr, graph.indices, keep_edges=keep))
    edge = None if weight is None else uploaded(np.load(weight)[plan.edge])
    rows = backend.rows(np.array([nodes]), format, symmetric=False)
    rows.local[:] = uploaded(given)
    out = backend.memory.padded(nodes, format)
    backend.prepare(plan, format)

    def sums() -> Any:
        backend.aggregate(plan, "sum", rows, out, edge=edge)
        return out

    # Schedules of CPUs try two ways of sweeping wide rows in their first calls.
    for _ in range(WARM_UP if peers.DEVICE == "cuda" else native.load().Schedule.SETTLED):
        sums()
    floors = (_device_floors if peers.DEVICE == "cuda" else _host_floors)(backend, graph, rows)
    return {"mgg": sums, "gather floor": min(floors, key=_fastest)}


def _host_floors(_: Any, graph: Graph, rows: Rows) -> list[Callable[[], Any]]:
    """Return reads of the rows of all edges by each of AHEAD."""
    words = rows.local.view(f"u{rows.format.dtype.itemsize}")  # it takes no bfloat16
    indices = graph.indices.astype(np.int32, copy=False)
    return [partial(native.load().gather_floor, indices, words, ahead, peers.THREADS) for ahead in AHEAD]


def _device_floors(backend: Any, graph: Graph, rows: Rows) -> list[Callable[[], Any]]:
    """Return reads of the rows of all edges by each of FLOOR_THREADS."""
    arrays, (lanes, _) = backend.arrays, cuda_grid.shape(rows.format)
    indices = arrays.uploaded(graph.indices.astype(np.int32))

    def floor(threads: int) -> None:
        blocks = -(-graph.edges // FLOOR_EDGES * lanes // threads)
        shape = backend.native.LaunchShape(lanes, 1, blocks, threads, 0, arrays.stream())
        at, first = arrays.address(indices), int(rows.addresses[0])
        backend.native.gather_floor(at, graph.edges, first, rows.format.row_bytes, 0, shape)

    return [partial(floor, threads) for threads in FLOOR_THREADS]


def _fastest(floor: Callable[[], Any]) -> float:
    """Return the least seconds of a few calls of a floor. On CPUs a call measures its own time and returns it."""
    taken = [peers.timed(floor, peers.cuda()) for _ in range(WARM_UP)]
    return min(seconds if result is None else result[0] for seconds, result in taken)


def epoch(file: str, weights: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg": first the validation rows' loss before training; then epochs of `mgg train` and their loss.

    weights: the file into which the initial weights are written, for other libraries. inputs: the fields of a Shape,
    and more that other libraries take.
    """
    shape = Shape(**{each.name: inputs[each.name] for each in fields(Shape)})
    cores.return_freed_memory()  # as `mgg train` does first
    model = {"name": shape.model, "hidden": shape.hidden, "layers": shape.layers, "dropout": shape.dropout}
    tree = {
        "graph": {"file": file},
        "model": model | ({"heads": shape.heads} if shape.model == "gat" else {}),
        "run": {"threads": peers.THREADS, "backend": BACKENDS[peers.DEVICE]},
    }
    job = build(config.from_tree(tree, "benchmarks/epoch.py"), mpi.world())
    np.savez(weights, **{name: value.cpu().numpy() for name, value in job.model.state_dict().items()})
    trainer = Trainer(job, job.graph())

    def losses() -> Iterator[float]:
        trainer.evaluate()
        yield trainer.scores().val_loss
        for number in itertools.count(1):
            trainer.step(number)
            yield trainer.loss()

    return {"mgg": partial(lambda each: np.array(float(next(each))), losses())}


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
