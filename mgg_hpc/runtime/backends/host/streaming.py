"""Rows of a store that stream past on CPUs: the native loader of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....plan.grid import Pass
from ....plan.layout import STEP
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Place, Store
from ..arguments import ChunkRows
from .components import HostMemory


@dataclass(frozen=True)
class _Slots:
    """Memory that chunks lie in: ``count`` slots of ``nbytes`` from an address on. kept: what has to stay with it."""

    address: int
    nbytes: int
    count: int
    kept: tuple[Any, ...]


def stream_rows(
    memory: HostMemory, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool
) -> ChunkRows:
    slots = _in_place(store, order) if buffer is None else _in_buffer(store, order, buffer)
    steps = np.zeros(len(order.chunk), STEP)
    steps["first_row"], steps["rows"] = order.sources[order.chunk], np.diff(order.sources)[order.chunk]
    steps["slot"] = order.chunk if buffer is None else order.slot
    steps["loads"] = buffer is None or order.loads
    stream = memory.native.ChunkStream(
        steps.view(np.uint8),
        np.diff(order.calls),
        slots=slots.address,
        slot_bytes=slots.nbytes,
        slot_count=slots.count,
        row_bytes=store.format.row_bytes,
        source=_source(memory.native, store.place, store.count),
        ahead=ahead,
        chain=None if buffer is None else buffer.links(len(steps)),
    )
    nowhere, nothing = np.zeros(memory.size, np.uint64), np.zeros(memory.size, np.int64)
    empty = np.zeros(0, np.uint8)
    return ChunkRows(store.format, nowhere, nothing, empty, memory.rank, False, stream, slots.kept)


def _in_buffer(store: Store, order: Pass, buffer: ChunkBuffer) -> _Slots:
    """Return the slots of a buffer that a pass over a store takes. Raises InputError where it has too few."""
    return _Slots(buffer.address, buffer.slot_bytes(order, store.format), order.slots, (store, buffer))


def _in_place(store: Store, order: Pass) -> _Slots:
    """Return the store's own memory as slots, a chunk each, which their source finds there already."""
    place, apart, chunks = store.place, store.format.row_bytes, len(order.sources) - 1
    if place.file >= 0 or place.row_bytes != apart:
        raise ValueError("rows are read in place from memory in which they lie as kernels read them")
    if (order.sources[:-1] != np.arange(chunks) * order.capacity).any():
        raise ValueError("rows are read in place in chunks of one size")
    return _Slots(place.address, order.capacity * apart, chunks, (store,))


def _source(native: Any, place: Place, count: int) -> Any:
    """Return the native source of a store's rows."""
    if place.file < 0:
        return native.memory_source(place.address, count, place.row_bytes, place.pace)
    return native.file_source(
        place.file, place.offset, count, place.row_bytes, place.direct, place.name, place.pace
    )
