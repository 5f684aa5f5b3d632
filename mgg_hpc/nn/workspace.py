"""Conversions between arrays of a backend and tensors, and memory for activations that is reused between epochs.

Activations are large and live for a part of an epoch. New host memory costs a page fault for every 4 KiB, and malloc
fragments what it keeps between epochs, so buffers of each size are reused. On a GPU torch's allocator does that.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..plan.layout import RowFormat
from ..runtime.backends.base import Backend

ROW = RowFormat(np.dtype(np.float32), 4)  # 16 bytes; the size of every row is a multiple
LEAST_CLASS = 4096  # bytes of the smallest buffers


@functools.lru_cache
def row_format(dim: int, dtype: torch.dtype) -> RowFormat:
    """Return the format of rows of ``dim`` values of a torch type."""
    return RowFormat(np.dtype(str(dtype).removeprefix("torch.")), dim)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which rows are summed, which is also the type of weights, scales and parameters."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def as_tensor(array: Any) -> Tensor:
    """Return a tensor over the memory of a backend's array. (NumPy and torch share bfloat16 by its bits only.)"""
    if isinstance(array, Tensor):
        return array
    if array.dtype.itemsize == 2 and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: Tensor | None) -> Any:
    """Return a backend's array over a tensor's memory: NumPy's on a host, the tensor on a GPU. None stays None."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.is_cuda:
        return tensor
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


class Workspace:
    """Pool of rows that are ordinary tensors; a buffer is free again when the last tensor over it is gone.

    Any thread may take rows.

    varying: use buffers that may be larger than needed, if the number of rows differs from call to call.
    """

    def __init__(self, backend: Backend, *, varying: bool = False) -> None:
        self._backend, self._device, self._varying = backend, backend.capabilities.device, varying
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._taking = Lock()

    def rows(self, count: int, dim: int, dtype: torch.dtype) -> Tensor:
        """Return uninitialised rows [count, dim] with the padding that kernels need."""
        format = row_format(dim, dtype)
        if self._device != "cpu":
            return _own(torch.empty(count, format.stride, dtype=dtype, device=self._device), dim, dtype)
        size = count * format.row_bytes
        with self._taking:
            room = self._room(size) if self._varying else size
            free = self._free[room]
            buffer = free.pop() if free else self._allocate(room)
        carried = np.uint16 if dtype == torch.bfloat16 else format.dtype
        lease: NDArray[Any] = buffer[:size].view(carried).reshape(count, format.stride)
        # torch keeps the array that it was made from for as long as any tensor uses its memory. (NumPy's own
        # slices of it would hold the buffer instead, so none are made.)
        weakref.finalize(lease, free.append, buffer).atexit = False
        return _own(torch.from_numpy(lease), dim, dtype)

    def _room(self, size: int) -> int:
        """Return the size of the buffer to use for ``size`` bytes: of a free one up to twice as large, or a new one.

        A new buffer replaces a free one of at least half its size, so that sizes that differ by less than that keep no
        more buffers than are in use at once.
        """
        wanted = _class_of(size)
        free = [room for room, buffers in self._free.items() if buffers]
        fitting = [room for room in free if wanted <= room <= 2 * wanted]
        if fitting:
            return min(fitting)
        smaller = [room for room in free if wanted // 2 <= room < wanted]
        if smaller:
            self._free[max(smaller)].pop()
        return wanted

    def _allocate(self, size: int) -> NDArray[np.uint8]:
        counts = np.zeros(self._backend.collectives.size, dtype=np.int64)
        counts[self._backend.collectives.rank] = size // ROW.row_bytes
        return self._backend.rows(counts, ROW, symmetric=False).buffer


def _own(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Return the first columns of new rows as a tensor, not as a view, which users could not change in place."""
    if rows.dtype == dtype and rows.shape[1] == dim:
        return rows
    own = torch.empty(0, dtype=dtype, device=rows.device)
    return own.set_(rows.untyped_storage(), 0, (len(rows), dim), rows.stride())


def _class_of(size: int) -> int:
    """Return the next of eight buffer sizes between two powers of two, at least ``size``."""
    if size <= LEAST_CLASS:
        return LEAST_CLASS
    step = 1 << ((size - 1).bit_length() - 4)
    return -(-size // step) * step
