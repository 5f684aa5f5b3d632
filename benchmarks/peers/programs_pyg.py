"""PyG: programs as MessagePassing with all products at vertices, over an edge list, an EdgeIndex and a CSR tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import spmm

from .programs import Run, Task, products


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
        of_types = products(x, matrix)
        if edges.layout == torch.sparse_csr:
            return spmm(edges, of_types, "sum")
        return self.propagate(edges, x=(of_types, None), size=(len(of_types), len(x)))


def propagate(**inputs: Any) -> dict[str, Run]:
    """Return the runs "pyg" (edge list), "pyg EdgeIndex" and "pyg csr" of a Task."""
    task = Task(**inputs)
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
