"""PyG: utils.spmm over torch's CSR; convolutions over an edge list and a CSR tensor; NeighborLoader; MessagePassing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch
import torch_geometric
import torch_geometric.typing as known
from torch import Tensor
from torch.nn.functional import linear
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops, spmm, trim_to_layer

import peers

from . import nets, programs
from . import torch as peer_torch
from .nets import Layer

CONVOLUTIONS: dict[str, Callable[[Layer], torch.nn.Module]] = {
    "gcn": lambda layer: GCNConv(layer.inputs, layer.outputs, normalize=False),
    "gin": lambda layer: GINConv(nets.Perceptron(layer)),
    "sage": lambda layer: SAGEConv(layer.inputs, layer.outputs),
    "gat": lambda layer: GATConv(layer.inputs, layer.outputs, layer.heads, add_self_loops=False),
}

# The library by which PyG samples, or "".
SAMPLING = "pyg-lib" if known.WITH_PYG_LIB else "torch-sparse" if known.WITH_TORCH_SPARSE else ""
_SAMPLER = f", {SAMPLING} {metadata.version(SAMPLING)}" if SAMPLING else ""
ABOUT = f"pyg {torch_geometric.__version__} (torch {torch.__version__}{_SAMPLER})"


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "pyg"."""
    adjacency, rows = peer_torch.operands(**inputs)
    return {"pyg": lambda: spmm(adjacency, rows, "sum")}


def edge_list(model: str, indptr: str, indices: str) -> tuple[Tensor, Tensor | None]:
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


def csr_of(model: str, edges: Tensor, values: Tensor | None, count: int) -> Tensor:
    """Return an edge list (`edge_list`) as a sparse CSR tensor: sums without a message an edge."""
    sources, rows = edges
    order = torch.argsort(rows * count + sources)  # self loops stood at the end
    pointers = torch.nn.functional.pad(torch.bincount(rows, minlength=count).cumsum(0), (1, 0))
    # MKL sums with int32 indices. With these torch's gradient of a mean is wrong in large graphs, and PyG's softmax
    # takes none.
    kind = torch.int32 if model in ("gcn", "gin") else torch.int64
    of_edges = torch.ones(len(order), device=order.device) if values is None else values[order]
    return torch.sparse_csr_tensor(pointers.to(kind), sources[order].to(kind), of_edges, (count, count))


def epoch(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run of `nets.epochs`, over an edge list, PyG's default, or for "pyg-csr" over a CSR tensor."""
    task = nets.Epoch(**inputs)
    edges, values = edge_list(task.model, task.indptr, task.indices)
    graph: tuple[Any, ...] = (edges, values)
    if peers.NAME == "pyg-csr":
        graph = (csr_of(task.model, edges, values, len(np.load(task.indptr)) - 1),)
    convolutions = [CONVOLUTIONS[task.model](layer) for layer in task.convolutions]
    return nets.epochs(task, convolutions, lambda layer, x: layer(x, *graph), task.state)


def _loaders(task: nets.Sampled, **values: Tensor) -> dict[int, NeighborLoader]:
    """Return a loader for each number of worker processes. Raises ImportError where PyG cannot sample."""
    if not SAMPLING:
        raise ImportError("PyG samples by pyg-lib or torch-sparse, and neither is installed")
    edges, _ = edge_list("sage", task.indptr, task.indices)
    data = Data(edge_index=edges, num_nodes=len(np.load(task.indptr)) - 1, **values)
    how = {"input_nodes": peer_torch.load(task.rows), "batch_size": task.batch_size, "shuffle": True}
    loader = partial(NeighborLoader, data, task.fanouts, is_sorted=True, **how)
    return {n: loader(num_workers=n, persistent_workers=n > 0) for n in nets.WORKERS}


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg loader N", with N worker processes, without features."""

    def loaded(loader: NeighborLoader) -> np.ndarray:
        return nets.means((batch.edge_index.size(1), batch.num_nodes) for batch in loader)

    return {f"pyg loader {n}": partial(loaded, each) for n, each in _loaders(nets.Sampled(**inputs)).items()}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg N" and "pyg-csr N", epochs with N worker processes of the loader."""
    task, runs = nets.Sampled(**inputs), {}

    def batches(loader: NeighborLoader) -> nets.Batches:
        for batch in loader:
            yield batch.x, batch.y[: batch.batch_size], batch, batch.edge_index.size(1)

    for name, layer in (("pyg", over_edge_list), ("pyg-csr", over_csr)):
        for n, loader in _loaders(task, x=peer_torch.load(task.x), y=peer_torch.load(task.y)).items():
            net = nets.sage(task, SAGEConv, layer, task.state)
            runs[f"{name} {n}"] = nets.epoch_of(net, partial(batches, loader))
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


class Gated(MessagePassing):
    """The sum, or the maximum, of gated neighbours."""

    def forward(self, x: Tensor, far: Tensor, near: Tensor, edges: Any) -> Tensor:
        """Return the outputs [N, F] of rows x; far, near: weights of the gates."""
        return self.propagate(edges, x=x, far=linear(x, far), near=linear(x, near))

    def message(self, x_j: Tensor, far_j: Tensor, near_i: Tensor) -> Tensor:
        """Return the messages of edges."""
        return torch.sigmoid(far_j + near_i) * x_j


class Typed(MessagePassing):
    """The sum of neighbours, each times the matrix of its edge's type."""

    def forward(self, x: Tensor, matrix: Tensor, edges: Any) -> Tensor:
        """Return the outputs [N, F] of rows x; matrix: of each type."""
        of_types = programs.products(x, matrix)
        if edges.layout == torch.sparse_csr:
            return spmm(edges, of_types, "sum")
        return self.propagate(edges, x=(of_types, None), size=(len(of_types), len(x)))


def propagate(**inputs: Any) -> dict[str, programs.Run]:
    """Return the runs "pyg" (edge list), "pyg EdgeIndex" and "pyg csr" of a Task."""
    task = programs.Task(**inputs)
    x, weights = task.leaves()
    pointers, sources, targets, count = task.edges()
    edges, nodes = torch.stack([sources, targets]), len(x)
    index = EdgeIndex(edges.clone(), sparse_size=(count, nodes), sort_order="col")
    index.get_csc(), index.get_csr()  # kept
    adjacency = torch.sparse_csr_tensor(pointers, sources, torch.ones(len(sources)), (nodes, count))
    accumulator = "max" if task.program == "gated-max" else "sum"
    layer = (Typed if task.program == "typed" else Gated)(aggr=accumulator)
    forms = {"pyg": edges, "pyg EdgeIndex": index, "pyg csr": adjacency}
    forwards = {name: partial(layer, x, **weights, edges=form) for name, form in forms.items()}
    return {name: task.run(forward, [x, *weights.values()]) for name, forward in forwards.items()}
