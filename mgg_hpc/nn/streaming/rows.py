"""Rows of a graph in a store, the inputs and outputs of layers, and the pool of stores.

For torch's autograd a token stands for the rows: a scalar with the same dependences. So autograd calls the layers'
backward passes in the right order, while the gradients of rows are passed on in stores. Tokens are on the graph's
device, so that a single thread of autograd runs these passes, one after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, autograd

from ...plan.layout import RowFormat
from ...runtime.streaming.store import Store, WriteBehind
from ..spans import first_order
from ..workspace import as_array, as_tensor

BLOCK = 1024  # number of rows that are added at a time


class StorePool:
    """Hands out stores and takes them back, on all ranks in the same order. make: return a new store. Collective."""

    def __init__(self, make: Callable[[RowFormat], Store]) -> None:
        self._make = make
        self._taken: list[Store] = []
        self._free: list[Store] = []

    def take(self, format: RowFormat) -> Store:
        """Return an uninitialised store of rows of this format, which has a single owner until `give`."""
        found = next((store for store in self._free if store.format == format), None)
        if found is not None:
            self._free.remove(found)
        self._taken.append(self._make(format) if found is None else found)
        return self._taken[-1]

    @property
    def row_bytes(self) -> int:
        """Bytes per row, summed over all stores, used and free."""
        return sum(store.format.row_bytes for store in (*self._taken, *self._free))

    def give(self, store: Store) -> None:
        """Take a store back from its owner; ignore stores of other origin."""
        if store in self._taken:
            self._taken.remove(store)
            self._free.append(store)

    def settle(self) -> None:
        """Wait for all writes that are under way, including those to stores that were given back."""
        for store in (*self._taken, *self._free):
            if isinstance(store, WriteBehind):
                store.settle()

    def close(self) -> None:
        """Close all stores, also after an error."""
        every = [*self._taken, *self._free]
        self._taken, self._free = [], []
        with ExitStack() as closing:
            for store in every:
                closing.callback(store.close)


class Stores(Protocol):
    """The interface of a graph to its rows. first, rows: number of this rank's first row, and of its rows."""

    device: str

    @property
    def first(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def check_open(self) -> None: ...

    def new_store(self, width: int) -> Store: ...

    def drop(self, store: Store) -> None: ...


class Gradient:
    """The gradient of rows: in the store of the first reader that has run backward, to which the others add."""

    def __init__(self) -> None:
        self.store: Store | None = None

    def give(self, graph: Stores, gradient: Store) -> None:
        """Add a gradient in a store, which is owned by this object afterwards or dropped."""
        if self.store is None:
            self.store = gradient
            return
        for low in range(0, graph.rows, BLOCK):
            first, count = graph.first + low, min(BLOCK, graph.rows - low)
            add(self.store, first, read(gradient, first, count))
        graph.drop(gradient)


class StreamedRows:
    """This rank's rows [n, width] of a graph, in a store of all ranks' rows that it owns.

    token: stands for the rows in autograd. gradient: of the rows.
    """

    streams = True

    def __init__(self, graph: Stores, store: Store, token: Tensor, gradient: Gradient | None = None) -> None:
        self.graph, self.store, self.token = graph, store, token
        self.gradient = gradient or Gradient()
        drop_with(self, graph, store)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of this rank's rows, and their width."""
        return self.graph.rows, self.store.format.dim

    def example(self, dtype: torch.dtype) -> Tensor:
        """Return an empty tensor [0, width] for shape inference."""
        return torch.empty(0, self.store.format.dim, dtype=dtype, device=self.graph.device)

    @property
    def requires_grad(self) -> bool:
        """Whether these rows need a gradient."""
        return self.token.requires_grad

    def read(self, low: int, high: int) -> Tensor:
        """Return this rank's rows low .. high - 1 in the host's memory, read-only.

        Raises ValueError after the graph is closed.
        """
        self.graph.check_open()
        return read(self.store, self.graph.first + low, high - low)

    def tensor(self) -> Tensor:
        """Return all of this rank's rows as a tensor [n, width] on the graph's device, with gradients."""
        out: Tensor = _Whole.apply(self.token, self)
        return out


def drop_with(owner: object, graph: Stores, store: Store) -> Callable[[], object]:
    """Drop a store when its owner is garbage collected, or before when the returned function is called; once."""
    return weakref.finalize(owner, _drop, weakref.ref(graph), store)


def _drop(graph: weakref.ref[Stores], store: Store) -> None:
    if (held := graph()) is not None:
        held.drop(store)


def read(store: Store, first: int, count: int) -> Tensor:
    """Return rows of a store as a host tensor [count, dim], read-only: it may be the store's own memory."""
    return as_tensor(store.read(first, count))


def write(store: Store, first: int, rows: Tensor) -> None:
    """Write rows on any device to a store."""
    store.write(first, as_array(rows.cpu()))


def add(store: Store, first: int, rows: Tensor) -> None:
    """Add rows to the rows of a store."""
    write(store, first, read(store, first, len(rows)) + rows.cpu())


class _Whole(autograd.Function):
    """Rows of a store as a tensor; its gradient becomes theirs."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, rows: StreamedRows) -> Tensor:
        ctx.rows = rows
        # A copy, since the store will be reused.
        return rows.read(0, rows.graph.rows).to(rows.graph.device, copy=True)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.rows is None:
            raise RuntimeError("backward has run over these rows already; what it needs was freed")
        rows: StreamedRows = ctx.rows
        ctx.rows = None
        store = rows.graph.new_store(gradient.shape[1])
        write(store, rows.graph.first, gradient)
        rows.gradient.give(rows.graph, store)
        return torch.zeros((), device=rows.graph.device), None
