"""Shapes and types of datasets and attributes, and the values of attributes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .source import DamagedError, Fields, Source

LARGEST_VALUE = 1 << 16  # bytes of an attribute; larger ones lie outside of the object's header
_LARGEST = 2**31 - 1  # bytes of NumPy's types
_FIXED, _FLOAT, _TEXT, _ENUM, _VARIABLE = 0, 1, 3, 8, 9
# Bits of IEEE numbers by size: where sign, exponent and mantissa lie, and the exponent's bias.
_IEEE = {
    2: (15, 10, 5, 0, 10, 15),
    4: (31, 23, 8, 0, 23, 127),
    8: (63, 52, 11, 0, 52, 1023),
}


class Type(NamedTuple):
    """A type. dtype: of NumPy; void for one that graph files do not have. size: bytes of an entry in the file.

    text: "" or "fixed" or "variable", for strings.
    """

    dtype: np.dtype[Any]
    size: int
    text: str = ""


def read_shape(message: Fields) -> tuple[int, ...] | None:
    """Return the shape that a dataspace message tells; None for one without entries (a null space)."""
    version, rank, flags = message.number(1), message.number(1), message.number(1)
    if version == 1:
        message.take(5)
        null = False
    elif version == 2:
        null = message.number(1) == 2
    else:
        raise DamagedError(f"a dataspace is of version {version}")
    if rank > 32 or flags & ~3:
        raise DamagedError(f"a dataspace has {rank} dimensions")
    shape = tuple(message.number(8) for _ in range(rank))
    if any(length >= 2**63 for length in shape):
        raise DamagedError("a dataspace is larger than any")
    return None if null else shape


def read_type(message: Fields, depth: int = 0) -> Type:
    """Return the type that a datatype message tells."""
    first = message.number(1)
    kind, version = first & 15, first >> 4
    bits, size = message.number(3), message.number(4)
    if not 1 <= version <= 5 or not size:
        raise DamagedError(f"a datatype is of version {version} and has {size} bytes")
    order = ">" if bits & 1 else "<"
    if kind == _FIXED:
        place, precision = message.number(2), message.number(2)
        if size in (1, 2, 4, 8) and (place, precision) == (0, 8 * size) and not bits & ~9:
            return Type(np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}"), size)
    elif kind == _FLOAT:
        place, precision = message.number(2), message.number(2)
        parts = tuple(message.number(1) for _ in range(4))
        found = (bits >> 8 & 255, *parts, message.number(4))
        usual = (place, precision, bits & 0xFE) == (
            0,
            8 * size,
            0x20,
        )  # the leading 1 of the mantissa is implied
        if usual and found == _IEEE.get(size):
            return Type(np.dtype(f"{order}f{size}"), size)
    elif kind == _TEXT:
        return Type(np.dtype(f"S{size}") if size <= _LARGEST else _unknown(size), size, "fixed")
    elif kind == _VARIABLE and bits & 15 == 1:
        return Type(np.dtype(object), size, "variable" if size == 16 else "")
    elif kind == _ENUM and not depth:
        return _boolean(message, bits & 0xFFFF, version, size)
    return Type(_unknown(size), size)


def _unknown(size: int) -> np.dtype[Any]:
    return np.dtype(f"V{min(size, _LARGEST)}")


def _boolean(message: Fields, members: int, version: int, size: int) -> Type:
    """Return bool for an enumeration of FALSE and TRUE in a byte, which is how h5py stores it."""
    base = read_type(message, 1)
    if base.dtype == np.int8 and members == 2 and size == 1:
        names = []
        for _ in range(members):
            end = message.data.find(b"\0", message.at) + 1
            name = message.take(max(end - message.at, 1))
            message.take(-len(name) % 8 if version < 3 else 0)
            names.append(name)
        if names == [b"FALSE\0", b"TRUE\0"] and message.take(2) == b"\0\1":
            return Type(np.dtype(bool), 1)
    return Type(_unknown(size), size)


def read_value(source: Source, kind: Type, shape: tuple[int, ...] | None, data: Fields) -> Any:
    """Return an attribute's value: text, a number or a bool, an array of numbers, or None for anything else."""
    if shape is None or math.prod(shape) * kind.size > LARGEST_VALUE:
        return None
    raw = data.take(math.prod(shape) * kind.size)
    if kind.text and not shape:
        text = raw if kind.text == "fixed" else _long_text(source, Fields(raw, "a text"))
        return text.rstrip(b"\0").decode("utf-8", errors="replace")
    if kind.dtype.kind not in "biuf":
        return None
    if kind.dtype == np.bool_ and max(raw, default=0) > 1:
        return None
    values = np.frombuffer(raw, kind.dtype).reshape(shape)
    return values.copy() if shape else values.item()


def _long_text(source: Source, raw: Fields) -> bytes:
    """Return a text of variable length, from the global heap where its bytes lie."""
    length, at, number = raw.number(4), raw.number(8), raw.number(4)
    if not length:
        return b""
    head = source.fields(at, 16, "a global heap", b"GCOL")
    head.take(4)
    heap = Fields(source.take(at, head.number(8), "a global heap"), "a global heap")
    heap.take(16)
    while heap.left >= 16:
        index, _, size = heap.number(2), heap.take(6), heap.number(8)
        if index == number:
            return heap.take(size)[:length]
        if not index:
            break
        heap.take(size + -size % 8)
    raise DamagedError("a global heap lacks a text")
