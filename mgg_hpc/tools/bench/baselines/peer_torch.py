"""torch's product of a sparse CSR matrix (MKL's, where torch has it), int32 indices as MKL takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def set_threads(count: int) -> None:
    """Set the number of threads of all later runs."""
    torch.set_num_threads(count)


def about() -> str:
    """Return the version, and whether torch has MKL."""
    return f"torch {torch.__version__} (MKL: {'yes' if torch.backends.mkl.is_available() else 'no'})"


def matrix(indptr: str, indices: str, weight: str | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the adjacency as a sparse CSR tensor; edges without weights have the value 1."""
    sources = torch.from_numpy(np.load(indices))
    pointers = torch.from_numpy(np.load(indptr).astype(np.int32))
    values = torch.ones(len(sources)) if weight is None else torch.from_numpy(np.load(weight))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sparse CSR counts as beta
        return torch.sparse_csr_tensor(pointers, sources, values, (len(pointers) - 1,) * 2).to(dtype)


def operands(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the adjacency and the rows, both of ``dtype``."""
    kind = getattr(torch, dtype)
    return matrix(indptr, indices, weight, kind), torch.from_numpy(np.load(x)).to(kind)


def aggregate(ahead: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "torch"."""
    adjacency, rows = operands(**inputs)
    return {"torch": lambda: adjacency @ rows}
