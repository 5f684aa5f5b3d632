"""The bytes of an HDF5 file, read within limits, and the superblock that tells where its root is."""

from __future__ import annotations

import os

import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"
UNDEFINED = 2**64 - 1  # address of what is not there
LONGEST = 1 << 20  # most bytes of one structure; those of graph files have some hundreds
MOST = 64 << 20  # most bytes of all structures together
_MASK = 0xFFFFFFFF


class DamagedError(Exception):
    """A structure of the file is not as HDF5's format has it, or is none that this reader knows."""


class Fields:
    """Some bytes, from which numbers are taken one after the other. Raises DamagedError behind their end."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.at = data, what, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        if count > self.left:
            raise DamagedError(f"{self.what} is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, width: int) -> int:
        """Return the next unsigned number of ``width`` bytes."""
        return int.from_bytes(self.take(width), "little")

    def text(self, count: int) -> str:
        """Return the next ``count`` bytes as text, up to the first NUL."""
        return self.take(count).partition(b"\0")[0].decode("utf-8", errors="replace")


class Source:
    """An open file's bytes. root: address of the root's object header. size: of the file in bytes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self.size, self._left = descriptor, os.fstat(descriptor).st_size, MOST
        start = self.take(0, min(128, self.size), "the superblock")
        if not start.startswith(SIGNATURE):
            raise DamagedError(self._unsigned())
        self.root = self._superblock(Fields(start, "the superblock"))

    def take(self, at: int, count: int, what: str) -> bytes:
        """Return ``count`` bytes of the file. Raises DamagedError if it does not have them, or they are too many."""
        if at + count > self.size:
            raise DamagedError(f"{what} lies behind the end of the file")
        self._left -= count + 16
        if count > LONGEST or self._left < 0:
            raise DamagedError(f"{what} is larger than any")
        data = b""
        while len(data) < count:
            piece = os.pread(self._descriptor, count - len(data), at + len(data))
            if not piece:
                raise DamagedError("the file has become shorter")
            data += piece
        return data

    def fields(self, at: int, count: int, what: str, signature: bytes = b"") -> Fields:
        """Return ``count`` bytes of the file, which begin with a signature, behind it."""
        found = Fields(self.take(at, count, what), what)
        if found.take(len(signature)) != signature:
            raise DamagedError(f"{what} is not where it should be")
        return found

    def summed(self, at: int, count: int, what: str, signature: bytes) -> Fields:
        """Return the bytes of a structure between signature and checksum. Raises DamagedError if that differs."""
        found = self.fields(at, count, what, signature)
        found.data, told = found.data[:-4], found.data[-4:]
        if checksum(found.data) != int.from_bytes(told, "little"):
            raise DamagedError(f"{what} has another checksum")
        return found

    def _unsigned(self) -> str:
        at = 512
        while at + 8 <= min(self.size, 1 << 20):
            if self.take(at, 8, "the superblock") == SIGNATURE:
                return f"it begins with a user block of {at} bytes; expected none"
            at *= 2
        return "it is not HDF5"

    def _superblock(self, start: Fields) -> int:
        start.take(8)
        version = start.number(1)
        if version in (2, 3):
            if checksum(start.data[:44]) != int.from_bytes(start.data[44:48], "little"):
                raise DamagedError("the superblock has another checksum")
            widths, _ = (start.number(1), start.number(1)), start.take(1)
        elif version in (0, 1):
            start.take(4)
            widths, _ = (start.number(1), start.number(1)), start.take(9 + 4 * version)
        else:
            raise DamagedError(f"the superblock is of version {version}; expected 0 to 3")
        if widths != (8, 8):
            raise DamagedError(f"offsets and lengths have {widths[0]} and {widths[1]} bytes; expected 8")
        base, _, end = start.number(8), start.number(8), start.number(8)
        if base:
            raise DamagedError(f"addresses begin at {base}; expected 0")
        if end > self.size:
            raise DamagedError("it is truncated; copy or import it again")
        if version < 2:
            start.take(16)  # of the driver, and of the root's name
        return start.number(8)


def checksum(data: bytes) -> int:
    """Return HDF5's checksum of a structure: hashlittle of lookup3.c (Bob Jenkins, 2006), from 0."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    if not data:
        return c
    words = np.frombuffer(data + bytes(-len(data) % 12), "<u4").tolist()
    for at in range(0, len(words) - 3, 3):
        a, b, c = a + words[at], b + words[at + 1], c + words[at + 2]
        a = (a - c & _MASK) ^ _turned(c, 4)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ _turned(a, 6)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ _turned(b, 8)
        b = b + a & _MASK
        a = (a - c & _MASK) ^ _turned(c, 16)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ _turned(a, 19)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ _turned(b, 4)
        b = b + a & _MASK
    a, b, c = a + words[-3] & _MASK, b + words[-2] & _MASK, c + words[-1] & _MASK
    c = (c ^ b) - _turned(b, 14) & _MASK
    a = (a ^ c) - _turned(c, 11) & _MASK
    b = (b ^ a) - _turned(a, 25) & _MASK
    c = (c ^ b) - _turned(b, 16) & _MASK
    a = (a ^ c) - _turned(c, 4) & _MASK
    b = (b ^ a) - _turned(a, 14) & _MASK
    return (c ^ b) - _turned(b, 24) & _MASK


def _turned(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (32 - by)) & _MASK
