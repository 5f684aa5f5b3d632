"""Dense rows in blocks: on GPUs features that stay in the host's memory because the device has no room for them, on
CPUs features whose dropout is drawn twice instead of kept.

Layers use them as they use sparse features: each product, forward and backward, visits all rows once, in blocks that
arrive on the device one after another. Dropout is applied to a block there, by the same draws each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime.backends.arguments import RngKey
from ...runtime.backends.base import Backend
from ..spans import span
from ..workspace import accumulator, as_array, as_tensor, row_format
from .sparse import SparseFeatures

BLOCKS = 16
BLOCK_BYTES = 32 << 20  # most bytes of a block; torch rounds pinned memory up to powers of two
LEAST_BYTES = 32 << 20  # least size of features for which a second draw of dropout costs less than a copy


def lengths(rows: int, row_bytes: int) -> list[int]:
    """Return the number of rows of each block of at most BLOCK_BYTES (`even_lengths`)."""
    return even_lengths(rows, BLOCK_BYTES // row_bytes)


def even_lengths(rows: int, most: int) -> list[int]:
    """Return the number of rows of each block of at most max(3, most) rows: nearly the same, in descending order.

    No block has a single row, which torch would sum in another order if it is wide, unless that is all there is.
    """
    count = -(-rows // max(3, most))
    return [rows // count + (number < rows % count) for number in range(count)]


def empty_rows(rows: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    """Allocate uninitialised rows; on a host by NumPy, which uses huge pages, unlike torch."""
    if device == "cpu":
        return as_tensor(np.empty((rows, columns), row_format(columns, dtype).dtype))
    return torch.empty(rows, columns, dtype=dtype, device=device)


def on_host(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Allocate uninitialised rows in the host's memory; pinned if there is a GPU, for copies by DMA."""
    if torch.cuda.is_available():
        return torch.empty(rows, columns, dtype=dtype, pin_memory=True)
    return empty_rows(rows, columns, dtype, "cpu")


def on_device(blocks: Sequence[Tensor], device: str) -> Iterator[Tensor]:
    """Yield each of these host tensors, the largest first, on ``device``; a copy is valid until the next iteration.

    Copies go to two buffers in turn: one is filled while the current CUDA stream uses the other.
    """
    if device == "cpu" or not blocks:
        yield from blocks
        return
    buffers = [torch.empty_like(blocks[0], device=device) for _ in range(2)]
    copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    current = torch.cuda.current_stream(device)

    def copy(number: int, stream: torch.cuda.Stream) -> None:
        stream.wait_event(used[number % 2])
        with torch.cuda.stream(stream):
            buffers[number % 2][: len(blocks[number])].copy_(blocks[number], non_blocking=True)
        copied[number % 2].record(stream)

    with copy_stream(device) as stream:
        copy(0, stream)
        for number, block in enumerate(blocks):
            if number + 1 < len(blocks):
                copy(number + 1, stream)
            current.wait_event(copied[number % 2])
            yield buffers[number % 2][: len(block)]
            used[number % 2].record(current)


@contextmanager
def copy_stream(device: str) -> Iterator[torch.cuda.Stream]:
    """Yield a second CUDA stream, ordered after the current stream's earlier work and before its later work.

    So both may use memory that torch allocated for the current stream.
    """
    current, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(current)
    try:
        yield stream
    finally:
        current.wait_stream(stream)


class HostFeatures:
    """Rows [n, F] of this rank's input features, in blocks; uninitialised until the blocks are filled.

    blocks: contiguous tensors [rows, F] in the host's memory, the largest first. on_device: whether the device has
    room for all rows.
    """

    def __init__(self, backend: Backend, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (rows, columns), dtype
        self.blocks = [on_host(count, columns, dtype) for count in lengths(rows, columns * dtype.itemsize)]
        self._backend, self._device = backend, backend.capabilities.device
        self._dropout: tuple[Any, RngKey] | None = None
        self.on_device = False

    @classmethod
    def over(cls, backend: Backend, x: Tensor) -> HostFeatures:
        """Return features over the memory of contiguous host rows x [n, F]; dropout copies 1/16 of them at a time."""
        made = cls(backend, 0, x.shape[1], x.dtype)
        made.shape, made.on_device = (len(x), x.shape[1]), True
        made.blocks = list(x.split(even_lengths(len(x), -(-len(x) // BLOCKS))))
        return made

    @property
    def nbytes(self) -> int:
        """Bytes in the host's memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def device_nbytes(self) -> int:
        """Bytes that a product needs on the device in addition to its arguments."""
        largest, wide = self.blocks[0].numel() if self.blocks else 0, accumulator(self.dtype)
        return largest * (2 * self.dtype.itemsize + (wide.itemsize if wide != self.dtype else 0))

    def dropped(self, ids: Any, key: RngKey) -> HostFeatures:
        """Return the features with dropout, drawn again at each use. ids: int64 [n], original node ids."""
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
        direct = self._dropout is not None and self._device == "cpu"
        for rows, x in self._blocks(out if direct else None):
            if not direct:
                out[rows].copy_(x)
        return out

    def gradient(self, rows: Tensor) -> Tensor:
        """Return rows^T @ X, [O, F], for rows [n, O], the gradient of W in X @ W^T; float32 for half rows."""
        wide = accumulator(self.dtype)
        total = torch.zeros(rows.shape[1], self.shape[1], dtype=wide, device=self._device)
        for block, x in self._blocks():
            total.addmm_(rows.detach()[block].to(wide).t(), x.to(wide))
        return total

    def _blocks(self, into: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield the range of each block's rows, and these rows on the device after dropout.

        into: host rows [n, F] for the rows after dropout. [default: each block overwrites the one before]
        """
        first, on_cpu = 0, self._device == "cpu"
        in_place = not on_cpu or not self._dropout or not self.blocks
        room = torch.empty_like(self.blocks[0]) if into is None and not in_place else None
        for x in on_device(self.blocks, self._device):
            rows, out = slice(first, first + len(x)), x
            if not in_place:
                out = into[rows] if into is not None else room[: len(x)] if room is not None else x
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
