"""This package's batches: its sampler on threads, `NeighborLoader`, and GraphSAGE on blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import mgg_hpc as mgg
import peers
from mgg_hpc.runtime.sampler import Sampled, Sampler, shuffled

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
