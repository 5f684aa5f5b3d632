"""SciPy's product of a CSR matrix: one thread, whatever the options say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from scipy import sparse


def set_threads(count: int) -> None:
    """Ignore the number of threads: SciPy's product has one."""


def about() -> str:
    """Return the version and the number of threads."""
    return f"scipy {scipy.__version__} (one thread)"


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str, **_: Any
) -> dict[str, Callable[[], Any]]:
    """Return the run "scipy"."""
    if dtype != "float32":
        raise TypeError("float32 rows only")
    pointers, sources, rows = np.load(indptr).astype(np.int32), np.load(indices), np.load(x)
    values = np.ones(len(sources), rows.dtype) if weight is None else np.load(weight)
    adjacency = sparse.csr_matrix((values, sources, pointers), (len(rows), len(rows)))
    return {"scipy": lambda: adjacency @ rows}
