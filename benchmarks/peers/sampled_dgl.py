"""DGL's batches: its NeighborSampler, called and in its DataLoader; and GraphSAGE on its blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import sampled
from .dgl import NAMES, dgl
from .sampled import WORKERS, Batches, Task


def _opened(task: Task) -> tuple[Any, Any, dict[int, Any]]:
    """Return the graph in the form that DGL samples from, with int64 ids; its sampler; and loaders by their workers."""
    pointers, sources, rows = task.load("indptr"), task.load("indices").long(), task.load("rows")
    edges = sources.new_empty(0)  # numbered as they are stored
    graph = dgl.graph(("csc", (pointers, sources, edges)), num_nodes=len(pointers) - 1).formats("csc")
    drawing = dgl.dataloading.NeighborSampler(task.fanouts[::-1])
    how = {"batch_size": task.batch_size, "shuffle": True}
    loader = partial(dgl.dataloading.DataLoader, graph, rows, drawing, **how)
    return graph, drawing, {n: loader(num_workers=n, persistent_workers=n > 0) for n in WORKERS}


def _edges(blocks: list[Any]) -> int:
    return sum(block.num_edges() for block in blocks)


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl", the sampler by itself, and "dgl loader N", with N worker processes."""
    task = Task(**inputs)
    rows, (graph, drawing, loaders) = task.load("rows"), _opened(task)

    def alone() -> np.ndarray:
        order = rows[torch.randperm(len(rows))]
        return sampled.means(one(part) for part in order.split(task.batch_size))

    def one(part: Tensor) -> tuple[int, int]:
        blocks = drawing.sample_blocks(graph, part)[2]
        return _edges(blocks), blocks[0].num_src_nodes()

    def loaded(loader: Any) -> np.ndarray:
        return sampled.means((_edges(blocks), len(sources)) for sources, _, blocks in loader)

    return {"dgl": alone} | {f"dgl loader {n}": partial(loaded, loader) for n, loader in loaders.items()}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl N", epochs with N worker processes of the loader."""
    task = Task(**inputs)
    features, labels, state = task.load("x"), task.load("y"), task.state()
    for theirs, here in NAMES["sage"].items():
        state = {name.replace(theirs, here): value for name, value in state.items()}

    def batches(loader: Any) -> Batches:
        for sources, outputs, blocks in loader:
            yield features[sources], labels[outputs], blocks, _edges(blocks)

    def net() -> sampled.Net:
        convolution = partial(dgl.nn.SAGEConv, aggregator_type="mean")
        return sampled.with_torch(task, convolution, lambda layer, i, h, blocks: layer(blocks[i], h), state)

    loaders = _opened(task)[2]
    return {f"dgl {n}": sampled.epoch_of(net(), partial(batches, each)) for n, each in loaders.items()}
