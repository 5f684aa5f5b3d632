"""Memory of just the size that was asked for, so that whoever reads or writes beyond it can be found out."""

from __future__ import annotations

import ctypes
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
