"""Rows of a table's file for a GPU: read by threads into page-locked memory, while earlier ones are copied."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import Tier, TieredRows
from ..host.kernels import SerialBackend
from ..simulated import World
from .context import DeviceContext

BUFFER_BYTES = 4 << 20
BUFFERS = 2


class FileReads:
    """Reads rows from the file of a table for gathers on one CUDA stream.

    A thread fills page-locked buffers while others are copied to the GPU. The stream waits once per gather, for
    the last copy.
    """

    def __init__(self, context: DeviceContext, src: TieredRows) -> None:
        file, self._format = src.file, src.format
        assert file is not None
        self._host = SerialBackend(0, World(1), context.options)  # whose threads read
        self._filed = TieredRows(file.count - src.first, src.format, [], file, first=src.first)
        self._rows = max(1, BUFFER_BYTES // src.format.row_bytes)
        self._buffers = [context.arrays.pinned(self._rows * src.format.row_bytes) for _ in range(BUFFERS)]
        self._copied: list[Any] = [None] * BUFFERS  # marks of the last copies from them
        self._copies, self._thread = context.arrays.copies(own=True), ThreadPoolExecutor(1, "read rows")
        self._reading: deque[Future[float]] = deque()
        self._arrived: TieredRows | None = None
        self._used: Any = None  # an event after the last launch that reads the rows that have arrived

    def begin(self, context: DeviceContext, slots: NDArray[np.int64]) -> None:
        """Begin to read rows. slots: int64 [n], ascending, from 0 for the first row that only the file has."""
        while self._reading:  # of a gather that failed
            self._reading.popleft().cancel()
        self._slots, count, format = slots, len(slots), self._format
        if self._arrived is None or self._arrived.rows < count:
            counts = np.zeros(context.size, np.int64)
            counts[context.rank] = room = 1 << (count - 1).bit_length()
            held, mine = context.rows(counts, format, symmetric=False), np.array([context.rank])
            tier = Tier("read", room, held.addresses[mine], mine, format.row_bytes, kept=held)
            self._arrived, self._used = TieredRows(room, format, [tier]), self._copies.launched()
        for first in range(0, min(count, BUFFERS * self._rows), self._rows):
            self._reading.append(self._thread.submit(self._read, first))

    def _read(self, first: int) -> float:
        """Fill a buffer with the rows of slots ``first`` and following; return the seconds that this takes."""
        slots, which = self._slots[first : first + self._rows], first // self._rows % BUFFERS
        if self._copied[which] is not None:
            self._copies.finish(self._copied[which])
        began = time.perf_counter()
        packs = self._buffers[which].view(self._format.dtype).reshape(self._rows, self._format.stride)
        self._host.gather(self._filed, slots, packs[: len(slots), : self._format.dim])
        return time.perf_counter() - began

    def finish(self) -> tuple[TieredRows, float]:
        """Copy the rows to the GPU; return a table of them for later launches, and the seconds of reading."""
        assert self._arrived is not None
        seconds, row_bytes, kept = 0.0, self._format.row_bytes, self._arrived.tiers[0].kept
        assert kept is not None
        self._copies.after(self._used)
        for first in range(0, len(self._slots), self._rows):
            seconds += self._reading.popleft().result()
            which, nbytes = (
                first // self._rows % BUFFERS,
                min(self._rows, len(self._slots) - first) * row_bytes,
            )
            begin = first * row_bytes
            self._copies.upload(self._buffers[which][:nbytes], kept.buffer[begin : begin + nbytes])
            self._copied[which] = self._copies.mark()
            if (later := first + BUFFERS * self._rows) < len(self._slots):
                self._reading.append(self._thread.submit(self._read, later))
        self._copies.before(self._copied[which])
        return self._arrived, seconds

    def used(self) -> None:
        """Note that the launches so far read the rows, which are kept until these have ended."""
        self._used = self._copies.launched()
