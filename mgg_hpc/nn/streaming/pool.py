"""Stores that are used again once nothing reads their rows any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ...plan.layout import RowFormat
from ...runtime.streaming.store import Place, Store, WriteBehind


class Lease(Store):
    """A store as one of its users has it: when another one has it, that is another lease."""

    def __init__(self, store: Store) -> None:
        self.store: Store = store
        self.format, self.count = store.format, store.count

    @property
    def place(self) -> Place:
        return self.store.place

    def read(self, first: int, count: int) -> NDArray[Any]:
        return self.store.read(first, count)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        self.store.write(first, rows)

    def close(self) -> None:
        self.store.close()


class StorePool:
    """Hands out stores and takes them back, by all ranks in the same order. make: a new one. Collective."""

    def __init__(self, make: Callable[[RowFormat], Store]) -> None:
        self._make = make
        self._leases: list[Lease] = []
        self._free: list[Store] = []

    def take(self, format: RowFormat) -> Lease:
        """Return a store of rows of this format, which are any at first."""
        found = next((store for store in self._free if store.format == format), None)
        if found is not None:
            self._free.remove(found)
        lease = Lease(self._make(format) if found is None else found)
        self._leases.append(lease)
        return lease

    def give(self, store: Store) -> None:
        """Take a store back; nothing if it is not one of these, or was given before."""
        if isinstance(store, Lease) and store in self._leases:
            self._leases.remove(store)
            self._free.append(store.store)

    def settle(self) -> None:
        """Wait for all writes that are under way, also of stores that were given back."""
        for store in [*(lease.store for lease in self._leases), *self._free]:
            if isinstance(store, WriteBehind):
                store.settle()

    def close(self) -> None:
        """Close all stores, the others too where one raises."""
        every = [*(lease.store for lease in self._leases), *self._free]
        self._leases, self._free = [], []
        errors = []
        for store in every:
            try:
                store.close()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
