"""A rank's part of a distributed graph: what layers aggregate over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ..workspace import Workspace, accumulator, as_array, as_tensor, row_format
from .edge_data import EdgeValues, LoopFill, ordered
from .matrix import Adjacency, Matrix
from .view import GraphView


def plans_of(layers: Iterable[Adjacency]) -> list[Plan]:
    """Return the plans of these adjacencies, each once."""
    return list({id(plan): plan for each in layers for plan in each.directions}.values())


def read_by_peers(layers: Iterable[Adjacency]) -> bool:
    """Return whether peers read the rows of any of these layers. (Rows of a halo are pushed instead.)"""
    return any(each.forward.transfer != "halo" for each in layers)


def buffers(read_by_peers: bool, ranks: int) -> int:
    """Return the number of buffers of exchanged rows: 2 where peers may read one while the next is written, else 1."""
    return 2 if read_by_peers and ranks > 1 else 1


def symmetric_bytes(
    layers: Sequence[Adjacency], counts: NDArray[np.int64], format: RowFormat, ranks: int
) -> int:
    """Return the bytes of symmetric memory that a handle of this widest format takes on each rank.

    Buffers of rows that peers read; and with halos, for each plan, two stagings and the signals.
    """
    rows = buffer_bytes(counts, format, ranks) if read_by_peers(layers) else 0
    return rows + sum(staging_bytes(plan, format.row_bytes, ranks) for plan in plans_of(layers))


def buffer_bytes(counts: NDArray[np.int64], format: RowFormat, ranks: int) -> int:
    """Return the bytes of the buffers of rows that peers read."""
    return buffers(True, ranks) * int(counts.max(initial=0)) * format.row_bytes


def staging_bytes(plan: Plan, row_bytes: int, ranks: int) -> int:
    """Return the bytes of symmetric memory that a plan keeps for rows up to this size."""
    if plan.lists is None:
        return 0
    return 2 * plan.lists.capacity * row_bytes + signal_bytes(plan.lists.rounds, ranks)


def signal_bytes(rounds: int, ranks: int) -> int:
    """Return the bytes of the signals of an exchange (HaloExchange::signal_count words), with room to align them."""
    return 8 * (rounds + 3) * ranks


class GraphHandle(GraphView):
    """One rank's rows of a graph, its adjacencies, and symmetric buffers used in turn (one barrier per layer).

    counts: int64 [P], rows of each rank. ids: int64 [n], the original ids of this rank's nodes; kept as the backend
    takes them. layers: the adjacency of each layer, or one for all; they differ in their transfers only. dtype: of
    rows. widest: the largest width that will be exchanged, as far as that is known: buffers grow where layers ask for
    more, and with 0 are made then. publishes: whether peers will read rows of layers that are planned later. comm: of
    all ranks, for those. heap_bytes: this rank's symmetric memory. device: the backend's, as torch names it.
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
        publishes: bool = False,
        comm: Any = None,
    ) -> None:
        self._layers = [layers] if isinstance(layers, Matrix) else list(layers)
        self._by_kind = {each.kind: each for each in reversed(self._layers)}
        self.backend, self.counts, self.dtype, self.comm = backend, counts, dtype, comm
        self.rank, self.ranks = backend.collectives.rank, backend.collectives.size
        self.device = backend.capabilities.device
        self.ids = as_array(torch.from_numpy(ids).to(backend.capabilities.device))
        format = row_format(widest, dtype)
        # If peers read any layer's rows, every layer publishes: buffers are used in turn by all of them.
        self._read_by_peers = publishes or read_by_peers(self._layers)
        self.heap_bytes = 0
        self._room = [self._bytes(counts, format) if widest else 0] * buffers(
            self._read_by_peers, backend.collectives.size
        )
        self._prepared = dict.fromkeys(plans_of(self._layers), format.row_bytes)  # of the widest rows
        stagings = sum(staging_bytes(*plan, backend.collectives.size) for plan in self._prepared.items())
        self._reserve(stagings + (sum(self._room) if self._read_by_peers else 0))
        self._buffers = [self._new_buffer(counts, format) if widest else None for _ in self._room]
        for plan in self._prepared:
            backend.prepare(plan, format)
        self._turn = 0
        self.workspace = Workspace(backend)
        self._edge_values: WeakKeyDictionary[Plan, dict[tuple[str, LoopFill], EdgeValues]] = (
            WeakKeyDictionary()
        )

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        """Return the graph's adjacency of a kind, which is planned at the first call for it: collective then.

        ordered: one that knows the order of its edges, which `edge_values` needs; it takes the place of one that does
        not. Raises ValueError for a kind that the handle was not made for and cannot plan.
        """
        made = self._by_kind.get(kind)
        if made is None or (ordered and made.order is None and not made.values):
            self._by_kind[kind] = made = self._planned(kind, ordered)
        return made

    def edge_data(self, name: str) -> Tensor:
        """Return data of the edges of this rank's rows. Raises ValueError where the handle was made without them."""
        raise ValueError(f"the graph's handle was made without the data of edges {name!r}")

    def edge_values(self, adjacency: Adjacency, given: Tensor | str, fill: LoopFill = "mean") -> EdgeValues:
        """Return values of the edges of an adjacency, of the accumulator's type. Collective.

        given: [E, ...] in the order of the graph's edges, or the name of data of the graph's, which are kept so.
        fill: of the self loops that the adjacency has beside them (`edge_data.ordered`). Raises ValueError as
        `edge_data.ordered` does, and what `edge_data` does.
        """
        wide = accumulator(self.dtype)
        if isinstance(given, Tensor):
            return self._ordered(adjacency, given.to(self.device, wide), fill)
        if fill == "mean" and given in adjacency.values:
            return adjacency.values[given]
        kept = self._edge_values.setdefault(adjacency.forward, {})
        if (given, fill) not in kept:
            data = self.edge_data(given).to(self.device, wide)
            kept[given, fill] = self._ordered(adjacency, data, fill)
        return kept[given, fill]

    def _ordered(self, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
        return ordered(self.comm, adjacency.order, adjacency.forward, adjacency.backward, values, fill)

    def _planned(self, kind: str, ordered: bool) -> Adjacency:
        """Plan the adjacency of a kind that the handle was not made for."""
        made = " and ".join(self._by_kind)
        raise ValueError(f"this graph was made for {made!r} layers, and {kind!r} is asked for")

    def layer(self, number: int) -> Adjacency | None:
        """Return the adjacency of a layer; None where it takes the one of its kind.

        Raises IndexError where the graph has others, and not this one's.
        """
        if not self._layers:
            return None
        return self._layers[number] if len(self._layers) > 1 else self._layers[0]

    @property
    def rows(self) -> int:
        """Number of rows of this rank."""
        return int(self.counts[self.rank])

    @property
    def destinations(self) -> int:
        """Number of rows of this rank: layers return as many as they take."""
        return self.rows

    @property
    def all_destinations(self) -> int:
        """Number of rows of all ranks."""
        return int(self.counts.sum())

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of this rank's rows in the whole graph."""
        first = int(self.counts[: self.rank].sum())
        return np.arange(first, first + self.rows)

    def restart(self) -> None:
        """Begin a pass with the first buffer. All ranks' reads of the last pass must have ended."""
        self._turn = 0

    def exchange(
        self, dim: int, *, backward: bool = False, counts: NDArray[np.int64] | None = None
    ) -> tuple[Rows, Tensor]:
        """Return the next symmetric rows of width ``dim``, and a tensor [n, dim] over this rank's part of them.

        Collective: all ranks ask for the same widths in the same order. What was handed out two calls ago (one, where
        no peer reads it) is overwritten, or gone where rows of this width need more memory. backward: changes nothing.
        counts: int64 [P], rows of each rank. [default: the graph's] Raises InputError where there is no more memory.
        """
        self._turn = (self._turn + 1) % len(self._buffers)
        counts = self.counts if counts is None else counts
        rows = self._buffer(counts, row_format(dim, self.dtype)).shaped(dim, counts)
        return rows, as_tensor(rows.local)

    def over(self, x: Tensor) -> Rows | None:
        # Peers read rows in symmetric memory alone, and GPUs get a copy.
        return super().over(x) if len(self._buffers) == 1 and self.device == "cpu" else None

    def _buffer(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Return the buffer whose turn it is, with room for these rows. What it held before is not read any more."""
        held, nbytes = self._buffers[self._turn], self._bytes(counts, format)
        if held is None or nbytes > self._room[self._turn]:
            if self._read_by_peers:
                if held is not None:
                    self.backend.memory.release(held)
                self._reserve(nbytes, self._room[self._turn])
            held = self._buffers[self._turn] = self._new_buffer(counts, format)
            self._room[self._turn] = nbytes
        return held

    def _new_buffer(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        return self.backend.rows(counts, format, symmetric=self._read_by_peers)

    def _bytes(self, counts: NDArray[np.int64], format: RowFormat) -> int:
        """Return the bytes of such rows on this rank. Symmetric rows take as much on every rank as on the largest."""
        rows = counts.max(initial=0) if self._read_by_peers else counts[self.rank]
        return int(rows) * format.row_bytes

    def _reserve(self, nbytes: int, instead_of: int = 0) -> None:
        """Reserve symmetric memory in place of ``instead_of`` bytes that were released. Collective."""
        self.backend.memory.reserve(nbytes, int(self.counts.argmax()))
        self.heap_bytes += nbytes - instead_of

    def reserve(self, nbytes: int) -> None:
        """Reserve symmetric memory beside the graph's own, before any of it is allocated. Collective."""
        self._reserve(nbytes)

    def prepare(self, plan: Plan, format: RowFormat) -> None:
        """Allocate what the plan's exchange keeps for rows of this format, before the backend sums them. Collective."""
        before, ranks = self._prepared.get(plan, 0), self.ranks
        if format.row_bytes > before:
            had = staging_bytes(plan, before, ranks) if before else 0
            self._reserve(staging_bytes(plan, format.row_bytes, ranks), had)
            self.backend.prepare(plan, format)
            self._prepared[plan] = format.row_bytes

    def publish(self, rows: Rows, plan: Plan) -> None:
        """Make exchanged rows ready to be read over a plan, here and by peers. Collective."""
        if self._read_by_peers:
            self.backend.publish(rows)
        self.prepare(plan, rows.format)
