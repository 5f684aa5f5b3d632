"""This package's batches: its sampler on threads, `NeighborLoader`, and GraphSAGE on blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import mgg_hpc as mgg
import peers
from mgg_hpc.plan.blocks import block_plans
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.workload import Plan
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampling.sampler import Sampled, Sampler, shuffled

from . import sampled
from .sampled import Task


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg", the sampler on all threads, and "mgg loader", without features."""
    task = Task(**inputs)
    rows, drawn, loader, epochs = np.load(task.rows), _drawn(task), _loader(task), itertools.count(1)

    def alone() -> np.ndarray:
        epoch = next(epochs)
        parts = _parts(rows, task, epoch)
        steps = range(epoch * len(parts), (epoch + 1) * len(parts))
        with ThreadPoolExecutor(peers.THREADS) as pool:
            return sampled.means(pool.map(lambda part, step: _sizes(drawn(part, step)), parts, steps))

    def loaded() -> np.ndarray:
        return sampled.means((batch.edges, batch.blocks[0].rows) for batch in loader)

    return {"mgg": alone, "mgg loader": loaded}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", an epoch; and write the initial weights for the other libraries."""
    task = Task(**inputs)
    loader, drop = _loader(task), mgg.nn.Dropout(task.dropout)
    mgg.manual_seed(0)
    net = sampled.Net(
        task.layers(mgg.nn.SAGEConv),
        lambda layer, i, h, blocks: layer(h, blocks[i], relu=i < len(blocks) - 1),
        lambda h, i, blocks: drop(h, blocks[i], rectified=True),
    )
    np.savez(task.weights, **{name: value.numpy() for name, value in net.state_dict().items()})
    return {"mgg": sampled.epoch_of(net, lambda: ((one.x, one.y, one.blocks, one.edges) for one in loader))}


def blocks(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return what the blocks of an epoch take: "mgg", sampling on one thread, and their plans, schedules and sums.

    Each block is planned, scheduled and summed forward and backward, in float32 rows as wide as a hidden layer.
    """
    task = Task(**inputs)
    drawn, parts = _drawn(task), _parts(np.load(task.rows), task, 1)
    found, plans = list[Sampled](), list[Plan]()
    backend, format = _backend(), RowFormat(np.dtype(np.float32), task.widths[1])

    def sample() -> np.ndarray:
        found[:] = map(drawn, parts, itertools.count())
        return sampled.means(map(_sizes, found))

    def plan() -> np.ndarray:
        made = [
            block_plans(0, hop.indptr, hop.indices, sources)
            for each in found
            for hop, sources in zip(each.hops, _sources(each), strict=True)
        ]
        plans[:] = [one_way for both in made for one_way in (both.forward, both.backward)]
        return counts

    def schedule() -> np.ndarray:
        nonlocal backend
        backend = _backend()  # which has none yet
        for each in plans:
            backend.schedule(each, format)
        return counts

    def sums() -> np.ndarray:
        for each in plans:
            backend.aggregate(each, "copy", "sum", rows, out.local[: each.destinations])
        return counts

    counts = sample()
    most = np.array([max(len(each.nodes) for each in found)])
    rows, out = (backend.rows(most, format, symmetric=False) for _ in range(2))
    rows.local[:] = out.local[:] = 1  # pages that were never written are all one page
    return {"mgg": sample, "mgg plans": plan, "mgg schedules": schedule, "mgg sums": sums}


def _backend() -> SerialBackend:
    return SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, peers.THREADS))


def _loader(task: Task) -> mgg.NeighborLoader:
    graph, rows = mgg.open(task.graph, threads=peers.THREADS), task.load("rows")
    return mgg.NeighborLoader(graph, task.fanouts, batch_size=task.batch_size, input_nodes=rows, shuffle=True)


def _parts(rows: np.ndarray, task: Task, epoch: int) -> list[np.ndarray]:
    """Return the rows of each batch of an epoch."""
    order = rows[shuffled(rows, 0, epoch, peers.THREADS)]
    return np.split(order, range(task.batch_size, len(order), task.batch_size))


def _drawn(task: Task) -> Callable[[np.ndarray, int], Sampled]:
    """Return the function that samples for rows in a step."""
    drawing = Sampler(np.load(task.indptr), np.load(task.indices))
    return lambda rows, step: drawing.sample(rows, task.fanouts, seed=0, step=step)


def _sizes(batch: Sampled) -> tuple[int, int]:
    """Return the numbers of sampled edges and of input rows."""
    return sum(len(hop.indices) for hop in batch.hops), len(batch.nodes)


def _sources(batch: Sampled) -> list[int]:
    """Return the number of sources of each hop: the destinations of the next one."""
    return [len(hop.indptr) - 1 for hop in batch.hops[1:]] + [len(batch.nodes)]
