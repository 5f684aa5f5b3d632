"""torch's product of a sparse CSR matrix, by MKL on CPUs and cuSPARSE on GPUs; int32 indices, as MKL takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import peers

torch.set_num_threads(peers.THREADS)
warnings.filterwarnings("ignore", category=UserWarning)  # sparse CSR counts as beta

ABOUT = f"torch {torch.__version__} (MKL: {'yes' if torch.backends.mkl.is_available() else 'no'})"


def load(file: str) -> torch.Tensor:
    """Return the array of a file where the library computes."""
    return torch.from_numpy(np.load(file)).to(peers.DEVICE)


def operands(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the adjacency as a sparse CSR tensor, where edges without weights have the value 1, and the rows."""
    kind, sources = getattr(torch, dtype), load(indices)
    pointers, values = load(indptr).int(), torch.ones_like(sources) if weight is None else load(weight)
    shape = (len(pointers) - 1,) * 2
    return torch.sparse_csr_tensor(pointers, sources, values.to(kind), shape), load(x).to(kind)


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "torch"."""
    adjacency, rows = operands(**inputs)
    return {"torch": lambda: adjacency @ rows}
