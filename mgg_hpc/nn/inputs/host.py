"""Dense input features in blocks: features that stay in the host's memory because the GPU has no room for them, and on
CPUs features that are dropped out without a second copy.

Layers use them as they use sparse ones (sparse.py): each product, forward and backward, goes over all rows once, in
blocks that arrive on the device one after another. Dropout is applied to a block there, by the same draws each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ...runtime.backends.base import Backend
from ..spans import span
from ..workspace import accumulator, as_array
from . import blocks
from .sparse import SparseFeatures

BLOCKS = 16
LEAST_BYTES = 32 << 20  # least size of features for which a second draw costs less than a copy


class HostFeatures:
    """Rows [n, F] of this rank's input features, uninitialised until their ``blocks`` are filled; or `over` a tensor.

    blocks: contiguous tensors [rows, F] in the host's memory, cut by `blocks.lengths` or `blocks.shares`. on_device:
    whether the device has room for all of them.
    """

    def __init__(self, backend: Backend, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (rows, columns), dtype
        self.blocks = [
            blocks.on_host(count, columns, dtype) for count in blocks.lengths(rows, columns * dtype.itemsize)
        ]
        self._backend = backend
        self._dropout: tuple[Any, RngKey] | None = None
        self.on_device = False

    @classmethod
    def over(cls, backend: Backend, x: Tensor) -> HostFeatures:
        """Return features over contiguous host rows x [n, F], not copied; dropout makes 1/16 of them at a time."""
        made = object.__new__(cls)
        made.shape, made.dtype = (len(x), x.shape[1]), x.dtype
        made.blocks = list(x.split(blocks.shares(len(x), BLOCKS)))
        made._backend, made._dropout, made.on_device = backend, None, True
        return made

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def device_nbytes(self) -> int:
        """Bytes on the device during a product, beside its arguments."""
        largest, wide = self.blocks[0].numel() if self.blocks else 0, accumulator(self.dtype)
        return largest * (2 * self.dtype.itemsize + (wide.itemsize if wide != self.dtype else 0))

    def dropped(self, ids: Any, key: RngKey) -> HostFeatures:
        """Return the rows with dropout, drawn again at each use. ids: int64 [n], original node ids."""
        other = copy(self)
        other._dropout = (ids, key)
        return other

    def times_transposed(self, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """Compute out [n, O] = scale * (X @ weight^T) for weight [O, F]."""
        columns = weight.detach().to(self.dtype).t()
        for rows, x in self._blocks():
            torch.mm(x, columns, out=out[rows])
        if scale is not None:
            out.mul_(scale[:, None])

    def written(self, out: Tensor) -> Tensor:
        """Write the rows into ``out`` [n, F] and return it."""
        direct = self._dropout is not None and self._backend.capabilities.device == "cpu"
        for rows, x in self._blocks(out if direct else None):
            if not direct:
                out[rows].copy_(x)
        return out

    def gradient(self, rows: Tensor) -> Tensor:
        """Return rows^T @ X, [O, F], for rows [n, O], the gradient of W in X @ W^T; float32 for half rows."""
        wide = accumulator(self.dtype)
        total = torch.zeros(
            rows.shape[1], self.shape[1], dtype=wide, device=self._backend.capabilities.device
        )
        for of, x in self._blocks():
            total.addmm_(rows.detach()[of].to(wide).t(), x.to(wide))
        return total

    def _blocks(self, into: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield the range of each block's rows, and the rows on the device after dropout.

        into: rows [n, F] on a host for dropped rows; else each block overwrites the one before.
        """
        first, in_place = (
            0,
            self._backend.capabilities.device != "cpu" or not self._dropout or not self.blocks,
        )
        room = torch.empty_like(self.blocks[0]) if into is None and not in_place else None
        for x in blocks.on_device(self.blocks, self._backend.capabilities.device):
            rows = slice(first, first + len(x))
            kept = into[rows] if into is not None else room[: len(x)] if room is not None else x
            out = x if in_place else kept
            if self._dropout is not None:
                ids, key = self._dropout
                with span("dropout"):
                    self._backend.dropout(as_array(x), as_array(out), ids[rows], key)
            yield rows, out
            first = rows.stop


def drops_in_blocks(x: Input) -> bool:
    """Return whether dropout of these features should be drawn in blocks, twice, instead of copying all of them."""
    if not isinstance(x, Tensor) or x.device.type != "cpu":
        return False
    return not x.requires_grad and x.nbytes >= LEAST_BYTES


Input = Tensor | SparseFeatures | HostFeatures  # of a model; only a tensor can be aggregated directly
