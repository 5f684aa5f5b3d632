"""Rows by number from all ranks of a GPU's backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....plan import cuda_grid
from .....plan.layout import ROW_ALIGNMENT, RowFormat
from ...arguments import Rows
from ..arrays import flat, padded_rows
from ..context import DeviceContext

MOST_TABLES = 64
STAGED_BYTES = 4 << 20  # of symmetric memory (heap.SMALL has them), where rows arrive that no pointer reaches


class Gathers:
    """The tables of gathers in device memory, and rows on their way, kept from call to call."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._made: dict[tuple[bytes, bytes, int], Any] = {}
        self._staging: Rows | None = None

    def anywhere(
        self, backend: DeviceContext, table: Rows, bounds: NDArray[np.int64], ids: Any, out: Any
    ) -> None:
        """Do what `rows` does for ``out`` in any memory of the GPU.

        Where no pointer reaches some rows, the first call is collective.
        """
        reached = ((table.addresses != 0) | (table.counts == 0)).all()
        if reached or not backend.has_gets:
            self.rows(backend, table, bounds, ids, out)
            return
        held = self._staged(backend, table.format)
        for first in range(0, len(ids), len(held)):
            part = ids[first : first + len(held)]
            self.rows(backend, table, bounds, part, held[: len(part)])
            out[first : first + len(part)] = held[: len(part)]

    def _staged(self, backend: DeviceContext, format: RowFormat) -> Any:
        """Return symmetric rows [n, dim] of this format, as many as there is room for. Collective the first time."""
        if self._staging is None:
            packs = RowFormat(np.dtype(np.uint8), ROW_ALIGNMENT)
            self._staging = backend.symmetric(STAGED_BYTES // ROW_ALIGNMENT, packs)
        count = np.full(backend.size, STAGED_BYTES // format.row_bytes)
        return replace(self._staging, format=format, counts=count).local

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
        lanes, _ = cuda_grid.shape(table.format)
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
