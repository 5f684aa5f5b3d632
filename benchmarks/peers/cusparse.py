"""cuSPARSE's product of a CSR matrix and dense rows, by its C interface: CSR_ALG2 on row-major rows, preprocessed.

torch calls the same library, but chooses the algorithm itself and does not preprocess.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import torch as peer_torch

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
NON_TRANSPOSE, INDEX_32I, BASE_ZERO, ORDER_ROW, CSR_ALG2 = 0, 2, 0, 2, 6
Address = ctypes.c_void_p
ABOUT = f"cuSPARSE of CUDA {torch.version.cuda}, CSR_ALG2 on row-major rows, preprocessed; its buffer is kept"


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    if status := getattr(library, name)(*arguments):
        raise RuntimeError(f"{name}: status {status}")


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "cusparse"; its output is allocated once and overwritten, as this package's is."""
    matrix, rows = peer_torch.operands(**inputs)
    out, nodes, kind = torch.zeros_like(rows), len(rows), TYPES[str(rows.dtype).removeprefix("torch.")]
    indptr, indices, values = matrix.crow_indices(), matrix.col_indices().int(), matrix.values()
    integer, long = ctypes.c_int, ctypes.c_int64
    call = partial(_call, ctypes.CDLL("libcusparse.so.12"))  # as this process has loaded it by torch

    def at(array: torch.Tensor) -> Address:
        return Address(array.data_ptr())

    handle, adjacency, x, y = (Address() for _ in range(4))
    call("cusparseCreate", ctypes.byref(handle))
    call("cusparseSetStream", handle, Address(torch.cuda.current_stream().cuda_stream))
    sizes, kinds = (
        map(long, (nodes, nodes, len(indices))),
        map(integer, (INDEX_32I, INDEX_32I, BASE_ZERO, kind)),
    )
    call("cusparseCreateCsr", ctypes.byref(adjacency), *sizes, at(indptr), at(indices), at(values), *kinds)
    for made, array in ((x, rows), (y, out)):
        sizes = map(long, (nodes, rows.shape[1], array.stride(0)))
        order = integer(kind), integer(ORDER_ROW)
        call("cusparseCreateDnMat", ctypes.byref(made), *sizes, at(array), *order)
    one, zero, transpose = ctypes.c_float(1), ctypes.c_float(0), integer(NON_TRANSPOSE)
    operands = (ctypes.byref(one), adjacency, x, ctypes.byref(zero), y)
    fixed = (handle, transpose, transpose, *operands, integer(TYPES["float32"]), integer(CSR_ALG2))
    size = ctypes.c_size_t()
    call("cusparseSpMM_bufferSize", *fixed, ctypes.byref(size))
    buffer = torch.zeros(max(size.value, 16), dtype=torch.uint8, device=rows.device)
    call("cusparseSpMM_preprocess", *fixed, at(buffer))

    def run(kept: Any) -> torch.Tensor:
        call("cusparseSpMM", *fixed, at(buffer))
        return out

    return {"cusparse": partial(run, (indptr, indices, values, rows))}  # calls read these arrays by address
