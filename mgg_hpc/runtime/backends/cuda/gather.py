"""Rows by number from all ranks of a GPU's backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan import launch
from ..arguments import Rows
from .arrays import flat, padded_rows
from .context import DeviceContext

MOST_TABLES = 64


class Gathers:
    """The tables of gathers in device memory, kept from call to call."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._made: dict[tuple[bytes, bytes, int], Any] = {}

    def rows(
        self, backend: DeviceContext, table: Rows, bounds: NDArray[np.int64], ids: Any, out: Any
    ) -> None:
        """Set out[i] = row ids[i] of all PEs' rows, where PE p's rows are numbered bounds[p] .. bounds[p + 1] - 1.

        ids: int64 [n], not checked, since that would wait for the GPU. out: [n, dim], padded rows of the table's dtype,
        on a symmetric allocation where no pointer reaches some PE's rows.
        """
        memory, shape = backend.arrays, backend.arrays.kind(ids)[1]
        count = shape[0] if shape else 0
        ids_at = flat(memory, "ids", ids, count, "int64")
        unreached = np.flatnonzero((table.addresses == 0) & (table.counts > 0))
        if len(unreached) and not backend.has_gets:
            raise ValueError(
                f"gather: rows of PE {unreached[0]} are not reachable by pointer from PE {backend.rank}, "
                "and NVSHMEM does not run"
            )
        lanes, _ = launch.shape(table.format)
        at = padded_rows(memory, "out", out, count, table.format)
        self._of(table, bounds, backend.rank).rows(ids_at, count, at, backend.spread(lanes, count))

    def _of(self, table: Rows, bounds: NDArray[np.int64], rank: int) -> Any:
        row_bytes, mine = table.format.row_bytes, int(table.addresses[rank])
        key = (bounds.tobytes(), table.addresses.tobytes(), row_bytes)
        if key not in self._made:
            if len(self._made) >= MOST_TABLES:
                self._made.clear()
            self._made[key] = self._native.Gathers(bounds, table.addresses, mine, row_bytes)
        return self._made[key]
