"""DGL: its NeighborSampler, called and in its DataLoader; and GraphSAGE on its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import peer_dgl
import sampled
import torch
from peer_dgl import dgl
from sampled import Task
from torch import Tensor

set_threads = peer_dgl.set_threads
about = peer_dgl.about

WORKERS = (0, 2)  # worker processes of the loader; 0: sampled by threads of this one


def _graph(indptr: str, indices: str) -> Any:
    """Return the graph in the form that DGL samples from."""
    pointers, edges = torch.from_numpy(np.load(indptr)), torch.empty(0, dtype=torch.int64)
    sources = torch.from_numpy(np.load(indices).astype(np.int64))
    graph = dgl.graph(("csc", (pointers, sources, edges)), num_nodes=len(pointers) - 1)
    return graph.formats("csc")


def _loader(graph: Any, task: Task, sampler: Any, workers: int) -> Any:
    return dgl.dataloading.DataLoader(
        graph,
        task.seeds,
        sampler,
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _edges(blocks: list[Any]) -> int:
    return sum(block.num_edges() for block in blocks)


def sample(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl", the sampler by itself, and "dgl loader N", of N worker processes."""
    task, graph = Task(**inputs), _graph(indptr, indices)
    sampler = dgl.dataloading.NeighborSampler(task.fanouts[::-1])

    def alone() -> np.ndarray:
        seeds = task.seeds
        order = seeds[torch.randperm(len(seeds))]
        return sampled.counted(one(part) for part in order.split(task.batch_size))

    def one(seeds: Tensor) -> tuple[int, int]:
        blocks = sampler.sample_blocks(graph, seeds)[2]
        return _edges(blocks), blocks[0].num_src_nodes()

    def loaded(loader: Any) -> np.ndarray:
        return sampled.counted((_edges(blocks), len(rows)) for rows, _, blocks in loader)

    loaders = {f"dgl loader {count}": _loader(graph, task, sampler, count) for count in WORKERS}
    return {"dgl": alone} | {name: partial(loaded, loader) for name, loader in loaders.items()}


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the initial weights under DGL's names."""
    for theirs, here in peer_dgl.NAMES["sage"].items():
        state = {name.replace(theirs, here): value for name, value in state.items()}
    return state


def train(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl N", epochs with N worker processes of the loader."""
    task, graph = Task(**inputs), _graph(indptr, indices)
    features, labels = torch.from_numpy(np.load(task.x)), torch.from_numpy(np.load(task.y))
    sampler = dgl.dataloading.NeighborSampler(task.fanouts[::-1])

    def parts(loader: Any) -> Iterator[tuple[Tensor, Tensor, Any, int]]:
        for rows, outputs, blocks in loader:
            yield features[rows], labels[outputs], blocks, _edges(blocks)

    def layer(convolutions: Any, i: int, h: Tensor, blocks: list[Any]) -> Tensor:
        return convolutions[i](blocks[i], h)

    runs = {}
    for count in WORKERS:
        convolutions = [dgl.nn.SAGEConv(before, after, "mean") for before, after in task.layers]
        net = sampled.Net(convolutions, task.dropout, layer)
        net.load_state_dict(_renamed(task.state))
        runs[f"dgl {count}"] = sampled.epoch_of(net, partial(parts, _loader(graph, task, sampler, count)))
    return runs
