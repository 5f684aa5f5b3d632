"""Structs that kernels read, as NumPy types (cuda/include/mgg/layout.h declares the same fields); layout of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


def _struct(**fields: str) -> np.dtype:
    return np.dtype(list(fields.items()))


CHUNK = _struct(kind="<i4", pe="<i4", first_row="<i8", rows="<i8", first_segment="<i8", segments="<i8")
OWNED, DIRECT, HALO, STREAMED = 0, 1, 2, 3  # Chunk.kind
SEGMENT = _struct(first_edge="<i8", destination="<i4", count="<i4", chunk="<i4", flags="<i4")
# A chunk of a store that streams past.
STEP = _struct(first_row="<i8", rows="<i8", slot="<i4", loads="<i4")
# Messages of a halo that GPUs push and receive (cuda/gpu/arguments.h, cuda/gpu/halo_plan.h).
PUSH = _struct(first="<i8", rows="<i8", place="<i8", box="<i8", pe="<i4", signal="<i4")
ARRIVAL = _struct(first="<i8", rows="<i8", signal="<i4", padding="<i4")

# A tier of a table in a GPU's memory (cuda/gpu/arguments.h).
TIER = _struct(row_bytes="<i8", mine="<u8", first="<i8", count="<i8", unit="<i8")

ROW_ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class RowFormat:
    """Layout of rows in memory: ``dim`` values of ``dtype``, ``stride`` values apart (padded to 16 bytes)."""

    dtype: np.dtype
    dim: int

    @cached_property
    def stride(self) -> int:
        """Number of values from one row to the next."""
        size = self.dtype.itemsize
        return -(-self.dim * size // ROW_ALIGNMENT) * ROW_ALIGNMENT // size

    @cached_property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.stride * self.dtype.itemsize

    @cached_property
    def type_name(self) -> str:
        """Name of the dtype, which NumPy takes a microsecond to find."""
        return self.dtype.name
