"""Dense input features in blocks: those that stay in a host's memory because its device has no room for them, and on a
host itself those of which there is to be no second copy under dropout.

Layers use them as they use sparse ones (features.py): each product, forward and backward, goes over all rows once, in
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
LEAST_BYTES = 32 << 20  # of features whose copy is worth a second draw


class HostFeatures:
    """Rows [n, F] of this rank's input features, uninitialised until their ``blocks`` are filled; or `over` a tensor.

    blocks: contiguous tensors [rows, F] in the host's memory, cut by `blocks.lengths`, or `blocks.shares`. on_device:
    whether all of them have room where they are worked on.
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
        """Contiguous rows x [n, F] of a host, not copied; dropout makes a sixteenth of them at a time."""
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
        """Bytes on the device while a product takes place, beside its arguments."""
        largest, wide = self.blocks[0].numel() if self.blocks else 0, accumulator(self.dtype)
        return largest * (2 * self.dtype.itemsize + (wide.itemsize if wide != self.dtype else 0))

    def dropped(self, ids: Any, draw: RngKey) -> HostFeatures:
        """The same rows with dropout, which is made anew wherever they are used. ids: int64 [n], original node ids."""
        other = copy(self)
        other._dropout = (ids, draw)
        return other

    def times_transposed(self, weight: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
        """out [n, O] = scale * (X @ weight^T) for weight [O, F]."""
        columns = weight.detach().to(self.dtype).t()
        for rows, x in self._blocks():
            torch.mm(x, columns, out=out[rows])
        if scale is not None:
            out.mul_(scale[:, None])

    def written(self, out: Tensor) -> Tensor:
        """Write the rows into ``out`` [n, F] and return it."""
        made_there = self._dropout is not None and self._backend.capabilities.device == "cpu"
        for rows, x in self._blocks(out if made_there else None):
            if not made_there:
                out[rows].copy_(x)
        return out

    def gradient(self, rows: Tensor) -> Tensor:
        """rows^T @ X, [O, F], for rows [n, O]: the gradient of ``weight`` in X @ weight^T; float32 for half rows."""
        wide = accumulator(self.dtype)
        total = torch.zeros(
            rows.shape[1], self.shape[1], dtype=wide, device=self._backend.capabilities.device
        )
        for of, x in self._blocks():
            total.addmm_(rows.detach()[of].to(wide).t(), x.to(wide))
        return total

    def _blocks(self, into: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Which rows they are, and the rows on the device after dropout, block by block.

        into: rows [n, F] for those that dropout makes, on a host; else each block takes the place of the last one.
        """
        first, in_place = (
            0,
            self._backend.capabilities.device != "cpu" or not self._dropout or not self.blocks,
        )
        room = torch.empty_like(self.blocks[0]) if into is None and not in_place else None
        for x in blocks.on_device(self.blocks, self._backend.capabilities.device):
            rows = slice(first, first + len(x))
            kept = into[rows] if into is not None else room[: len(x)] if room is not None else x
            yield rows, self._after_dropout(x, rows, x if in_place else kept)
            first = rows.stop

    def _after_dropout(self, x: Tensor, rows: slice, out: Tensor) -> Tensor:
        if self._dropout is None:
            return x
        ids, draw = self._dropout
        with span("dropout"):
            self._backend.dropout(as_array(x), as_array(out), ids[rows], draw)
        return out


def drops_in_blocks(x: Input) -> bool:
    """Return whether dropout of these features should be made in blocks, twice, rather than as a copy of all."""
    if not isinstance(x, Tensor) or x.device.type != "cpu":
        return False
    return not x.requires_grad and x.nbytes >= LEAST_BYTES


Input = Tensor | SparseFeatures | HostFeatures  # of a model; only a tensor can be summed as it is
