"""Caches of rows that evict while they run, which replay what batches read: LRU and SIEVE."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Cache(Protocol):
    """A cache of so many rows, which is empty at first."""

    def __init__(self, room: int) -> None: ...

    def read(self, rows: NDArray[np.int64]) -> int:
        """Read rows by number, one after the other; return how many of them the cache had."""


class LRU:
    """Evicts the row that was read least recently."""

    def __init__(self, room: int) -> None:
        self._room, self._held = room, OrderedDict[int, None]()

    def read(self, rows: NDArray[np.int64]) -> int:
        held, hits = self._held, 0
        for row in rows.tolist() if self._room else ():
            if row in held:
                held.move_to_end(row)
                hits += 1
                continue
            if len(held) == self._room:
                held.popitem(last=False)
            held[row] = None
        return hits


class Sieve:
    """Evicts the next row of a queue, by age, that was not read since the hand passed it (Zhang et al., NSDI '24)."""

    def __init__(self, room: int) -> None:
        self._room, self._slot = room, dict[int, int]()
        # Slots in a ring by age; the last one stands between the newest and the oldest row.
        self._newer, self._older, self._rows = ([room] * (room + 1) for _ in range(3))
        self._visited, self._hand = bytearray(room + 1), room

    def read(self, rows: NDArray[np.int64]) -> int:
        slots, newer, older, visited = self._slot, self._newer, self._older, self._visited
        end, hits = self._room, 0
        for row in rows.tolist() if end else ():
            slot = slots.get(row)
            if slot is not None:
                visited[slot] = 1
                hits += 1
                continue
            slot = len(slots)
            if slot == end:
                slot = self._hand
                while slot == end or visited[slot]:
                    visited[slot] = 0
                    slot = newer[slot]
                self._hand = newer[slot]
                newer[older[slot]], older[newer[slot]] = newer[slot], older[slot]
                del slots[self._rows[slot]]
            newest = older[end]
            newer[newest], older[slot], newer[slot], older[end] = slot, newest, end, slot
            slots[row], self._rows[slot] = slot, row
        return hits


CACHES: dict[str, type[Cache]] = {"LRU cache": LRU, "SIEVE cache": Sieve}
