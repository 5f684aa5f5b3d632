"""Rows of sparse features by number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.native import load


def take_csr(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    values: NDArray[np.floating],
    rows: NDArray[np.int64],
    *,
    threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.floating]]:
    """Return rows of a CSR matrix, in the order in which they are named; a row may be named again.

    indptr: int64 [N + 1]. indices: int32 [nnz]. values: float32 or float64 [nnz]. rows: int64 [n]. The result has the
    same form, of n rows. threads: that share a large copy. Raises ValueError for a row that is not there.
    """
    native: Any = load()
    out_indptr = np.empty(len(rows) + 1, np.int64)
    native.csr_offsets(indptr, len(indices), rows, out_indptr)
    out_indices = np.empty(int(out_indptr[-1]), np.int32)
    out_values = np.empty(len(out_indices), values.dtype)
    copy = getattr(native, f"gather_csr_{values.dtype.name}")
    copy(indptr, indices, values, rows, out_indptr, out_indices, out_values, threads)
    return out_indptr, out_indices, out_values
