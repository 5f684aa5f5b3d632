"""A rank's part of a distributed graph: what layers aggregate over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan.workload import Plan
from ..runtime.backends.base import Backend, Epilogue, Rows
from .workspace import Workspace, row_format


@dataclass(frozen=True)
class Adjacency:
    """A matrix to aggregate with: out = scale * (A' (scale * x)), A' with these plans and edge weights.

    forward sums over in-edges, backward over out-edges: for a symmetric graph they are the same object.
    scale: [n] or None. weights: in each plan's order, or None for ones.
    """

    forward: Plan
    backward: Plan
    scale: Tensor | None
    forward_weight: NDArray[Any] | None = None
    backward_weight: NDArray[Any] | None = None


class GraphHandle:
    """One rank's rows of a graph, its adjacency, and two symmetric buffers used in turn (one barrier a layer).

    counts: int64 [P], rows of each rank. ids: int64 [n], the original ids of this rank's nodes.
    widest: the largest width that will be exchanged.
    """

    def __init__(
        self,
        backend: Backend,
        counts: NDArray[np.int64],
        ids: NDArray[np.int64],
        gcn: Adjacency,
        *,
        dtype: torch.dtype = torch.float32,
        widest: int = 1,
    ) -> None:
        self.backend, self.counts, self.ids, self.gcn, self.dtype = backend, counts, ids, gcn, dtype
        backend.reserve(2 * int(counts.max(initial=0)) * row_format(widest, dtype).row_bytes)
        self._buffers = [self._allocate(widest) for _ in range(2)]
        self._turn = 0
        self.workspace = Workspace(backend)

    @property
    def rows(self) -> int:
        """Rows of this rank."""
        return int(self.counts[self.backend.rank])

    @property
    def heap_bytes(self) -> int:
        """Bytes of symmetric memory of this rank."""
        return sum(len(buffer.buffer) for buffer in self._buffers)

    def _allocate(self, dim: int) -> Rows:
        return self.backend.rows(self.counts, row_format(dim, self.dtype), symmetric=True)

    def exchange(self, dim: int) -> tuple[Rows, Tensor]:
        """The next symmetric rows of width ``dim``, and this rank's part as a tensor [n, dim] over the same memory.

        Collective: all ranks ask for the same widths in the same order. What was handed out two calls ago is
        overwritten. Raises ValueError for a width beyond the ``widest`` that the handle was made for.
        """
        self._turn = 1 - self._turn
        rows = self._buffers[self._turn].shaped(dim)
        return rows, torch.from_numpy(rows.local)

    def aggregate(
        self,
        adjacency: Adjacency,
        rows: Rows,
        *,
        backward: bool = False,
        bias: Tensor | None = None,
        relu: bool = False,
    ) -> Tensor:
        """Publish ``rows`` and return scale * (A' rows) + bias through ReLU, [n, dim]: fetching and summing in one."""
        self.backend.publish(rows)
        plan = adjacency.backward if backward else adjacency.forward
        weight = adjacency.backward_weight if backward else adjacency.forward_weight
        out = self.workspace.rows(plan.destinations, rows.format.dim, self.dtype)
        epilogue = Epilogue(
            scale=None if adjacency.scale is None else adjacency.scale.numpy(),
            bias=None if bias is None else bias.detach().numpy(),
            relu=relu,
        )
        op = "copy" if weight is None else "mul"
        self.backend.aggregate(plan, op, "sum", rows, out.numpy(), edge=weight, epilogue=epilogue)
        return out
