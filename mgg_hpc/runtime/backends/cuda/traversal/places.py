"""Where lists of edges lie for the kernels of traversals.

- "device": in the GPU's memory.
- "host": page-locked in the host's memory, which kernels read by themselves (EMOGI, Min et al., VLDB '20).
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....plan.cuda_grid import LANES
from ...traversal import own_pages
from ..context import DeviceContext

PLACES = ("device", "host")


class EdgeLists:
    """Lists of edges in one place, as kernels take them; see EdgeLists of the native module.

    indptr int64 [L + 1], indices int32 or int64 [E]. number: int32 [L], of each list, or None where it is its place.
    lengths: float32 [E], or None. reads: how lists are read.
    """

    def __init__(
        self,
        context: DeviceContext,
        place: str,
        reads: str,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        number: NDArray[np.int32] | None,
    ) -> None:
        self._context, self._place, self._reads = context, place, reads
        self._count, self._item = len(indptr) - 1, indices.itemsize
        self._lanes = 1 if reads == "strided" else LANES
        self.offset = on_device(context, indptr)
        self._lengths: Any = None
        self._numbers = None if number is None else on_device(context, number)
        self._edges = self._put(indices)
        self._native = self._made()

    def set_lengths(self, lengths: NDArray[np.float32]) -> None:
        """Set the lengths of edges, [E]."""
        self._lengths = None  # its memory is free for the next ones
        self._lengths = self._put(lengths)
        self._native = self._made()

    def launch(self) -> tuple[Any, Any]:
        """Return the lists as the module takes them, and the shape of a launch over all of them."""
        return self._native, self._context.spread(self._lanes, self._count)

    def _made(self) -> Any:
        """Return the lists as the module takes them."""
        at = [
            0 if array is None else address_of(self._context, array)
            for array in (self.offset, self._edges, self._lengths, self._numbers)
        ]
        return self._context.native.EdgeLists(self._count, *at, self._item == 8, self._reads)

    def _put(self, values: NDArray[Any]) -> Any:
        """Return the bytes of an array in this place, aligned to 128 bytes.

        In the host's memory they stay where they are if they have pages of their own (`own_pages`).
        """
        values = np.ascontiguousarray(values)
        if self._place == "device":
            return on_device(self._context, values)
        if values.nbytes and values.ctypes.data % mmap.PAGESIZE == 0:
            memory = values.view(np.uint8).reshape(-1)
        else:
            memory = own_pages(max(values.nbytes, 1))
            memory[: values.nbytes] = values.view(np.uint8).reshape(-1)
        weakref.finalize(memory, self._context.arrays.lock(memory.ctypes.data, memory.nbytes))
        return memory


def address_of(context: DeviceContext, array: Any) -> int:
    """Return the address of an array of the GPU's memory or the host's."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return context.arrays.address(array)


def on_device(context: DeviceContext, values: NDArray[Any]) -> Any:
    """Return the bytes of an array in the GPU's memory, aligned to 256."""
    memory = context.arrays.zeros(max(values.nbytes, 1))
    if values.nbytes:
        memory[: values.nbytes] = context.arrays.uploaded(
            np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        )
    return memory
