"""PyG: programs as MessagePassing with all products at vertices, over an edge list, an EdgeIndex and a CSR tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import peer_pyg
import torch
import torch_geometric
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing, RGCNConv
from torch_geometric.utils import spmm

from .task import Run, Task, targets_of

set_threads = peer_pyg.set_threads
about = peer_pyg.about
warnings.filterwarnings("ignore", category=UserWarning)  # sparse CSR counts as beta


class Gated(MessagePassing):
    """The sum, or the maximum, of gated neighbours."""

    def forward(self, x: Tensor, far: Tensor, near: Tensor, edges: Any) -> Tensor:
        """Return the outputs [N, F] of rows x and their products."""
        return self.propagate(edges, x=x, far=far, near=near)

    def message(self, x_j: Tensor, far_j: Tensor, near_i: Tensor) -> Tensor:
        """Return the messages of edges."""
        return torch.sigmoid(far_j + near_i) * x_j


class Copies(MessagePassing):
    """The sum of sources' rows."""

    def forward(self, x: Tensor, edges: Any, size: tuple[int, int]) -> Tensor:
        """Return the outputs of the rows of all sources."""
        return self.propagate(edges, x=(x, None), size=size)


def _forms(indptr: str, sources: Tensor, count: int) -> dict[str, Any]:
    """Return the edges from ``count`` sources in each form that PyG takes."""
    pointers = np.load(indptr)
    edges = torch.stack([sources, torch.from_numpy(targets_of(pointers))])
    size = (len(pointers) - 1, count)
    adjacency = torch.sparse_csr_tensor(torch.from_numpy(pointers), sources, torch.ones(len(sources)), size)
    index = EdgeIndex(edges.clone(), sparse_size=(count, len(pointers) - 1), sort_order="col")
    index.get_csc(), index.get_csr()  # kept
    return {"pyg": edges, "pyg EdgeIndex": index, "pyg csr": adjacency}


def propagate(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Run]:
    """Return the runs "pyg" (edge list), "pyg EdgeIndex" and "pyg csr"; typed: "pyg rgcn" (RGCNConv) too."""
    task = Task(**inputs)
    sources = torch.from_numpy(np.load(indices)).long()
    return (_typed if task.program == "typed" else _gated)(task, indptr, sources)


def _gated(task: Task, indptr: str, sources: Tensor) -> dict[str, Run]:
    layer, runs = Gated(aggr="max" if task.program == "gated-max" else "sum"), {}
    x, weights = task.leaves()

    def over(edges: Any) -> Callable[[], Tensor]:
        return lambda: layer(x, linear(x, weights["far"]), linear(x, weights["near"]), edges)

    for name, edges in _forms(indptr, sources, len(x)).items():
        runs[name] = task.run(over(edges), [x, *weights.values()])
    return runs


def _typed(task: Task, indptr: str, sources: Tensor) -> dict[str, Run]:
    """Return the sums of sources, where each vertex has one for each type: its product with the type's matrix."""
    layer, (x, weights) = Copies(), task.leaves()
    matrix, types = weights["matrix"], torch.from_numpy(np.load(task.types))
    count = len(x) * len(matrix)

    def products() -> Tensor:
        return linear(x, matrix.reshape(-1, matrix.shape[2])).reshape(count, -1)

    forms = _forms(indptr, sources * len(matrix) + types, count)
    forwards: dict[str, Callable[[], Tensor]] = {
        "pyg": lambda: layer(products(), forms["pyg"], (count, len(x))),
        "pyg EdgeIndex": lambda: layer(products(), forms["pyg EdgeIndex"], (count, len(x))),
        "pyg csr": lambda: spmm(forms["pyg csr"], products(), "sum"),
    }
    runs = {name: task.run(forward, [x, matrix]) for name, forward in forwards.items()}
    return runs | {"pyg rgcn": _relational(task, indptr, sources, types)}


def _relational(task: Task, indptr: str, sources: Tensor, types: Tensor) -> Run:
    """Return the run of PyG's own layer, type by type where pyg-lib has no product with the matrix of each segment."""
    torch_geometric.backend.use_segment_matmul = hasattr(torch.ops.pyg, "segment_matmul")
    (x, weights), targets = task.leaves(), targets_of(np.load(indptr))
    matrix, edges = weights["matrix"], torch.stack([sources, torch.from_numpy(targets)])
    layer = RGCNConv(x.shape[1], matrix.shape[1], len(matrix), aggr="sum", root_weight=False, bias=False)

    def forward() -> Tensor:
        theirs = {"weight": matrix.transpose(1, 2)}  # [T, in, out]
        return functional_call(layer, theirs, (x, edges, types))

    return task.run(forward, [x, matrix])
