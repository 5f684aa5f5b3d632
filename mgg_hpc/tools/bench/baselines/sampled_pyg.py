"""PyG: its NeighborLoader; and GraphSAGE over an edge list, trimmed from layer to layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import peer_pyg
import sampled
import torch
import torch_geometric.typing
from sampled import Task
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

set_threads = peer_pyg.set_threads

WORKERS = (0, 2)  # worker processes of the loader; 0: sampled by this one


def about() -> str:
    """Return the versions, and which library PyG samples by. Raises ImportError without any."""
    if torch_geometric.typing.WITH_PYG_LIB:
        import pyg_lib

        return f"{peer_pyg.about()}, sampling by pyg-lib {pyg_lib.__version__}"
    if torch_geometric.typing.WITH_TORCH_SPARSE:
        import torch_sparse

        return f"{peer_pyg.about()}, sampling by torch-sparse {torch_sparse.__version__}"
    raise ImportError("PyG samples by pyg-lib or torch-sparse, and neither is installed")


def _loader(indptr: str, indices: str, task: Task, workers: int, **values: Tensor) -> NeighborLoader:
    pointers, sources = np.load(indptr), np.load(indices).astype(np.int64)
    count = len(pointers) - 1
    edges = torch.from_numpy(np.stack([sources, np.repeat(np.arange(count), np.diff(pointers))]))
    return NeighborLoader(
        Data(edge_index=edges, num_nodes=count, **values),
        task.fanouts,
        input_nodes=task.seeds,
        batch_size=task.batch_size,
        shuffle=True,
        is_sorted=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def sample(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg loader N", of N worker processes, without features."""
    task = Task(**inputs)

    def loaded(loader: NeighborLoader) -> np.ndarray:
        return sampled.counted((batch.edge_index.size(1), batch.num_nodes) for batch in loader)

    return {f"pyg loader {n}": partial(loaded, _loader(indptr, indices, task, n)) for n in WORKERS}


def train(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg N" and "pyg-csr N", epochs with N worker processes of the loader."""
    task = Task(**inputs)
    values = {"x": torch.from_numpy(np.load(task.x)), "y": torch.from_numpy(np.load(task.y))}

    def parts(loader: NeighborLoader) -> Iterator[tuple[Tensor, Tensor, Any, int]]:
        for batch in loader:
            yield batch.x, batch.y[: batch.batch_size], Parts(batch), batch.edge_index.size(1)

    runs = {}
    for name, layer in (("pyg", over_edge_list), ("pyg-csr", over_csr)):
        for n in WORKERS:
            net = sampled.Net([SAGEConv(*widths) for widths in task.layers], task.dropout, layer)
            net.load_state_dict(task.state)
            loader = _loader(indptr, indices, task, n, **values)
            runs[f"{name} {n}"] = sampled.epoch_of(net, partial(parts, loader))
    return runs


class Parts:
    """The edge list of a batch of PyG, and its numbers of nodes and edges by hop."""

    def __init__(self, batch: Any) -> None:
        self.nodes, self.hops = batch.num_sampled_nodes, batch.num_sampled_edges
        self.edges = batch.edge_index


def over_edge_list(convolutions: Any, i: int, h: Tensor, batch: Parts) -> Tensor:
    """Return the rows of a layer over an edge list, PyG's default: as many as it takes, of the last one the batch's."""
    h, batch.edges, _ = trim_to_layer(i, batch.nodes, batch.hops, h, batch.edges)
    h = convolutions[i](h, batch.edges)
    return h[: batch.nodes[0]] if i == len(convolutions) - 1 else h


def over_csr(convolutions: Any, i: int, h: Tensor, batch: Parts) -> Tensor:
    """Return the rows that the next layer takes, of a layer over a sparse CSR tensor.

    Edges of a batch lie by destination, in the order in which nodes were met.
    """
    hops = len(convolutions) - i
    rows = sum(batch.nodes[:hops])
    sources, destinations = batch.edges[:, : sum(batch.hops[:hops])]
    offsets = torch._convert_indices_from_coo_to_csr(destinations, rows)
    adjacency = torch.sparse_csr_tensor(offsets, sources, torch.ones(len(sources)), (rows, len(h)))
    return convolutions[i]((h, h[:rows]), adjacency)
