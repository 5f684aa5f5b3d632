"""Pickles as Python 2 and the NumPy and SciPy of 2016 wrote them (protocol 2), built opcode by opcode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse


def dumps(value: Any) -> bytes:
    return b"\x80\x02" + _value(value) + b"."


def _value(value: Any) -> bytes:
    writers: dict[type, Callable[[Any], bytes]] = {
        np.ndarray: _array,
        scipy.sparse.csr_matrix: _csr,
        dict: _neighbours,
        tuple: lambda items: b"(" + b"".join(map(_value, items)) + b"t",
        list: lambda items: b"](" + b"".join(map(_value, items)) + b"e",
        int: lambda number: b"J" + struct.pack("<i", number),
        str: _text,
    }
    return writers[type(value)](value)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"T" + struct.pack("<i", len(data)) + data


def _dtype(dtype: np.dtype) -> bytes:
    made = b"cnumpy\ndtype\n" + _value((dtype.str[1:], 0, 1)) + b"R"
    return made + b"(K\x03U\x01<NNN" + _value(-1) + _value(-1) + b"K\x00tb"


def _array(array: np.ndarray) -> bytes:
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _value((0,)) + b"U\x01btR"
    state = _value(1) + _value(array.shape) + _dtype(array.dtype) + b"\x89" + _text(array.tobytes())
    return made + b"(" + state + b"tb"


def _csr(matrix: scipy.sparse.csr_matrix) -> bytes:
    state = {"_shape": tuple(map(int, matrix.shape)), "maxprint": 50, "format": "csr"}
    items = [_text(key) + _value(value) for key, value in state.items()]
    items += [_text(name) + _array(getattr(matrix, name)) for name in ("indices", "indptr", "data")]
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + b"".join(items) + b"ub"


def _neighbours(graph: dict[int, list[int]]) -> bytes:
    items = b"".join(_value(node) + _value(row) for node, row in graph.items())
    return b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + items + b"u"
