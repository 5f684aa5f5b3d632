"""This package: its sampler on threads, `NeighborLoader`, and GraphSAGE on its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mgg_hpc as mgg
from mgg_hpc.runtime.sampling.sampler import Sampler, shuffled

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
