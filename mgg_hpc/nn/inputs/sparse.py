"""Sparse input features, multiplied as they are stored by the kernel that also sums neighbours.

X W^T is an aggregation: row v sums the rows of W^T at its stored columns, times the stored values. The gradient of W^T
is X^T G, the same with the transposed matrix.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plan import workload
from ...plan.blocks import block_plans
from ...plan.workload import Plan
from ...runtime.backends.arguments import Epilogue, RngKey, Rows
from ...runtime.backends.base import Backend
from ..workspace import Workspace, as_array, as_tensor, row_format


class _Pattern:
    """The stored positions of a CSR matrix; its plans and buffers are shared by all copies of the features."""

    def __init__(
        self,
        backend: Backend,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        columns: int,
        dtype: torch.dtype,
        workspace: Workspace,
    ) -> None:
        self.backend, self.indptr, self.indices, self.dtype = backend, indptr, indices, dtype
        self.shape, self.rank = (len(indptr) - 1, columns), backend.collectives.rank
        self.plan = workload.rectangular(self.rank, indptr, indices, columns)
        self.workspace = workspace
        self._rows: dict[tuple[int, int], Rows] = {}
        self._heads: dict[int, _Pattern] = {}

    def head(self, count: int) -> _Pattern:
        """Return the pattern of the first rows."""
        if count not in self._heads:
            indptr = self.indptr[: count + 1]
            indices = self.indices[: int(indptr[-1])]
            self._heads[count] = _Pattern(
                self.backend, indptr, indices, self.shape[1], self.dtype, self.workspace
            )
        return self._heads[count]

    @cached_property
    def csr(self) -> tuple[Any, Any]:
        """indptr and indices as arrays of the backend."""
        device = self.backend.capabilities.device
        offsets, columns = (torch.from_numpy(array).to(device) for array in (self.indptr, self.indices))
        return as_array(offsets), as_array(columns)

    @cached_property
    def transposed(self) -> tuple[Plan, Tensor]:
        """Plan of the transposed matrix, and the position of each of its values among the stored ones."""
        plans = block_plans(self.rank, self.indptr, self.indices, self.shape[1])
        return plans.backward, torch.from_numpy(plans.order).to(self.backend.capabilities.device)

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern and both plans."""
        one_way = self.indices.nbytes + self.plan.nbytes
        return 2 * one_way + 8 * len(self.indices) + self.indptr.nbytes

    def filled(self, matrix: Tensor) -> Rows:
        """Return private rows that hold ``matrix``; the next call for a matrix of this shape overwrites them."""
        count, dim = matrix.shape
        if (count, dim) not in self._rows:
            counts = np.zeros(self.backend.collectives.size, np.int64)
            counts[self.rank] = count
            self._rows[count, dim] = self.backend.rows(counts, row_format(dim, self.dtype), symmetric=False)
        rows = self._rows[count, dim]
        as_tensor(rows.local).copy_(matrix)
        return rows


class SparseFeatures:
    """A CSR matrix [n, F] of this rank's input features.

    indptr: int64 [n + 1]. indices: int32 [nnz], columns. values: [nnz] of the parameters' dtype, on the backend's
    device. dtype: of rows to multiply with and of results. [default: the values'] workspace: memory of gradients.
    [default: its own] on_device: whether the device has room for dense rows.
    """

    on_device = False

    def __init__(
        self,
        backend: Backend,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: Tensor,
        columns: int,
        dtype: torch.dtype | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self.values, self.dtype = values, dtype or values.dtype
        self._pattern = _Pattern(
            backend, indptr, indices, columns, self.dtype, workspace or Workspace(backend)
        )
        self.shape = self._pattern.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix, its plans, and the copies that training makes of its values."""
        return self._pattern.nbytes + 3 * self.values.nbytes

    @property
    def pattern(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """indptr and indices."""
        return self._pattern.indptr, self._pattern.indices

    def head(self, count: int) -> SparseFeatures:
        """Return the first rows."""
        other = copy(self)
        other._pattern = self._pattern.head(count)
        other.values, other.shape = self.values[: len(other._pattern.indices)], other._pattern.shape
        return other

    def position(self, number: int) -> tuple[int, int]:
        """Return row and column of a stored value."""
        indptr, indices = self.pattern
        return int(np.searchsorted(indptr, number, side="right")) - 1, int(indices[number])

    def dropped(self, ids: Any, key: RngKey) -> SparseFeatures:
        """Return the matrix after dropout of its stored values. ids: int64 [n], original node ids."""
        other, out = copy(self), torch.empty_like(self.values)
        csr = self._pattern.csr
        self._pattern.backend.dropout(as_array(self.values), as_array(out), ids, key, csr=csr)
        other.values = out
        return other

    def times_transposed(self, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """Compute out [n, O] = scale * (X @ weight^T) for weight [O, F]; ``out`` has padded rows."""
        epilogue = Epilogue(scale=as_array(scale))
        self._aggregate(self._pattern.plan, weight.detach().t(), out, self.values, epilogue)

    def written(self, out: Tensor) -> Tensor:
        """Write the matrix into ``out`` [n, F] and return it; values at the same position are added."""
        pattern, device = self._pattern, out.device
        counts = torch.from_numpy(np.diff(pattern.indptr)).to(device)
        row_of = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        columns = torch.from_numpy(pattern.indices).to(device).long()
        return out.zero_().index_put_((row_of, columns), self.values.to(out.dtype), accumulate=True)

    def gradient(self, rows: Tensor) -> Tensor:
        """Return rows^T @ X, [O, F], for rows [n, O]: the gradient of ``weight`` in X @ weight^T."""
        plan, order = self._pattern.transposed
        out = self._pattern.workspace.rows(self.shape[1], rows.shape[1], self.dtype)
        self._aggregate(plan, rows.detach(), out, self.values[order], None)
        return out.t()

    def _aggregate(
        self, plan: Plan, matrix: Tensor, out: Tensor, values: Tensor, epilogue: Epilogue | None
    ) -> None:
        rows, edge = self._pattern.filled(matrix), as_array(values)
        self._pattern.backend.aggregate(plan, "sum", rows, as_array(out), edge=edge, epilogue=epilogue)
