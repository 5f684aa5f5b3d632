"""NumPy's .npy format for arrays of numbers: the header is checked before anything is read or allocated."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .limits import shown

LONGEST_HEADER = 1024  # characters; 32 dimensions of 20 digits take 704


class Header(NamedTuple):
    """Shape, order and type of an array, as its first bytes tell them."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype)[:60]} {list(self.shape)}"


def read_header(file: Any, where: str) -> Header:
    """Read a header from a binary file. Raises InputError that begins with ``where``; the bytes after it may be none.

    Types are those of numbers: neither objects, which are pickles, nor records.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            found = np.lib.format.read_array_header_1_0(file, LONGEST_HEADER)
        elif version in ((2, 0), (3, 0)):
            found = np.lib.format.read_array_header_2_0(file, LONGEST_HEADER)
        else:
            raise ValueError(f"its version is {version[0]}.{version[1]}")
    except OSError:
        raise
    # NumPy reads the header as a Python expression; damaged ones raise SyntaxError, TokenError, RecursionError.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{where} is not a NumPy array (.npy): {reason[:120]}") from error
    header = Header(*found)
    if any(type(length) is not int or not 0 <= length < 2**63 for length in header.shape):
        raise InputError(f"{where} is not a NumPy array (.npy): its shape is {shown(str(header.shape))}")
    if header.dtype.kind not in "biuf":
        raise InputError(f"{where} is {header}; expected numbers")
    return header


def load(path: Path, where: str = "") -> NDArray[Any]:
    """Return the array of a file, mapped and not read. where: begins messages. [default: the path]

    Raises InputError for a file that holds less than it claims, or anything but numbers; OSError if it cannot be read.
    """
    where = where or str(path)
    # Without O_NONBLOCK a pipe in the file's place has this wait for ever.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return _mapped(path, file, where)


def _mapped(path: Path, file: BinaryIO, where: str) -> NDArray[Any]:
    header = read_header(file, where)
    offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if offset + header.nbytes > size:
        raise InputError(f"{where} claims {header}, {header.nbytes} bytes; the file does not hold them")
    order: Any = "F" if header.fortran else "C"
    if not header.nbytes:
        return np.empty(header.shape, header.dtype, order)
    return np.memmap(file, header.dtype, "r", offset, header.shape, order)
