"""The native loader of a pass over a store's rows on CPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....plan.grid import Pass
from ....plan.layout import STEP
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Place, Store
from ..arguments import ChunkRows
from .components import HostMemory


def stream_rows(
    memory: HostMemory, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool
) -> ChunkRows:
    """Return the rows of a store for one pass, as `Backend.stream_rows` does."""
    row_bytes, chunks = store.format.row_bytes, len(order.sources) - 1
    steps = np.zeros(len(order.chunk), STEP)
    steps["first_row"], steps["rows"] = order.sources[order.chunk], np.diff(order.sources)[order.chunk]
    if buffer is None:  # the store's memory has the slots, a chunk each
        if store.place.file >= 0 or store.place.row_bytes != row_bytes:
            raise ValueError("rows are read in place from memory in which they lie as kernels read them")
        if (order.sources[:-1] != np.arange(chunks) * order.capacity).any():
            raise ValueError("rows are read in place in chunks of one size")
        slots = (store.place.address, order.capacity * row_bytes, chunks)
        steps["slot"], steps["loads"], chain = order.chunk, True, None
    else:
        slots = (buffer.address, buffer.slot_bytes(order, store.format), order.slots)
        steps["slot"], steps["loads"], chain = order.slot, order.loads, buffer.links(len(steps))
    stream = memory.native.ChunkStream(
        steps.view(np.uint8),
        np.diff(order.calls),
        *slots,
        row_bytes=row_bytes,
        source=_source(memory.native, store.place, store.count),
        ahead=ahead,
        chain=chain,
    )
    nowhere, nothing = np.zeros(memory.size, np.uint64), np.zeros(memory.size, np.int64)
    empty = np.zeros(0, np.uint8)
    return ChunkRows(store.format, nowhere, nothing, empty, memory.rank, False, stream, (store, buffer))


def _source(native: Any, place: Place, count: int) -> Any:
    """Return the native object that reads a store's ``count`` rows from memory or a file."""
    if place.file < 0:
        return native.memory_source(place.address, count, place.row_bytes, place.pace)
    return native.file_source(
        place.file, place.offset, count, place.row_bytes, place.direct, place.name, place.pace
    )
