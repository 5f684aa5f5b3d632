"""A rank's part of a distributed graph as layers use it: adjacencies, and the symmetric rows that they exchange."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.watchdog import calling
from ..workspace import Workspace, as_array, as_tensor, row_format
from .matrix import Adjacency, EdgeValues, LoopFill, ordered
from .view import GraphView


def plans_of(layers: Iterable[Adjacency]) -> list[Plan]:
    """Return the plans of adjacencies, each once."""
    return list({id(plan): plan for each in layers for plan in each.directions}.values())


def read_by_peers(layers: Iterable[Adjacency]) -> bool:
    """Return whether other ranks read the rows of any layer. (Rows of a halo are pushed to them instead.)"""
    return any(each.forward.transfer != "halo" for each in layers)


def symmetric_bytes(
    layers: Sequence[Adjacency], counts: NDArray[np.int64], format: RowFormat, ranks: int
) -> int:
    """Return the bytes of symmetric memory on each rank for a `GraphHandle` whose widest rows have this format.

    They hold the rows that other ranks read, and the staging and signals of each halo. counts: int64 [P], rows of each
    rank.
    """
    rows = buffer_bytes(counts, format, ranks) if read_by_peers(layers) else 0
    return rows + sum(staging_bytes(plan, format.row_bytes, ranks) for plan in plans_of(layers))


def buffer_bytes(counts: NDArray[np.int64], format: RowFormat, ranks: int) -> int:
    """Return the bytes of all buffers of rows that other ranks read. counts: int64 [P], rows of each rank."""
    return _buffers(True, ranks) * int(counts.max(initial=0)) * format.row_bytes


def staging_bytes(plan: Plan, row_bytes: int, ranks: int) -> int:
    """Return the bytes of symmetric memory of a plan's halo, for rows of up to ``row_bytes``; 0 without a halo."""
    if plan.lists is None or not row_bytes:
        return 0
    return 2 * plan.lists.capacity * row_bytes + signal_bytes(plan.lists.rounds, ranks)


def signal_bytes(rounds: int, ranks: int) -> int:
    """Return the bytes of a halo's signals (HaloExchange::signal_count words), with padding for their alignment."""
    return 8 * (rounds + 3) * ranks


def _buffers(read_by_peers: bool, ranks: int) -> int:
    """Return the number of buffers of exchanged rows: 2 if peers may read one while the next is written, else 1."""
    return 2 if read_by_peers and ranks > 1 else 1


class GraphHandle(GraphView):
    """One rank's rows of a graph, its adjacencies, and buffers of exchanged rows that alternate.

    counts: int64 [P], rows of each rank. ids: int64 [n], original ids of this rank's nodes. layers: the adjacency of
    each layer, or a single one for all layers; they differ only in their transfers. dtype: of rows. widest: number of
    columns of the widest rows, for which memory is allocated at once; buffers grow when layers request wider rows.
    publishes: whether other ranks will read rows of layers that are planned later. comm: communicator of all ranks,
    which planning later needs. heap_bytes: bytes of this rank's symmetric memory.
    """

    def __init__(
        self,
        backend: Backend,
        counts: NDArray[np.int64],
        ids: NDArray[np.int64],
        layers: Sequence[Adjacency],
        *,
        dtype: torch.dtype = torch.float32,
        widest: int = 1,
        publishes: bool = False,
        comm: Any = None,
    ) -> None:
        self._layers = list(layers)
        self._by_kind = {each.kind: each for each in reversed(self._layers)}
        self.backend, self.counts, self.dtype, self.comm = backend, counts, dtype, comm
        self.rank, self.ranks = backend.collectives.rank, backend.collectives.size
        self.device = backend.capabilities.device
        self.ids = as_array(torch.from_numpy(ids).to(self.device))
        format = row_format(widest, dtype)
        # If peers read any layer's rows, every layer publishes: all of them use the same buffers in turn.
        self._read_by_peers = publishes or read_by_peers(self._layers)
        self.heap_bytes = 0
        self._room = [self._bytes(counts, format) if widest else 0] * _buffers(
            self._read_by_peers, self.ranks
        )
        self._prepared = dict.fromkeys(plans_of(self._layers), format.row_bytes)  # of the widest rows
        stagings = sum(staging_bytes(*plan, self.ranks) for plan in self._prepared.items())
        self.reserve(stagings + (sum(self._room) if self._read_by_peers else 0))
        self._buffers = [self._new_buffer(counts, format) if widest else None for _ in self._room]
        for plan in self._prepared:
            backend.prepare(plan, format)
        self._current = 0
        self.workspace = Workspace(backend)

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        made = self._by_kind.get(kind)
        if made is None or (ordered and made.order is None and not made.values):
            with torch.inference_mode(False), calling("planning"):
                self._by_kind[kind] = made = self._planned(kind, ordered)
        return made

    def _planned(self, kind: str, ordered: bool) -> Adjacency:
        """Plan the adjacency of a kind that the handle was made without."""
        made = " and ".join(self._by_kind)
        raise ValueError(f"this graph was made for {made!r} layers, and {kind!r} is asked for")

    def _in_order(self, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
        return ordered(self.comm, adjacency, values, fill)

    def layer(self, number: int) -> Adjacency | None:
        if not self._layers:
            return None
        return self._layers[number] if len(self._layers) > 1 else self._layers[0]

    @property
    def rows(self) -> int:
        return int(self.counts[self.rank])

    @property
    def destinations(self) -> int:
        return self.rows

    @property
    def all_destinations(self) -> int:
        return int(self.counts.sum())

    @property
    def numbers(self) -> NDArray[np.int64]:
        first = int(self.counts[: self.rank].sum())
        return np.arange(first, first + self.rows)

    def restart(self) -> None:
        """Use the first buffer next. No rank may still read rows of the last pass."""
        self._current = 0

    def exchange(
        self, dim: int, *, backward: bool = False, counts: NDArray[np.int64] | None = None
    ) -> tuple[Rows, Tensor]:
        """Return rows of width ``dim`` to exchange, and a tensor [n, dim] over this rank's part. Collective.

        All ranks request the same widths in the same order. The rows returned two calls ago (one call, if no peer reads
        them) are overwritten, or freed if these need more memory. counts: int64 [P], rows of each rank. [default: the
        graph's] Raises InputError if memory is exhausted.
        """
        self._current = (self._current + 1) % len(self._buffers)
        counts = self.counts if counts is None else counts
        with calling("an exchange of rows"):
            rows = self._buffer(counts, row_format(dim, self.dtype)).shaped(dim, counts)
        return rows, as_tensor(rows.local)

    def wrap(self, x: Tensor) -> Rows | None:
        # Peers read rows in symmetric memory alone, and GPUs get a copy.
        return super().wrap(x) if len(self._buffers) == 1 and self.device == "cpu" else None

    def _buffer(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        """Return the current buffer, enlarged if such rows do not fit. No rank reads its former content any more."""
        held, nbytes = self._buffers[self._current], self._bytes(counts, format)
        if held is None or nbytes > self._room[self._current]:
            if self._read_by_peers:
                if held is not None:
                    self.backend.memory.release(held)
                self.reserve(nbytes, self._room[self._current])
            held = self._buffers[self._current] = self._new_buffer(counts, format)
            self._room[self._current] = nbytes
        return held

    def _new_buffer(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        return self.backend.rows(counts, format, symmetric=self._read_by_peers)

    def _bytes(self, counts: NDArray[np.int64], format: RowFormat) -> int:
        """Return the bytes of such rows on this rank. Symmetric rows take as much on every rank as on the largest."""
        rows = counts.max(initial=0) if self._read_by_peers else counts[self.rank]
        return int(rows) * format.row_bytes

    def reserve(self, nbytes: int, released: int = 0) -> None:
        """Reserve symmetric memory before it is allocated. Collective. released: bytes that were freed before."""
        self.backend.memory.reserve(nbytes, int(self.counts.argmax()))
        self.heap_bytes += nbytes - released

    def prepare(self, plan: Plan, format: RowFormat) -> None:
        """Allocate what a plan needs to exchange and sum rows of this format, unless done before. Collective."""
        before = self._prepared.get(plan, 0)
        if format.row_bytes > before:
            staging = [staging_bytes(plan, size, self.ranks) for size in (format.row_bytes, before)]
            self.reserve(*staging)
            self.backend.prepare(plan, format)
            self._prepared[plan] = format.row_bytes

    def publish(self, rows: Rows, plan: Plan) -> None:
        if self._read_by_peers:
            with calling("an exchange of rows"):
                self.backend.publish(rows)
        self.prepare(plan, rows.format)
