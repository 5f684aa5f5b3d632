"""Sparse input features: multiplied as they are stored, by the same kernel that sums neighbours.

X W^T is an aggregation: row v sums the rows of W^T that its stored columns name, times their values. The gradient of
W^T is X^T G, the same with the transposed matrix.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan import workload
from ..plan.workload import Plan
from ..runtime.backends.base import Backend, Draw, Epilogue, Rows
from .workspace import Workspace, row_format


class _Pattern:
    """Where the stored values are, with the plans and storage that all copies of the features share."""

    def __init__(
        self,
        backend: Backend,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        columns: int,
        dtype: torch.dtype,
    ) -> None:
        self.backend, self.indptr, self.indices, self.dtype = backend, indptr, indices, dtype
        self.shape = (len(indptr) - 1, columns)
        self.plan = workload.rectangular(backend.rank, indptr, indices, columns, backend.geometry.ps)
        self.workspace = Workspace(backend)
        self._rows: dict[tuple[int, int], Rows] = {}

    @cached_property
    def transposed(self) -> tuple[Plan, NDArray[np.int64]]:
        """The plan of the transposed matrix, and for each of its values the place in the original."""
        rows, columns = self.shape
        order = np.argsort(self.indices, kind="stable")
        indptr = workload.prefix_sum(np.bincount(self.indices, minlength=columns))
        row_of = np.repeat(np.arange(rows, dtype=np.int32), np.diff(self.indptr))
        ps = self.backend.geometry.ps
        return workload.rectangular(self.backend.rank, indptr, row_of[order], rows, ps), order

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern and both plans."""
        one_way = self.indices.nbytes + self.plan.nbytes
        return 2 * one_way + 8 * len(self.indices) + self.indptr.nbytes

    def filled(self, matrix: Tensor) -> Rows:
        """Private rows that hold ``matrix``, reused from call to call."""
        count, dim = matrix.shape
        if (count, dim) not in self._rows:
            counts = np.zeros(self.backend.size, np.int64)
            counts[self.backend.rank] = count
            self._rows[count, dim] = self.backend.rows(counts, row_format(dim, self.dtype), symmetric=False)
        rows = self._rows[count, dim]
        torch.from_numpy(rows.local).copy_(matrix)
        return rows


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
        self.values = values
        self.dtype = torch.from_numpy(values[:0]).dtype
        self._pattern = _Pattern(backend, indptr, indices, columns, self.dtype)
        self.shape = self._pattern.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix, its plans, and the copies that training makes of its values."""
        return self._pattern.nbytes + 3 * self.values.nbytes

    def with_values(self, values: NDArray[Any]) -> SparseFeatures:
        """The same pattern with other values; plans and storage are shared."""
        other = object.__new__(SparseFeatures)
        other.__dict__.update(self.__dict__)
        other.values = values
        return other

    def dropped(self, ids: NDArray[np.int64], draw: Draw) -> SparseFeatures:
        """Dropout on the stored values; the zeros between them stay zeros. ids: int64 [n], original node ids."""
        pattern, out = self._pattern, np.empty_like(self.values)
        pattern.backend.dropout_csr(pattern.indptr, pattern.indices, self.values, out, ids, draw)
        return self.with_values(out)

    def times_transposed(self, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """out [n, O] = scale * (X @ weight^T) for weight [O, F]; ``out`` is padded."""
        pattern = self._pattern
        source = pattern.filled(weight.detach().t())
        epilogue = Epilogue(scale=None if scale is None else scale.numpy())
        pattern.backend.aggregate(
            pattern.plan, "mul", "sum", source, out.numpy(), edge=self.values, epilogue=epilogue
        )

    def gradient(self, rows: Tensor) -> Tensor:
        """rows^T @ X, [O, F], for rows [n, O]: the gradient of ``weight`` in X @ weight^T."""
        pattern = self._pattern
        plan, order = pattern.transposed
        out = pattern.workspace.rows(self.shape[1], rows.shape[1], self.dtype)
        source = pattern.filled(rows.detach())
        pattern.backend.aggregate(plan, "mul", "sum", source, out.numpy(), edge=self.values[order])
        return out.t()
