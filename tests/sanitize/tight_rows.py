"""A pytest plugin: rows end where their memory ends, so that a kernel that reads or writes beyond them is found out.

Rows usually begin on a multiple of 64, in an array of some bytes more. MGG_TEST_ROWS=heap gives them a block of the
allocator's of just their size, whose ends the address sanitizer watches; MGG_TEST_ROWS=guard puts them before a page
that nobody may touch, which stops vector instructions too that no sanitizer sees (GCC's masked loads).
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from memory import array_at, heap_zeros

from mgg_hpc.runtime.backends.host import components

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def guarded_zeros(size: int) -> np.ndarray:
    """Whole pages and one more, without any rights; only aligned to 16, since row sizes are multiples of that."""
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = room + mmap.PAGESIZE
    start = libc.mmap(
        None, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    assert libc.mprotect(start + room, mmap.PAGESIZE, 0) == 0
    return array_at(start + room - size, size, libc.munmap, start, whole)


zeros = {"heap": heap_zeros, "guard": guarded_zeros}[os.environ["MGG_TEST_ROWS"]]
assert hasattr(components, "aligned_zeros")
components.aligned_zeros = zeros
