"""PyG's batches: its NeighborLoader; and GraphSAGE over an edge list or CSR tensors, trimmed from layer to layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from . import pyg, sampled
from .sampled import WORKERS, Batches, Task


def _loaders(task: Task, **values: Tensor) -> dict[int, NeighborLoader]:
    """Return a loader for each number of worker processes. Raises ImportError where PyG cannot sample."""
    if not pyg.SAMPLING:
        raise ImportError("PyG samples by pyg-lib or torch-sparse, and neither is installed")
    edges, _ = pyg.edge_list("sage", task.indptr, task.indices)
    data = Data(edge_index=edges, num_nodes=len(np.load(task.indptr)) - 1, **values)
    how = {"input_nodes": task.load("rows"), "batch_size": task.batch_size, "shuffle": True}
    loader = partial(NeighborLoader, data, task.fanouts, is_sorted=True, **how)
    return {n: loader(num_workers=n, persistent_workers=n > 0) for n in WORKERS}


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg loader N", with N worker processes, without features."""

    def loaded(loader: NeighborLoader) -> np.ndarray:
        return sampled.means((batch.edge_index.size(1), batch.num_nodes) for batch in loader)

    return {f"pyg loader {n}": partial(loaded, each) for n, each in _loaders(Task(**inputs)).items()}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg N" and "pyg-csr N", epochs with N worker processes of the loader."""
    task, runs = Task(**inputs), {}

    def batches(loader: NeighborLoader) -> Batches:
        for batch in loader:
            yield batch.x, batch.y[: batch.batch_size], batch, batch.edge_index.size(1)

    for name, layer in (("pyg", over_edge_list), ("pyg-csr", over_csr)):
        for n, loader in _loaders(task, x=task.load("x"), y=task.load("y")).items():
            net = sampled.with_torch(task, SAGEConv, layer, task.state())
            runs[f"{name} {n}"] = sampled.epoch_of(net, partial(batches, loader))
    return runs


def over_edge_list(convolution: Any, i: int, h: Tensor, batch: Any) -> Tensor:
    """Return the rows of a layer over an edge list, PyG's default: as many as it takes, of the last one the batch's."""
    nodes, hops = batch.num_sampled_nodes, batch.num_sampled_edges
    h, batch.edge_index, _ = trim_to_layer(i, nodes, hops, h, batch.edge_index)
    h = convolution(h, batch.edge_index)
    return h[: nodes[0]] if i == len(hops) - 1 else h


def over_csr(convolution: Any, i: int, h: Tensor, batch: Any) -> Tensor:
    """Return the rows that the next layer takes, of a layer over a sparse CSR tensor.

    Edges of a batch lie by destination, in the order in which nodes were met.
    """
    nodes, hops = batch.num_sampled_nodes, batch.num_sampled_edges
    left = len(hops) - i
    rows = sum(nodes[:left])
    sources, destinations = batch.edge_index[:, : sum(hops[:left])]
    offsets = torch._convert_indices_from_coo_to_csr(destinations, rows)
    adjacency = torch.sparse_csr_tensor(offsets, sources, torch.ones(len(sources)), (rows, len(h)))
    return convolution((h, h[:rows]), adjacency)
