"""Memory whose ends are watched, and memory of many GiB of which nothing is there until it is touched."""

from __future__ import annotations

import ctypes
import mmap
import weakref

import numpy as np

libc = ctypes.CDLL(None, use_errno=True)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def array_at(address: int, size: int, release, *arguments) -> np.ndarray:
    """``size`` zero bytes at an address; released when the last view of them is gone."""
    block = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(block, release, *arguments)
    ctypes.memset(address, 0, size)
    return np.frombuffer(block, np.uint8) if size else np.zeros(0, np.uint8)


def heap_zeros(size: int, alignment: int = 64) -> np.ndarray:
    """A block of the allocator's own, whose ends the address sanitizer watches."""
    pointer = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(pointer), alignment, size) == 0
    return array_at(pointer.value, size, libc.free, pointer.value)


def untouched(size: int) -> np.ndarray:
    """``size`` zero bytes that begin with a page, of which only those that are touched take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, max(1, size), flags=flags), np.uint8)[:size]
