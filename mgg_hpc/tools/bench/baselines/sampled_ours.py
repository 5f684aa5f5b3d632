"""This package: its sampler on threads, `NeighborLoader`, and GraphSAGE on its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mgg_hpc as mgg
from mgg_hpc.plan.blocks import block_plans
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.workload import Plan
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampling.sampler import Sampled, Sampler, shuffled

from . import ours, sampled
from .sampled import Task

set_threads = ours.set_threads
about = ours.about


def sample(file: str, indptr: str, indices: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "mgg", the sampler on as many threads as are set, and "mgg loader", without features."""
    task, threads = Task(**inputs), ours.threads()
    sampler, seeds = Sampler(np.load(indptr), np.load(indices)), np.load(task.rows)
    epochs = iter(range(1, 1 << 30))

    def alone() -> np.ndarray:
        epoch = next(epochs)
        order = seeds[shuffled(seeds, 0, epoch, threads)]
        steps = range(0, len(order), task.batch_size)

        def one(first: int) -> tuple[int, int]:
            part, step = order[first : first + task.batch_size], epoch * len(steps) + first // task.batch_size
            found = sampler.sample(part, task.fanouts, seed=0, step=step)
            return sum(len(hop.indices) for hop in found.hops), len(found.nodes)

        with ThreadPoolExecutor(threads) as pool:
            return sampled.counted(pool.map(one, steps))

    loader = _loader(file, task)

    def loaded() -> np.ndarray:
        return sampled.counted((batch.edges, batch.blocks[0].rows) for batch in loader)

    return {"mgg": alone, "mgg loader": loaded}


def blocks(file: str, indptr: str, indices: str, width: int, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return what the blocks of an epoch cost: to be sampled, planned and scheduled, and the sums over all of them.

    Runs are "mgg", the sampler, "mgg plans", "mgg schedules" and "mgg sums". width: of the rows that are summed, in
    float32. Each block is planned, scheduled and summed forward and backward.
    """
    task, threads = Task(**inputs), ours.threads()
    sampler, seeds = Sampler(np.load(indptr), np.load(indices)), np.load(task.rows)
    seeds = seeds[shuffled(seeds, 0, 1, threads)]
    found: list[Sampled] = []
    plans: list[Plan] = []
    backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, threads))
    format = RowFormat(np.dtype(np.float32), width)

    def sample() -> np.ndarray:
        found[:] = [
            sampler.sample(part, task.fanouts, seed=0, step=step)
            for step, part in enumerate(np.split(seeds, range(task.batch_size, len(seeds), task.batch_size)))
        ]
        return sampled.counted(
            (sum(len(hop.indices) for hop in each.hops), len(each.nodes)) for each in found
        )

    counts = sample()

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
        backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, threads))  # which has none yet
        for each in plans:
            backend.schedule(each, format)
        return counts

    most = max(len(each.nodes) for each in found)
    rows, out = (backend.rows(np.array([most]), format, symmetric=False) for _ in range(2))
    rows.local[:] = out.local[:] = 1  # pages that were never written are all one page

    def sums() -> np.ndarray:
        for each in plans:
            backend.aggregate(each, "copy", "sum", rows, out.local[: each.destinations])
        return counts

    return {"mgg": sample, "mgg plans": plan, "mgg schedules": schedule, "mgg sums": sums}


def train(file: str, indptr: str, indices: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mgg", an epoch, and write the initial weights for the other libraries.

    file: the graph with features and labels.
    """
    task = Task(**inputs)
    loader = _loader(file, task)
    mgg.manual_seed(0)
    net = Net(task)
    np.savez(task.weights, **{name: value.numpy() for name, value in net.state_dict().items()})

    def parts() -> Iterator[tuple[Tensor, Tensor, Any, int]]:
        for batch in loader:
            assert isinstance(batch.x, Tensor) and batch.y is not None
            yield batch.x, batch.y, batch.blocks, batch.edges

    return {"mgg": sampled.epoch_of(net, parts)}


def _sources(batch: Sampled) -> list[int]:
    """Return the number of sources of each hop: the destinations of the next one."""
    return [len(hop.indptr) - 1 for hop in batch.hops[1:]] + [len(batch.nodes)]


def _loader(file: str, task: Task) -> mgg.NeighborLoader:
    graph = mgg.open(file, threads=ours.threads())
    return mgg.NeighborLoader(
        graph, task.fanouts, batch_size=task.batch_size, input_nodes=task.seeds, shuffle=True
    )


class Net(torch.nn.Module):
    """The net of `sampled.Net`, with activation and dropout in our layers."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(mgg.nn.SAGEConv(*widths) for widths in task.layers)
        self.drop = mgg.nn.Dropout(task.dropout)

    def forward(self, x: Tensor, blocks: list[Any]) -> Tensor:
        """Return the class scores of the batch's own rows."""
        last = len(blocks) - 1
        for i in range(last):
            x = self.convs[i](x, blocks[i], relu=True)
            x = self.drop(x, blocks[i + 1], rectified=True)
        return self.convs[last](x, blocks[last])
