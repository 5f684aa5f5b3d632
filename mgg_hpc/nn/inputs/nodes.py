"""Inputs for graphs without features: a learned row for each node, or its degree."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.graph import SparseRows
from ...runtime.backends.native import uniform

DEGREE_COLUMNS = 32  # fixed, so that a model fits other graphs too
LEARNED = 0xC000  # first random stream of learned rows, after those of initial weights
IDS_A_STREAM = 1 << 16  # number of node ids whose rows use the same stream


def degree_rows(indptr: NDArray[np.int64]) -> SparseRows:
    """Return the in-degree of each row of a CSR as one of 32 columns: 0 for 0, else 1 + floor(log2(degree))."""
    degree = np.diff(indptr)
    _, exponent = np.frexp(degree.astype(np.float64))  # degree = m 2^exponent with m in [1/2, 1), exactly
    column = np.minimum(exponent, DEGREE_COLUMNS - 1).astype(np.int32)
    rows = len(degree)
    return SparseRows(np.arange(rows + 1), column, np.ones(rows, np.float32), (rows, DEGREE_COLUMNS))


def learned_rows(
    ids: NDArray[np.int64], columns: int, seed: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.nn.Parameter:
    """Return a row [columns] for each of this rank's nodes, to be trained; uniform with variance 1 at first.

    ids: int64 [n], original node ids. A row depends only on the seed and its id, not on the rank that draws it.
    """
    rows = np.empty((len(ids), columns))
    limit, block = np.sqrt(3.0), ids // IDS_A_STREAM
    for number in np.unique(block):
        of, first = block == number, number * IDS_A_STREAM
        drawn = np.empty((int(ids[of].max() - first) + 1, columns))
        uniform(drawn, -limit, limit, seed, LEARNED + int(number))
        rows[of] = drawn[ids[of] - first]
    return torch.nn.Parameter(torch.from_numpy(rows).to(device, dtype))
