"""PyG: its sparse product (utils.spmm over torch's CSR), and its convolutions over an edge list and a CSR tensor."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
import torch_geometric
import torch_geometric.typing as known
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops, spmm

import peers

from . import nets
from . import torch as peer_torch
from .nets import Layer, Task
from .programs_pyg import propagate  # noqa: F401 - a task

CONVOLUTIONS: dict[str, Callable[[Layer], torch.nn.Module]] = {
    "gcn": lambda layer: GCNConv(layer.inputs, layer.outputs, normalize=False),
    "gin": lambda layer: GINConv(nets.Perceptron(layer)),
    "sage": lambda layer: SAGEConv(layer.inputs, layer.outputs),
    "gat": lambda layer: GATConv(layer.inputs, layer.outputs, layer.heads, add_self_loops=False),
}

# The library by which PyG samples, or "".
SAMPLING = "pyg-lib" if known.WITH_PYG_LIB else "torch-sparse" if known.WITH_TORCH_SPARSE else ""


def about() -> str:
    """Return the versions."""
    more = f", {SAMPLING} {metadata.version(SAMPLING)}" if SAMPLING else ""
    return f"pyg {torch_geometric.__version__} (torch {torch.__version__}{more})"


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "pyg"."""
    adjacency, rows = peer_torch.operands(**inputs)
    return {"pyg": lambda: spmm(adjacency, rows, "sum")}


def edge_list(model: str, indptr: str, indices: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return int64 [2, E'] (source, destination) by destination; and weights [E'], GCN's norm, or None.

    Self loops are there if the model has them: computed before the clock starts.
    """
    pointers, sources = peer_torch.load(indptr), peer_torch.load(indices).long()
    count = len(pointers) - 1
    rows = torch.arange(count, device=sources.device)
    edges = torch.stack([sources, rows.repeat_interleave(pointers.diff())])
    if model == "gcn":
        return gcn_norm(edges, num_nodes=count)
    if model == "gat":
        return add_self_loops(remove_self_loops(edges)[0], num_nodes=count)[0], None
    return edges, None


def csr_of(model: str, edges: torch.Tensor, values: torch.Tensor | None, count: int) -> torch.Tensor:
    """Return an edge list (`edge_list`) as a sparse CSR tensor: sums without a message an edge."""
    sources, rows = edges
    order = torch.argsort(rows * count + sources)  # self loops stood at the end
    pointers = torch.nn.functional.pad(torch.bincount(rows, minlength=count).cumsum(0), (1, 0))
    # MKL sums with int32 indices. With these torch's gradient of a mean is wrong in large graphs, and PyG's softmax
    # takes none.
    kind = torch.int32 if model in ("gcn", "gin") else torch.int64
    of_edges = torch.ones(len(order), device=order.device) if values is None else values[order]
    return torch.sparse_csr_tensor(pointers.to(kind), sources[order].to(kind), of_edges, (count, count))


def epoch(
    indptr: str, indices: str, weight: None, file: object, **inputs: Any
) -> dict[str, Callable[[], Any]]:
    """Return the runs of `nets.runs`, over an edge list, PyG's default, or for "pyg-csr" over a CSR tensor."""
    task = Task(**inputs)
    edges, values = edge_list(task.model, indptr, indices)
    graph: tuple[Any, ...] = (edges, values)
    if peers.NAME == "pyg-csr":
        graph = (csr_of(task.model, edges, values, len(peer_torch.load(indptr)) - 1),)
    convolutions = [CONVOLUTIONS[task.model](layer) for layer in task.convolutions]
    net = nets.Net(task, convolutions, lambda layer, x: layer(x, *graph))
    net.load_state_dict(task.state)
    return nets.runs(net, task)
