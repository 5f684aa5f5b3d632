"""Rows of a graph that lie in a store, as layers take and return them.

torch's autograd sees a token in their place: a scalar that depends on what the rows depend on. So it calls the layers'
backward passes in the right order, and the gradients of rows go from one to the other through stores. Tokens are on the
graph's device, so that one thread of autograd's runs these passes, one after another.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor, autograd

from ...runtime.streaming.store import Store
from ..spans import first_order
from ..workspace import as_array, as_tensor


class Stores(Protocol):
    """The graph that stores belong to. first, rows: of this rank's rows. device: on which layers compute."""

    device: str

    @property
    def first(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def check_open(self) -> None: ...

    def new_store(self, width: int) -> Store: ...

    def drop(self, store: Store) -> None: ...


class Gradient:
    """The gradient of rows, in a store once one of their readers has run backward; others add to it."""

    def __init__(self) -> None:
        self.store: Store | None = None

    def give(self, graph: Stores, gradient: Store) -> None:
        """Make a store the gradient, or add it to what is there."""
        if self.store is None:
            self.store = gradient
            return
        for low in range(0, graph.rows, BLOCK):
            first, count = graph.first + low, min(BLOCK, graph.rows - low)
            add(self.store, first, read(gradient, first, count))
        graph.drop(gradient)


class StreamedRows:
    """This rank's rows [n, width] of a graph, in a store of all ranks' rows, which is given back with the last reader.

    token: see above. gradient: of the rows.
    """

    def __init__(self, graph: Stores, store: Store, token: Tensor, gradient: Gradient | None = None) -> None:
        self.graph, self.store, self.token = graph, store, token
        self.gradient = gradient or Gradient()
        give_back_with(self, graph, store)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of this rank's rows, and their width."""
        return self.graph.rows, self.store.format.dim

    def example(self, dtype: torch.dtype) -> Tensor:
        """Return no rows of this width, by which programs find shapes."""
        return torch.empty(0, self.store.format.dim, dtype=dtype, device=self.graph.device)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients of these rows are wanted."""
        return self.token.requires_grad

    def read(self, low: int, high: int) -> Tensor:
        """Return this rank's rows low .. high - 1 in the host's memory, which are not written.

        Raises ValueError once the graph is closed.
        """
        self.graph.check_open()
        return read(self.store, self.graph.first + low, high - low)

    def tensor(self) -> Tensor:
        """Return all of this rank's rows as a tensor [n, width] on the graph's device, with gradients."""
        out: Tensor = _Whole.apply(self.token, self)
        return out


BLOCK = 1024  # rows that are added at a time


def give_back_with(reader: object, graph: Stores, store: Store) -> None:
    """Give a store back once a reader of its rows is gone, unless that was done before."""
    weakref.finalize(reader, _drop, weakref.ref(graph), store)


def _drop(graph: weakref.ref[Stores], store: Store) -> None:
    if (held := graph()) is not None:
        held.drop(store)


def read(store: Store, first: int, count: int) -> Tensor:
    """Return rows of a store as a host tensor [count, dim], which is not written: it may be the store's own memory."""
    return as_tensor(store.read(first, count))


def write(store: Store, first: int, rows: Tensor) -> None:
    """Write rows of any device into a store."""
    store.write(first, as_array(rows.cpu()))


def add(store: Store, first: int, rows: Tensor) -> None:
    """Add rows to those in a store."""
    write(store, first, read(store, first, len(rows)) + rows.cpu())


class _Whole(autograd.Function):
    """Rows of a store as a tensor; backward, its gradient becomes theirs."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, rows: StreamedRows) -> Tensor:
        ctx.rows = rows
        # A copy, since the store will hold others.
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
