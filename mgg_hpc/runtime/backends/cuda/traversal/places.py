"""Where lists of edges lie for the kernels of traversals, and how they get to the GPU.

- "device": in the GPU's memory.
- "host": page-locked in the host's memory, which kernels read by themselves (EMOGI, Min et al., VLDB '20).
- "managed": in memory whose pages CUDA moves to the GPU as kernels touch them, read-mostly (EMOGI's baseline).
- "copied": in the host's memory, from which the lists that a step reads are collected into parts and copied (Subway:
  Sabet, Zhao, Gupta, "Subway: Minimizing Data Transfer during Out-of-GPU-Memory Graph Processing", EuroSys '20). A part
  is collected while the one before is copied and read.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....data import native
from .....plan.launch import LANES
from .....plan.workload import prefix_sum
from ...traversal import own_pages
from ..context import DeviceContext

PLACES = ("device", "host", "managed", "copied")
LINE = 128  # bytes to which lists are aligned
ALIGNMENT = 256  # of arrays of a part
PART = 64 << 20  # bytes that are copied at once, or those of the longest list
PARTS = 2

Wanted = Callable[[], NDArray[np.bool_]]
Fields = list[tuple[np.dtype[Any], int]]  # types of arrays, and how many items each has


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
        self._number = number
        self._copies = PartCopies(context) if place == "copied" else None
        self._lengths: Any = None
        if self._copies:
            self._indptr, self._indices, self._degree = indptr, indices, np.diff(indptr)
            return
        self._numbers = None if number is None else on_device(context, number)
        self._edges = self._put(indices)
        self._native = self._made()

    def set_lengths(self, lengths: NDArray[np.float32]) -> None:
        """Set the lengths of edges, [E]."""
        if self._copies:
            self._lengths = lengths
            return
        self._lengths = None  # its memory is free for the next ones
        self._lengths = self._put(lengths)
        self._native = self._made()

    def each(self, wanted: Wanted, *, lengths: bool = False) -> Iterator[tuple[Any, Any]]:
        """Yield lists, and the shape of a launch, for the launches of one step.

        They are all lists, or those for which ``wanted`` says so, bool [L], in parts. lengths: whether the step reads
        the lengths of edges. A launch belongs between two of them.
        """
        if self._copies is None:
            yield self._native, self._context.spread(self._lanes, self._count)
            return
        chosen = np.flatnonzero(wanted()).astype(np.int32)
        degree = self._degree[chosen]
        item = self._item + (4 if lengths else 0)
        ends = np.cumsum(degree * item + 12)  # with an offset and a number
        begin = 0
        while begin < len(chosen):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + PART, side="right")))
            yield from self._part(self._copies, chosen[begin:end], degree[begin:end], lengths=lengths)
            begin = end

    def _part(
        self,
        copies: PartCopies,
        chosen: NDArray[np.int32],
        degree: NDArray[np.int64],
        *,
        lengths: bool,
    ) -> Iterator[tuple[Any, Any]]:
        """Collect some lists, copy them, and yield them."""
        indptr = prefix_sum(degree)
        total, width = int(indptr[-1]), self._indices.dtype
        numbers = chosen if self._number is None else self._number[chosen]
        fields: Fields = [(indptr.dtype, len(indptr)), (numbers.dtype, len(numbers)), (width, total)]
        fields += [(np.dtype(np.float32), total)] * lengths
        arrays = copies.begin(fields)
        arrays[0][:], arrays[1][:] = indptr, numbers
        none = np.zeros(0, np.float32)
        given, taken = (self._lengths, arrays[3]) if lengths else (none, none)
        native.load().collect(self._indptr, self._indices, given, chosen, indptr, arrays[2], taken)
        at = [*copies.upload(), 0]
        lists = self._context.native.EdgeLists(
            len(chosen), at[0], at[2], at[3], at[1], self._item == 8, self._reads
        )
        yield lists, self._context.spread(self._lanes, len(chosen))
        copies.launched()

    def to_host(self) -> None:
        """Move edges in managed memory back to the host."""
        if self._place == "managed":
            a_byte_of_each = self._edges[:: mmap.PAGESIZE]
            a_byte_of_each[:] = a_byte_of_each.copy()  # a write ends the GPU's copy of a page

    def _made(self) -> Any:
        """Return the lists as the module takes them."""
        at = [
            0 if array is None else address_of(self._context, array)
            for array in (self.offset, self._edges, self._lengths, self._numbers)
        ]
        return self._context.native.EdgeLists(self._count, *at, self._item == 8, self._reads)

    def _put(self, values: NDArray[Any]) -> Any:
        """Return the bytes of an array in this place, aligned to LINE.

        In the host's memory they stay where they are if they have pages of their own (`own_pages`).
        """
        values = np.ascontiguousarray(values)
        if self._place == "device":
            return on_device(self._context, values)
        if self._place == "host" and values.nbytes and values.ctypes.data % mmap.PAGESIZE == 0:
            memory = values.view(np.uint8).reshape(-1)
        else:
            make = self._context.arrays.managed if self._place == "managed" else own_pages
            memory = make(max(values.nbytes, 1))
            memory[: values.nbytes] = values.view(np.uint8).reshape(-1)
        if self._place == "host":
            weakref.finalize(memory, self._context.arrays.lock(memory.ctypes.data, memory.nbytes))
        return memory


class PartCopies:
    """Copies of parts to the GPU: one is filled in the host's memory while the one before is copied and read."""

    def __init__(self, context: DeviceContext) -> None:
        self._context, self._copies = context, context.arrays.copies()
        self._host: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * PARTS
        self._device: list[Any] = [context.arrays.zeros(0)] * PARTS
        self._copied: list[Any] = [None] * PARTS  # events after the last copy of each
        self._used = [self._copies.launched()] * PARTS  # and after the last launch that reads it
        self._turn, self._starts, self._nbytes = 0, [0], 0

    def begin(self, fields: Fields) -> list[NDArray[Any]]:
        """Return the arrays of the next part, to be filled."""
        turn, copies = self._turn, self._copies
        if self._copied[turn] is not None:
            copies.finish(self._copied[turn])
        sizes = [-(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT for dtype, count in fields]
        *self._starts, self._nbytes = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        if self._nbytes > len(self._host[turn]):
            room = max(self._nbytes, PART + PART // 8)
            self._host[turn] = self._context.arrays.pinned(room)
            self._context.arrays.finish()  # nothing reads the memory that is given back
            self._device[turn] = self._context.arrays.zeros(room)
            self._used[turn] = copies.launched()
        memory = self._host[turn]
        return [
            memory[start : start + count * dtype.itemsize].view(dtype)
            for start, (dtype, count) in zip(self._starts, fields, strict=True)
        ]

    def upload(self) -> list[int]:
        """Begin to copy the part, have later launches wait for it, and return the addresses of its arrays."""
        turn, copies = self._turn, self._copies
        copies.after(self._used[turn])
        copies.upload(self._host[turn][: self._nbytes], self._device[turn][: self._nbytes])
        self._copied[turn] = copies.mark()
        copies.before(self._copied[turn])
        address = self._context.arrays.address(self._device[turn])
        return [address + start for start in self._starts]

    def launched(self) -> None:
        """Let the part's memory be used again once what was launched by now has ended."""
        self._used[self._turn] = self._copies.launched()
        self._turn = (self._turn + 1) % PARTS


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
