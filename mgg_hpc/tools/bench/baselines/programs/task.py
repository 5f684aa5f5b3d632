"""The programs, and what all libraries do with them: a forward and a backward pass.

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

Run = Callable[[], tuple[float, Callable[[], Tensor]]]


@dataclass(frozen=True)
class Task:
    """A program and the files of its operands.

    x: float32 [N, F]. gradient: of the outputs, float32 [N, F]. weights: near and far, float32 [F, F], or matrix,
    float32 [T, F, F]. types: int64 [E], of edges.
    """

    program: str
    x: str
    gradient: str
    weights: str
    types: str

    def leaves(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rows and the weights by name, which all want gradients."""
        with np.load(self.weights) as file:
            weights = {name: torch.from_numpy(file[name]).requires_grad_() for name in sorted(file.files)}
        return torch.from_numpy(np.load(self.x)).requires_grad_(), weights

    def run(self, forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Run:
        """Return a run: forward, and backward to the leaves.

        It returns its seconds, and a function that returns the outputs and all gradients one behind another.
        """
        gradient = torch.from_numpy(np.load(self.gradient))

        def step() -> tuple[float, Callable[[], Tensor]]:
            for leaf in leaves:
                leaf.grad = None
            began = time.perf_counter()
            out = forward()
            out.backward(gradient)
            return time.perf_counter() - began, lambda: flat([out.detach(), *(leaf.grad for leaf in leaves)])

        return step


def flat(parts: Sequence[Tensor | None]) -> Tensor:
    """Return all values of tensors, one behind another."""
    return torch.cat([part.reshape(-1) for part in parts if part is not None])


def targets_of(indptr: np.ndarray) -> np.ndarray:
    """Return the destination of each edge, int64 [E]."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
