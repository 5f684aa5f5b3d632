"""PyG: its sparse product (utils.spmm over torch's CSR), and its convolutions over an edge list."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import nets
import numpy as np
import peer_torch
import torch
import torch_geometric
from nets import Layer, Task
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops, spmm

set_threads = peer_torch.set_threads
# torch warns that sparse CSR is in beta each time that a layer makes one.
warnings.filterwarnings("ignore", category=UserWarning)

CONVOLUTIONS: dict[str, Callable[[Layer], torch.nn.Module]] = {
    "gcn": lambda layer: GCNConv(layer.inputs, layer.outputs, normalize=False),
    "gin": lambda layer: GINConv(nets.Perceptron(layer)),
    "sage": lambda layer: SAGEConv(layer.inputs, layer.outputs),
    "gat": lambda layer: GATConv(layer.inputs, layer.outputs, layer.heads, add_self_loops=False),
}


def about() -> str:
    """Return the versions."""
    return f"pyg {torch_geometric.__version__} (torch {torch.__version__})"


def aggregate(ahead: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "pyg"."""
    adjacency, rows = peer_torch.operands(**inputs)
    return {"pyg": lambda: spmm(adjacency, rows, "sum")}


def edge_list(model: str, indptr: str, indices: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return int64 [2, E'] (source, destination) by destination; and weights [E'], GCN's norm, or None.

    Self loops are there if the model has them: computed before the clock starts.
    """
    pointers, sources = np.load(indptr), np.load(indices).astype(np.int64)
    count = len(pointers) - 1
    edges = torch.from_numpy(np.stack([sources, np.repeat(np.arange(count), np.diff(pointers))]))
    if model == "gcn":
        return gcn_norm(edges, num_nodes=count)
    if model == "gat":
        return add_self_loops(remove_self_loops(edges)[0], num_nodes=count)[0], None
    return edges, None


def trained(name: str, graph: tuple[Any, ...], task: Task) -> dict[str, Callable[[], Any]]:
    """Return the runs ``name`` and "untrained" of convolutions that are called with x and ``graph``."""
    convolutions = [CONVOLUTIONS[task.model](layer) for layer in task.convolutions]
    net = nets.made(task, convolutions, lambda layer, x: layer(x, *graph))
    net.load_state_dict(task.state)
    return nets.runs(name, net, task)


def epoch(
    indptr: str, indices: str, weight: None, file: object, **inputs: Any
) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg" and "untrained": convolutions over an edge list, PyG's default."""
    task = Task(**inputs)
    return trained("pyg", edge_list(task.model, indptr, indices), task)
