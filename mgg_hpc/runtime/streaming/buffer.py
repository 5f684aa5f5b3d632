"""The memory that chunks of a store are brought into: slots, a chunk in each (NGra, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.grid import Pass
from ...plan.layout import RowFormat

PAGE = RowFormat(np.dtype(np.uint8), 4096)  # slots begin with a page, as direct reads of files want it
SIGNALS = RowFormat(np.dtype(np.uint64), 2)  # two words of each rank of a chain (chunk_stream.h)


class ChunkBuffer:
    """Memory for slots, allocated once, and used for passes over rows of any width, one after another.

    backend: the Backend of this rank. nbytes: size of all slots, rounded up to whole pages. chains: ranks of each
    chain, the first of which loads (chains.py). [default: each rank loads its own chunks] Ranks of a chain make the
    same passes, with the same steps, over slots of the same size. With chains the constructor and `close` are
    collective.
    """

    def __init__(self, backend: Any, nbytes: int, chains: Sequence[Sequence[int]] = ()) -> None:
        self.pages = -(-nbytes // PAGE.row_bytes)
        self._rank, self._memory = backend.collectives.rank, backend.memory
        self._chain = next((list(chain) for chain in chains if self._rank in chain), [self._rank])
        self._shares = any(len(chain) > 1 for chain in chains)
        ranks = np.arange(backend.collectives.size)
        held = ranks >= 0 if self._shares else ranks == self._rank
        # One page more, since memory need not begin with one.
        self._rows = backend.rows(np.where(held, self.pages + 1, 0), PAGE, symmetric=self._shares)
        self._signals = backend.rows(np.where(held, 1, 0), SIGNALS, symmetric=self._shares)
        self._steps = 0
        self.address = self._slots_of(self._rank)

    @property
    def nbytes(self) -> int:
        """Size of all slots in bytes."""
        return self.pages * PAGE.row_bytes

    def slot_bytes(self, order: Pass, format: RowFormat) -> int:
        """Return the bytes of a slot for a pass over rows of a format. Raises InputError where its slots do not fit."""
        each = slot_bytes(order.capacity, format)
        if order.slots * each > self.nbytes:
            raise InputError(
                f"plan.memory: {order.slots} chunks of {order.capacity} rows take {order.slots * each:,} bytes, and "
                f"there are {self.nbytes:,} for them"
            )
        return each

    def links(self, steps: int) -> NDArray[np.uint64] | None:
        """Return the ``chain`` argument of the native ChunkStream for the next pass, of so many steps.

        It is None for a chain of one rank. Raises InputError if some rank of the chain cannot be reached by pointers.
        """
        if len(self._chain) == 1:
            return None
        if not all(self._rows.addresses[rank] for rank in self._chain):
            raise InputError("chains of ranks pass chunks on through shared memory: use run.backend = shm")
        place, first = self._chain.index(self._rank), self._steps
        self._steps += steps
        before = self._chain[place - 1] if place else None
        after = self._chain[place + 1] if place + 1 < len(self._chain) else None
        words = [
            0 if rank is None else int(self._signals.addresses[rank]) for rank in (self._rank, before, after)
        ]
        return np.array([*words, 0 if before is None else self._slots_of(before), first], np.uint64)

    def close(self) -> None:
        """Free the memory, once no pass uses it."""
        if self._shares:
            self._memory.release(self._rows)
            self._memory.release(self._signals)

    def _slots_of(self, rank: int) -> int:
        """Return the address in this process of a rank's slots: the first page boundary in its memory.

        Shared memory is mapped by whole pages, so all processes find the same boundary.
        """
        return _up(int(self._rows.addresses[rank]))


def slot_bytes(rows: int, format: RowFormat) -> int:
    """Return the size in bytes of a slot for chunks of so many rows."""
    return _up(max(1, rows) * format.row_bytes)


def _up(value: int) -> int:
    return -(-value // PAGE.row_bytes) * PAGE.row_bytes
