"""MKL's inspector-executor product (mkl_sparse_s_mm), with its hint and optimisation before the clock starts."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import peers

from .scipy import operands

NON_TRANSPOSE, GENERAL, ROW_MAJOR, INDEX_FROM_0 = 10, 20, 101, 0
CALLS = 1000  # how often the product is said to be taken: often enough that any inspection pays
MKL_INT = ctypes.c_int32


class Description(ctypes.Structure):
    """MKL's ``struct matrix_descr``."""

    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


def _load() -> ctypes.CDLL:
    """Load the library of this environment's wheel, whatever its version suffix."""
    found = sorted((Path(sys.prefix) / "lib").glob("libmkl_rt.so.*"))
    if not found:
        raise ImportError("no libmkl_rt")
    return ctypes.CDLL(str(found[-1]))


_mkl = _load()
_mkl.MKL_Set_Num_Threads(ctypes.c_int(peers.THREADS))

ABOUT = f"mkl {metadata.version('mkl')} (inspector-executor)"


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} returned status {status}")


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "mkl". The output is allocated once and overwritten, as this package's is."""
    pointers, sources, values, rows = operands(**inputs)
    out = np.zeros_like(rows)
    count, dim = rows.shape

    def at(array: np.ndarray, first: int = 0) -> ctypes.c_void_p:
        return ctypes.c_void_p(array[first:].ctypes.data)

    handle, general = ctypes.c_void_p(), Description(GENERAL, 0, 0)
    n, width = MKL_INT(count), MKL_INT(dim)
    arrays = (at(pointers), at(pointers, 1), at(sources), at(values))
    _check(_mkl.mkl_sparse_s_create_csr(ctypes.byref(handle), INDEX_FROM_0, n, n, *arrays), "create_csr")
    hint = (NON_TRANSPOSE, general, ROW_MAJOR, width, MKL_INT(CALLS))
    _check(_mkl.mkl_sparse_set_mm_hint(handle, *hint), "set_mm_hint")
    _check(_mkl.mkl_sparse_optimize(handle), "optimize")
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def product() -> np.ndarray:
        dense = (ROW_MAJOR, at(rows), width, width, zero, at(out), width)
        _check(_mkl.mkl_sparse_s_mm(NON_TRANSPOSE, one, handle, general, *dense), "mm")
        # The handle points into these arrays, and is destroyed with the process.
        assert len(values) == len(sources) and len(pointers) == count + 1
        return out

    return {"mkl": product}
