"""Sparse input features: multiplied as they are stored, by the same kernel that sums neighbours.

X W^T is an aggregation: row v sums the rows of W^T that its stored columns name, times their values. The gradient of
W^T is X^T G, the same with the transposed matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan import workload
from ..plan.layout import RowFormat
from ..plan.workload import Plan
from ..runtime.backends.base import Backend, Epilogue, Rows


def padded_rows(count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised rows [count, dim], padded as kernels store them."""
    return torch.empty(count, row_format(dim, dtype).stride, dtype=dtype)[:, :dim]


def row_format(dim: int, dtype: torch.dtype) -> RowFormat:
    """The format of rows of ``dim`` values of a torch type."""
    return RowFormat(np.dtype(str(dtype).removeprefix("torch.")), dim)


class SparseFeatures:
    """A CSR matrix [n, F] of this rank's input features.

    indptr int64 [n + 1], indices int32 [nnz] (columns), values [nnz] of the model's dtype.
    """

    def __init__(
        self,
        backend: Backend,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: NDArray[Any],
        columns: int,
    ) -> None:
        self._backend = backend
        self._indptr, self._indices, self.values = indptr, indices, values
        self.shape = (len(indptr) - 1, columns)
        self.dtype = torch.from_numpy(values[:0]).dtype
        self._plan = workload.rectangular(backend.rank, indptr, indices, columns, backend.geometry.ps)
        self._transposed: tuple[Plan, NDArray[np.int64]] | None = None
        self._rows: dict[tuple[int, int], Rows] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix and its plans."""
        own = self._indptr.nbytes + self._indices.nbytes + self.values.nbytes + self._plan.nbytes
        return own if self._transposed is None else own + self._transposed[0].nbytes + self._transposed[1].nbytes

    def with_values(self, values: NDArray[Any]) -> SparseFeatures:
        """The same pattern with other values; plans and storage are shared."""
        other = object.__new__(SparseFeatures)
        other.__dict__.update(self.__dict__)
        other.values = values
        return other

    def prepare_gradient(self) -> None:
        """Build the transposed plan, which every epoch's copies then share."""
        if self._transposed is None:
            rows, columns = self.shape
            order = np.argsort(self._indices, kind="stable")
            counts = np.bincount(self._indices, minlength=columns)
            row_of = np.repeat(np.arange(rows, dtype=np.int32), np.diff(self._indptr))
            indptr = workload.prefix_sum(counts)
            ps = self._backend.geometry.ps
            self._transposed = workload.rectangular(self._backend.rank, indptr, row_of[order], rows, ps), order

    def dropped(self, p: float, seed: int, epoch: int, stream: int, ids: NDArray[np.int64]) -> SparseFeatures:
        """Dropout on the stored values; the zeros between them stay zeros."""
        from .. import _host

        out = np.empty_like(self.values)
        _host.dropout_csr(
            self._indptr, self._indices, self.values, out, ids, p, seed, epoch, stream, self._backend.threads
        )
        return self.with_values(out)

    def times_transposed(self, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """out [n, O] = scale * (X @ weight^T) for weight [O, F]; ``out`` is padded."""
        source = self._filled(weight.detach().t())
        epilogue = Epilogue(scale=None if scale is None else scale.numpy())
        self._backend.aggregate(self._plan, "mul", "sum", source, out.numpy(), edge=self.values, epilogue=epilogue)

    def gradient(self, rows: Tensor) -> Tensor:
        """rows^T @ X, [O, F], for rows [n, O]: the gradient of ``weight`` in X @ weight^T."""
        self.prepare_gradient()
        assert self._transposed is not None
        plan, order = self._transposed
        out = padded_rows(self.shape[1], rows.shape[1], self.dtype)
        values = self.values[order]
        self._backend.aggregate(plan, "mul", "sum", self._filled(rows.detach()), out.numpy(), edge=values)
        return out.t()

    def _filled(self, matrix: Tensor) -> Rows:
        """Private rows that hold ``matrix``, reused from call to call."""
        count, dim = matrix.shape
        if (count, dim) not in self._rows:
            counts = np.zeros(self._backend.size, np.int64)
            counts[self._backend.rank] = count
            self._rows[count, dim] = self._backend.rows(counts, row_format(dim, self.dtype), symmetric=False)
        rows = self._rows[count, dim]
        torch.from_numpy(rows.local).copy_(matrix)
        return rows
