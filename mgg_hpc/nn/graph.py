"""A rank's part of a distributed graph: what layers aggregate over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan.layout import RowFormat
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


def symmetric_bytes(gcn: Adjacency, counts: NDArray[np.int64], format: RowFormat, ranks: int) -> int:
    """Bytes of symmetric memory that a handle of this widest format takes on each rank.

    Two buffers of rows that peers read; or with halos, for each plan, two stagings and the signals.
    """
    plans = {id(plan): plan for plan in (gcn.forward, gcn.backward)}.values()
    lists = [plan.lists for plan in plans if plan.lists is not None]
    if not lists:
        return 2 * int(counts.max(initial=0)) * format.row_bytes
    return sum(2 * each.capacity * format.row_bytes + signal_bytes(each.waves, ranks) for each in lists)


def signal_bytes(waves: int, ranks: int) -> int:
    """Bytes of the signals of an exchange (HaloExchange::signal_count words), and room to align them."""
    return 8 * (waves + 3) * ranks


class GraphHandle:
    """One rank's rows of a graph, its adjacency, and two symmetric buffers used in turn (one barrier a layer).

    counts: int64 [P], rows of each rank. ids: int64 [n], the original ids of this rank's nodes.
    widest: the largest width that will be exchanged. heap_bytes: this rank's symmetric memory.
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
        format = row_format(widest, dtype)
        # Rows that are pushed in waves are read by nobody else.
        self._read_by_peers = gcn.forward.transfer != "halo"
        backend.reserve(symmetric_bytes(gcn, counts, format, backend.size))
        self._buffers = [backend.rows(counts, format, symmetric=self._read_by_peers) for _ in range(2)]
        for plan in (gcn.forward, gcn.backward):
            backend.prepare(plan, format)
        self.heap_bytes = symmetric_bytes(gcn, counts, format, backend.size)
        self._turn = 0
        self.workspace = Workspace(backend)

    @property
    def rows(self) -> int:
        """Rows of this rank."""
        return int(self.counts[self.backend.rank])

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
        """scale * (A' rows) + bias through ReLU, [n, dim]: fetching and summing in one. Collective."""
        if self._read_by_peers:
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
