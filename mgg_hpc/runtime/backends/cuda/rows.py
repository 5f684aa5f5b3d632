"""Gathers of rows from all ranks, and dropout with the same draws as on the host (kernels: cuda/gpu/rows)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan import cuda_grid
from ....plan.layout import ROW_ALIGNMENT, RowFormat
from ..arguments import RngKey, Rows
from .arrays import checked_name, flat, padded_rows, rows_of
from .context import DeviceContext
from .device_arrays import DeviceArrays

MOST_TABLES = 64
STAGED_BYTES = (
    4 << 20
)  # of symmetric memory (nvshmem.SMALL includes them), where rows that no pointer reaches arrive
CSR_LANES = 8  # dropout_csr_lanes


class Gathers:
    """Gathers of one rank, and their tables in device memory, which are kept from call to call."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._tables: dict[tuple[bytes, bytes, int], Any] = {}
        self._staging: Rows | None = None

    def anywhere(
        self, context: DeviceContext, table: Rows, bounds: NDArray[np.int64], ids: Any, out: Any
    ) -> None:
        """Gather as `rows` does into ``out`` in any memory of the GPU.

        Where no pointer reaches some rows, the first call is collective.
        """
        if not context.has_gets or not unreached(table).any():
            self.rows(context, table, bounds, ids, out)
            return
        held = self._staged(context, table.format)
        for first in range(0, len(ids), len(held)):
            part = ids[first : first + len(held)]
            self.rows(context, table, bounds, part, held[: len(part)])
            out[first : first + len(part)] = held[: len(part)]

    def _staged(self, context: DeviceContext, format: RowFormat) -> Any:
        """Return symmetric rows [n, dim] of this format, as many as there is room for. Collective the first time."""
        if self._staging is None:
            packs = RowFormat(np.dtype(np.uint8), ROW_ALIGNMENT)
            self._staging = context.symmetric(STAGED_BYTES // ROW_ALIGNMENT, packs)
        count = np.full(context.size, STAGED_BYTES // format.row_bytes)
        return replace(self._staging, format=format, counts=count).local

    def rows(
        self, context: DeviceContext, table: Rows, bounds: NDArray[np.int64], ids: Any, out: Any
    ) -> None:
        """Set out[i] = row ids[i] of all ranks' rows, where rank p's are numbered bounds[p] .. bounds[p + 1] - 1.

        Args:
            ids: int64 [n], not checked, since that would wait for the GPU.
            out: [n, dim], padded rows of the table's dtype, on a symmetric allocation where no pointer reaches some
                rank's rows.
        """
        memory, count = context.arrays, len(ids)
        ids_at = flat(memory, "ids", ids, count, "int64")
        context.check_reached("gather", unreached(table))
        lanes, _ = cuda_grid.shape(table.format)
        out_at = padded_rows(memory, "out", out, count, table.format)
        self._table(table, bounds, context.rank).rows(ids_at, count, out_at, context.spread(lanes, count))

    def _table(self, table: Rows, bounds: NDArray[np.int64], rank: int) -> Any:
        row_bytes, own = table.format.row_bytes, int(table.addresses[rank])
        key = (bounds.tobytes(), table.addresses.tobytes(), row_bytes)
        if key not in self._tables:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[key] = self._native.Gathers(bounds, table.addresses, own, row_bytes)
        return self._tables[key]


def unreached(rows: Rows) -> NDArray[np.bool_]:
    """Return which ranks have rows that no pointer reaches, [P]."""
    return (rows.addresses == 0) & (rows.counts > 0)


def drop_rows(context: DeviceContext, x: Any, out: Any, ids: Any, key: RngKey) -> None:
    """Apply dropout to dense rows; see `Backend.dropout`."""
    memory = context.arrays
    dtype, shape, _ = memory.kind(out)
    lanes, _ = cuda_grid.shape(RowFormat(np.dtype(dtype), shape[1]))
    getattr(context.native, f"dropout_{checked_name(dtype)}")(
        *rows_of(memory, "x", x, dtype, shape),
        *rows_of(memory, "out", out, dtype, shape),
        flat(memory, "ids", ids, shape[0], "int64"),
        *shape,
        native_key(memory, context.native, key),
        context.spread(lanes, shape[0]),
    )


def drop_values(
    context: DeviceContext, csr: tuple[Any, Any], values: Any, out: Any, ids: Any, key: RngKey
) -> None:
    """Apply dropout to the stored values of a CSR matrix; see `Backend.dropout`."""
    memory, (indptr, indices) = context.arrays, csr
    (count,), (stored,) = memory.kind(ids)[1], memory.kind(values)[1]
    context.native.dropout_csr(
        flat(memory, "indptr", indptr, count + 1, "int64"),
        flat(memory, "indices", indices, stored, "int32"),
        flat(memory, "values", values, stored),
        flat(memory, "out", out, stored),
        flat(memory, "ids", ids, count, "int64"),
        count,
        native_key(memory, context.native, key),
        context.spread(CSR_LANES, count),
    )


def native_key(memory: DeviceArrays, native: Any, key: RngKey) -> Any:
    """Return an RngKey as native calls take it."""
    epoch_at = flat(memory, "epoch_at", key.epoch_at, 1, "int32")
    return native.RngKey(key.p, key.seed, key.epoch, key.stream, epoch_at)
