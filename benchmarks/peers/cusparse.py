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


def library() -> ctypes.CDLL:
    """Return cuSPARSE as this process has loaded it by torch. Raises OSError if there is none."""
    return ctypes.CDLL("libcusparse.so.12")


class Product:
    """A product out = A x for many x and out of one shape: rows [n, dim], ``stride`` values apart.

    Addresses are of device memory: indptr int32 [n + 1], indices int32 [E], values [E] of the rows' type. ``zeros``
    gives device memory of so many bytes and its address. Raises RuntimeError where a call fails.
    """

    def __init__(
        self,
        nodes: int,
        edges: int,
        matrix: tuple[int, int, int],
        rows: tuple[str, int, int],
        zeros: Any,
        stream: int = 0,
    ) -> None:
        self._library = library()
        self._nodes, self._rows = nodes, rows
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._handle, self._matrix = Address(), Address()
        self._call("cusparseCreate", ctypes.byref(self._handle))
        self._call("cusparseSetStream", self._handle, Address(stream))
        type_ = ctypes.c_int(TYPES[rows[0]])
        sizes = [ctypes.c_int64(size) for size in (nodes, nodes, edges)]
        kinds = [ctypes.c_int(kind) for kind in (INDEX_32I, INDEX_32I, BASE_ZERO)]
        pointers = [Address(address) for address in matrix]
        self._call("cusparseCreateCsr", ctypes.byref(self._matrix), *sizes, *pointers, *kinds, type_)
        self._zeros, self._buffer, self._buffer_at = zeros, None, 0

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def dense(self, address: int) -> Address:
        """Return the descriptor of the rows at an address."""
        dtype, dim, stride = self._rows
        made = Address()
        sizes = [ctypes.c_int64(size) for size in (self._nodes, dim, stride)]
        kinds = ctypes.c_int(TYPES[dtype]), ctypes.c_int(ORDER_ROW)
        self._call("cusparseCreateDnMat", ctypes.byref(made), *sizes, Address(address), *kinds)
        return made

    def prepare(self, x: Address, out: Address) -> None:
        """Find the buffer's size, and let cuSPARSE preprocess the matrix; x and out are descriptors of rows."""
        size = ctypes.c_size_t()
        self._spmm("cusparseSpMM_bufferSize", x, out, ctypes.byref(size))
        self._buffer, self._buffer_at = self._zeros(max(size.value, 16))
        self._spmm("cusparseSpMM_preprocess", x, out, Address(self._buffer_at))

    def run(self, x: Address, out: Address) -> None:
        """Launch the product on the stream."""
        self._spmm("cusparseSpMM", x, out, Address(self._buffer_at))

    def _spmm(self, name: str, x: Address, out: Address, last: Any) -> None:
        operation, single = ctypes.c_int(NON_TRANSPOSE), ctypes.c_int(TYPES["float32"])
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        operands = (one, self._matrix, x, zero, out)
        self._call(name, self._handle, operation, operation, *operands, single, ctypes.c_int(CSR_ALG2), last)


def about() -> str:
    """Return the version, the algorithm, and what is done before the clock starts."""
    return (
        f"cuSPARSE of CUDA {torch.version.cuda}, CSR_ALG2 on row-major rows, preprocessed; its buffer is kept"
    )


def aggregate(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run "cusparse"; its output is allocated once and overwritten, as this package's is."""
    matrix, rows = peer_torch.operands(**inputs)
    out = torch.zeros_like(rows)
    indptr, indices, values = matrix.crow_indices(), matrix.col_indices().int(), matrix.values()

    def zeros(nbytes: int) -> tuple[Any, int]:
        memory = torch.zeros(nbytes, dtype=torch.uint8, device=rows.device)
        return memory, memory.data_ptr()

    addresses = (indptr.data_ptr(), indices.data_ptr(), values.data_ptr())
    shape = (str(rows.dtype).removeprefix("torch."), rows.shape[1], rows.stride(0))
    product = Product(
        len(rows), len(indices), addresses, shape, zeros, torch.cuda.current_stream().cuda_stream
    )
    x, y = product.dense(rows.data_ptr()), product.dense(out.data_ptr())
    product.prepare(x, y)

    def run(kept: Any) -> torch.Tensor:
        product.run(x, y)
        return out

    return {"cusparse": partial(run, (indptr, indices, values, rows))}  # calls read these arrays by address
