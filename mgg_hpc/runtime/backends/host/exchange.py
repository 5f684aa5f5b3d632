"""Halo exchanges of CPUs: the native object, and the symmetric memory that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....plan.layout import RowFormat
from ....plan.workload import HaloLists
from ..arguments import Rows
from .components import HostMemory


@dataclass(frozen=True)
class Exchange:
    """The native halo exchange of what lists say, and the symmetric memory that it uses."""

    native: Any
    staging: Rows
    signals: Rows


def nbytes(memory: HostMemory, lists: HaloLists, widest: RowFormat) -> int:
    """Return the symmetric memory that `make_exchange` allocates, in bytes."""
    signals = memory.native.signal_count(lists.rounds, memory.size)
    return 2 * lists.capacity * widest.row_bytes + 16 * -(-signals // 2)


def make_exchange(memory: HostMemory, lists: HaloLists, widest: RowFormat) -> Exchange:
    """Return an exchange of rows up to this format. Collective."""
    everywhere = np.full(memory.size, lists.capacity, dtype=np.int64)
    # Two stagings, used in turn; signals are rows of 16 bytes, two to a row.
    staging = memory.symmetric(2 * everywhere, widest)
    words = memory.native.signal_count(lists.rounds, memory.size)
    signals = memory.symmetric(np.full(memory.size, -(-words // 2)), RowFormat(np.dtype(np.uint64), 2))
    native = memory.native.HaloExchange(
        memory.rank,
        memory.size,
        lists.rounds,
        lists.send_rows,
        lists.send_counts.reshape(-1),
        lists.send_places.reshape(-1),
        lists.receive_counts.reshape(-1),
        int(staging.addresses[memory.rank]),
        lists.capacity * widest.row_bytes,
        int(signals.addresses[memory.rank]),
        memory.transport_address,
    )
    return Exchange(native, staging, signals)
