"""The structs that kernels read, as NumPy types: cuda/include/mgg/layout.h declares the same fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHUNK = np.dtype(
    [
        ("kind", "<i4"),
        ("pe", "<i4"),
        ("first_row", "<i8"),
        ("rows", "<i8"),
        ("first_segment", "<i8"),
        ("segments", "<i8"),
    ]
)
SEGMENT = np.dtype(
    [("first_edge", "<i8"), ("destination", "<i4"), ("count", "<i4"), ("chunk", "<i4"), ("flags", "<i4")]
)
OWNED, DIRECT, HALO, STREAMED = 0, 1, 2, 3  # Chunk.kind
# A chunk of a store that streams past (Step).
STEP = np.dtype([("first_row", "<i8"), ("rows", "<i8"), ("slot", "<i4"), ("loads", "<i4")])

# Chunks of a halo that GPUs push and receive (cuda/gpu/arguments.h, cuda/gpu/halo_plan.h).
PUSH = np.dtype(
    [
        ("first", "<i8"),
        ("rows", "<i8"),
        ("place", "<i8"),
        ("box", "<i8"),
        ("pe", "<i4"),
        ("signal", "<i4"),
    ]
)
ARRIVAL = np.dtype([("first", "<i8"), ("rows", "<i8"), ("signal", "<i4"), ("padding", "<i4")])

ROW_ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class RowFormat:
    """How rows lie in memory: ``dim`` values of ``dtype``, ``stride`` values apart (padded to 16 bytes)."""

    dtype: np.dtype
    dim: int

    @property
    def stride(self) -> int:
        """Number of values from one row to the next."""
        size = self.dtype.itemsize
        return -(-self.dim * size // ROW_ALIGNMENT) * ROW_ALIGNMENT // size

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.stride * self.dtype.itemsize
