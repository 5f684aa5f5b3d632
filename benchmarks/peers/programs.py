"""Programs on vertices and edges, and the step that every library takes: a forward and a backward pass.

gated: G-GCN's sum of sigmoid(far h_u + near h_v) h_u. gated-max: the maximum of the same. typed: GG-NN's sum of
matrix[type of the edge] h_u.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

TYPES = 4  # of edges
Run = Callable[[], tuple[float, Callable[[], Tensor]]]


@dataclass(frozen=True)
class Task:
    """A program and the files of its operands.

    file: the graph, for mgg. indptr: int64 [N+1]. indices: int32 [E]. types: of edges, int64 [E]. x, gradient: rows,
    and the outputs' gradient, float32 [N, F]. weights: far and near, float32 [F, F], or matrix, float32 [T, F, F].
    """

    program: str
    file: str
    indptr: str
    indices: str
    types: str
    x: str
    gradient: str
    weights: str

    def leaves(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rows and the weights by name, which all want gradients."""
        with np.load(self.weights) as file:
            weights = {name: torch.from_numpy(file[name]).requires_grad_() for name in sorted(file.files)}
        return torch.from_numpy(np.load(self.x)).requires_grad_(), weights

    def edges(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return pointers [N+1], sources and destinations [E], all int64, and the number of sources.

        typed: sources are rows of `products`.
        """
        pointers, sources = (torch.from_numpy(np.load(file)).long() for file in (self.indptr, self.indices))
        nodes, each = len(pointers) - 1, 1
        if self.program == "typed":
            each, sources = TYPES, sources * TYPES + torch.from_numpy(np.load(self.types))
        return pointers, sources, torch.arange(nodes).repeat_interleave(pointers.diff()), nodes * each

    def run(self, forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Run:
        """Return the run of a step, whose result is the outputs and the leaves' gradients, one behind another."""
        gradient = torch.from_numpy(np.load(self.gradient))

        def step() -> tuple[float, Callable[[], Tensor]]:
            for leaf in leaves:
                leaf.grad = None
            began = time.perf_counter()
            out = forward()
            out.backward(gradient)
            seconds = time.perf_counter() - began
            values = [out.detach(), *(leaf.grad for leaf in leaves)]
            return seconds, lambda: torch.cat([value.reshape(-1) for value in values])

        return step


def products(x: Tensor, matrix: Tensor) -> Tensor:
    """Return each vertex's product with each type's matrix, [N T, F]: vertex by vertex."""
    return linear(x, matrix.reshape(-1, matrix.shape[2])).reshape(-1, matrix.shape[1])
