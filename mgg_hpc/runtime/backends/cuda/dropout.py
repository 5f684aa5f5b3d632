"""Dropout by the GPU's kernels (cuda/gpu/rows/dropout.cuh): the same draws as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....plan import cuda_grid
from ....plan.layout import RowFormat
from ..arguments import RngKey
from .arrays import checked_name, flat, rows_of
from .context import DeviceContext
from .device_arrays import DeviceArrays

CSR_LANES = 8  # dropout_csr_lanes


def rows(backend: DeviceContext, x: Any, out: Any, ids: Any, key: RngKey) -> None:
    memory = backend.arrays
    dtype, shape, _ = memory.kind(out)
    run = getattr(backend.native, f"dropout_{checked_name(dtype)}")
    places = [*rows_of(memory, "x", x, dtype, shape), *rows_of(memory, "out", out, dtype, shape)]
    lanes, _ = cuda_grid.shape(RowFormat(np.dtype(dtype), shape[1]))
    grid = backend.spread(lanes, shape[0])
    run(
        *places,
        flat(memory, "ids", ids, shape[0], "int64"),
        *shape,
        native_key(memory, backend.native, key),
        grid,
    )


def values(backend: DeviceContext, csr: tuple[Any, Any], given: Any, out: Any, ids: Any, key: RngKey) -> None:
    """Apply dropout to the stored values of a CSR matrix, see Backend.dropout."""
    memory, (indptr, indices) = backend.arrays, csr
    (count,), (stored,) = memory.kind(ids)[1], memory.kind(given)[1]
    backend.native.dropout_csr(
        flat(memory, "indptr", indptr, count + 1, "int64"),
        flat(memory, "indices", indices, stored, "int32"),
        flat(memory, "values", given, stored),
        flat(memory, "out", out, stored),
        flat(memory, "ids", ids, count, "int64"),
        count,
        native_key(memory, backend.native, key),
        backend.spread(CSR_LANES, count),
    )


def native_key(memory: DeviceArrays, native: Any, key: RngKey) -> Any:
    """Return an RngKey as the native module takes it."""
    epoch_at = flat(memory, "epoch_at", key.epoch_at, 1, "int32")
    return native.RngKey(key.p, key.seed, key.epoch, key.stream, epoch_at)
