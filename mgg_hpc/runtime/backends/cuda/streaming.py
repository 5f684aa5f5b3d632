"""Streaming of a store's rows through a GPU: chunks are copied into slots while earlier calls run."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan import grid
from ....plan.grid import Pass
from ....plan.workload import Plan
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Store
from ..arguments import Rows
from .launches import DeviceLaunches

PIECE = 16 << 20  # bytes of a buffer of page-locked memory
PIECES = 2  # number of these buffers: one is filled while the other is copied


class ChunkCopies:
    """Copies of the chunks of one pass, on a second stream, for calls that take one chunk each on the current stream.

    On the GPU, a copy into a slot waits for the last launch that reads the slot, and a launch waits for the copy of its
    chunk. The host does not wait, so it reads the next chunk of a file while the GPU sums.
    """

    def __init__(
        self, launches: DeviceLaunches, store: Store, order: Pass, buffer: ChunkBuffer, *, ahead: bool
    ) -> None:
        """ahead: whether chunks are copied before their call. Raises InputError for a buffer that is too small."""
        self._launches, self._store, self._order, self._ahead = launches, store, order, ahead
        self._slot_bytes = buffer.slot_bytes(order, store.format)
        self._place = store.place
        self._buffer, self._copies = buffer, launches.arrays.copies()
        self._call = self._copied = 0  # calls that were made, and steps whose copies were begun
        # For each slot, an event after the last launch that reads it; at first after all launches before this pass.
        self._used = [self._copies.launched()] * order.slots
        self._arrived: dict[int, Any] = {}  # events after copies, by step
        self._pieces: list[NDArray[np.uint8]] = []
        self._copied_from: list[Any] = []  # event after the last copy out of each piece

    @contextmanager
    def chunk(self, plan: Plan) -> Iterator[tuple[Plan, Rows]]:
        """Yield the next call's chunk as rows that this rank holds, and a plan over them.

        Launches inside read them. Raises ValueError for a plan of another call.
        """
        first, last = self._order.calls[self._call : self._call + 2].tolist()
        if not np.array_equal(grid.chunks_of(plan), self._order.chunk[first:last]) or last - first > 1:
            raise ValueError(
                f"call {self._call} of this pass takes chunks {self._order.chunk[first:last].tolist()}, one at most, "
                f"and the plan has {grid.chunks_of(plan).tolist()}"
            )
        self._call += 1
        if first == last:
            yield self._launches.over_held_rows(plan), self._rows(0, 0)
            return
        slot, chunk = int(self._order.slot[first]), int(self._order.chunk[first])
        self._copy_until(first)
        if first in self._arrived:
            self._copies.before(self._arrived.pop(first))
        began = self._launches.began()
        yield self._launches.over_held_rows(plan), self._rows(slot, int(np.diff(self._order.sources)[chunk]))
        if began is not None:
            stream = self._launches.stream
            stream.meter.later.append((plan, self._store.format, stream.since(began)))
        self._used[slot] = self._copies.launched()
        if self._ahead:
            self._copy_until(min(last, len(self._order.chunk) - 1))

    def _rows(self, slot: int, count: int) -> Rows:
        """Return the rows in a slot."""
        size, rank = self._launches.size, self._launches.rank
        addresses, counts = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        addresses[rank], counts[rank] = self._buffer.address + slot * self._slot_bytes, count
        return Rows(self._store.format, addresses, counts, self._buffer, rank, False)

    def _copy_until(self, step: int) -> None:
        """Begin the copies of all steps up to this one."""
        while self._copied <= step:
            if self._order.loads[self._copied]:
                self._copy(self._copied)
            self._copied += 1

    def _copy(self, step: int) -> None:
        order, format = self._order, self._store.format
        slot, chunk = int(order.slot[step]), int(order.chunk[step])
        low, high = (int(each) for each in order.sources[chunk : chunk + 2])
        began = time.perf_counter()
        self._copies.after(self._used[slot] if self._ahead else self._copies.launched())
        at = self._buffer.address + slot * self._slot_bytes
        place = self._place
        if place.address and place.row_bytes == format.row_bytes and place.pace is None:
            self._upload(
                _bytes_at(place.address + low * format.row_bytes, (high - low) * format.row_bytes), at
            )
        else:
            self._through_pieces(low, high, at)
        self._arrived[step] = self._copies.mark()
        # Copies of locked memory take the host no time; reads of files do.
        meter = self._launches.stream.meter
        meter.count(0, high - low, format, 0)
        meter.count_stored(high - low, format, time.perf_counter() - began)

    def _through_pieces(self, low: int, high: int, at: int) -> None:
        """Copy rows by way of page-locked buffers."""
        format = self._store.format
        most = max(1, min(PIECE // format.row_bytes, self._order.capacity))
        if not self._pieces:
            nbytes = most * format.row_bytes
            self._pieces = [self._launches.arrays.pinned(nbytes) for _ in range(PIECES)]
            self._copied_from = [None] * PIECES
        for number, first in enumerate(range(low, high, most)):
            count, which = min(most, high - first), number % PIECES
            if self._copied_from[which] is not None:
                self._copies.finish(self._copied_from[which])
            piece = self._pieces[which][: count * format.row_bytes]
            rows = piece.view(format.dtype).reshape(count, format.stride)
            rows[:, : format.dim] = self._store.read(first, count)
            self._upload(piece, at + (first - low) * format.row_bytes)
            self._copied_from[which] = self._copies.mark()

    def _upload(self, rows: NDArray[np.uint8], at: int) -> None:
        self._copies.upload(rows, self._launches.arrays.view(at, len(rows)))

    def close(self) -> None:
        """Wait for all copies, after which their rows may be written again, and later launches may use the slots."""
        mark = self._copies.mark()
        self._copies.finish(mark)
        self._copies.before(mark)


def _bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return a view of the host's memory, uint8 [nbytes]."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
