"""The operands of libraries that take float32 CSR matrices with int32 indices."""

from __future__ import annotations

import numpy as np


def operands(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return indptr int32 [N+1], indices int32 [E], values float32 [E] (1 without weights) and rows float32 [N, F].

    Raises TypeError for rows of another type.
    """
    if dtype != "float32":
        raise TypeError("float32 rows only")
    sources = np.load(indices)
    values = np.ones(len(sources), np.float32) if weight is None else np.load(weight)
    return np.load(indptr).astype(np.int32), sources, values, np.load(x)
