"""A rank's part of a distributed graph: what layers aggregate over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan.layout import RowFormat
from ..plan.workload import Plan
from ..runtime.backends.base import Backend, Epilogue, Rows
from .workspace import Workspace, as_array, as_tensor, row_format


@dataclass(frozen=True)
class Adjacency:
    """A matrix to aggregate with: out = scale * (A' (scale * x)), A' with these plans and edge weights.

    forward sums over in-edges, backward over out-edges: for a symmetric graph they are the same object.
    scale: [n] or None. weights: in each plan's order, or None for ones. On the backend's device.
    """

    forward: Plan
    backward: Plan
    scale: Tensor | None
    forward_weight: Tensor | None = None
    backward_weight: Tensor | None = None


def plans_of(layers: Iterable[Adjacency]) -> list[Plan]:
    """Their plans, each once."""
    return list({id(plan): plan for each in layers for plan in (each.forward, each.backward)}.values())


def read_by_peers(layers: Iterable[Adjacency]) -> bool:
    """Whether peers read the rows of any of these layers. (Those that are pushed in waves nobody else does.)"""
    return any(each.forward.transfer != "halo" for each in layers)


def symmetric_bytes(
    layers: Sequence[Adjacency], counts: NDArray[np.int64], format: RowFormat, ranks: int
) -> int:
    """Bytes of symmetric memory that a handle of this widest format takes on each rank.

    Two buffers of rows that peers read; and with halos, for each plan, two stagings and the signals.
    """
    lists = [plan.lists for plan in plans_of(layers) if plan.lists is not None]
    buffers = 2 * int(counts.max(initial=0)) * format.row_bytes if read_by_peers(layers) else 0
    return buffers + sum(
        2 * each.capacity * format.row_bytes + signal_bytes(each.waves, ranks) for each in lists
    )


def signal_bytes(waves: int, ranks: int) -> int:
    """Bytes of the signals of an exchange (HaloExchange::signal_count words), and room to align them."""
    return 8 * (waves + 3) * ranks


class GraphHandle:
    """One rank's rows of a graph, its adjacency, and two symmetric buffers used in turn (one barrier a layer).

    counts: int64 [P], rows of each rank. ids: int64 [n], the original ids of this rank's nodes; kept as the backend
    takes them. layers: the adjacency
    of each layer, or one for all; they differ in their transfers only.
    widest: the largest width that will be exchanged. heap_bytes: this rank's symmetric memory.
    """

    def __init__(
        self,
        backend: Backend,
        counts: NDArray[np.int64],
        ids: NDArray[np.int64],
        layers: Adjacency | Sequence[Adjacency],
        *,
        dtype: torch.dtype = torch.float32,
        widest: int = 1,
    ) -> None:
        self._layers = [layers] if isinstance(layers, Adjacency) else list(layers)
        self.backend, self.counts, self.dtype = backend, counts, dtype
        self.ids = as_array(torch.from_numpy(ids).to(backend.device))
        format = row_format(widest, dtype)
        # If peers read any layer's rows, every layer publishes: buffers are used in turn by all of them.
        self._read_by_peers = read_by_peers(self._layers)
        self.heap_bytes = symmetric_bytes(self._layers, counts, format, backend.size)
        backend.reserve(self.heap_bytes)
        self._buffers = [backend.rows(counts, format, symmetric=self._read_by_peers) for _ in range(2)]
        for plan in plans_of(self._layers):
            backend.prepare(plan, format)
        self._turn = 0
        self.workspace = Workspace(backend)

    @property
    def gcn(self) -> Adjacency:
        """The first layer's adjacency."""
        return self._layers[0]

    def layer(self, number: int) -> Adjacency:
        """The adjacency of a layer. Raises IndexError where the graph has others, and not this one's."""
        return self._layers[number] if len(self._layers) > 1 else self._layers[0]

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
        return rows, as_tensor(rows.local)

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
        epilogue = Epilogue(scale=as_array(adjacency.scale), bias=as_array(bias), relu=relu)
        op, edge = "copy" if weight is None else "mul", as_array(weight)
        self.backend.aggregate(plan, op, "sum", rows, as_array(out), edge=edge, epilogue=epilogue)
        return out
