"""The gather floor and the stream read everything that they say, once: their sums against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.host.components import aligned_zeros, padded
from mgg_hpc.runtime.backends.native import load

WORD, LINE = 8, 64


def rows_of(count: int, dim: int, dtype: str) -> np.ndarray:
    """Random bytes as padded rows, the padding random too."""
    format = RowFormat(np.dtype(dtype), dim)
    rows = padded(count, format)
    whole = rows.base if rows.base is not None else rows
    words = np.random.default_rng(dim).integers(256, size=count * format.row_bytes, dtype=np.uint8)
    np.asarray(whole).reshape(-1).view(np.uint8)[: len(words)] = words
    return rows


def expected(rows: np.ndarray, indices: np.ndarray) -> int:
    """The sum that the docstring of gather_floor promises, by addresses."""
    stride, row_bytes = rows.strides[0], rows.shape[1] * rows.itemsize
    total = 0
    for row in indices:
        start = rows.ctypes.data + int(row) * stride
        at = start
        while at < start + row_bytes:
            offset = at - rows.ctypes.data
            flat = np.lib.stride_tricks.as_strided(rows.view(np.uint8), (len(rows) * stride,), (1,))
            total += int(flat[offset : offset + 2 * WORD].view(np.uint64).sum(dtype=np.uint64))
            at = (at // LINE + 1) * LINE
    return total % 2**64


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        *((dim, "float32") for dim in (1, 5, 16, 33, 64, 96, 256, 513)),
        (128, "float64"),
        (7, "uint16"),
        (64, "uint16"),
    ],
)
def test_every_line_of_every_row_is_read_once(dim, dtype, threads):
    rows = rows_of(50, dim, dtype)
    indices = np.random.default_rng(1).integers(50, size=300).astype(np.int32)
    for ahead in (0, 4, 1000):
        seconds, found = load().gather_floor(indices, rows, ahead, threads)
        assert found == expected(rows, indices)
        assert seconds > 0


def test_more_edges_than_a_block():
    rows = rows_of(10, 16, "float32")
    indices = np.tile(np.arange(10, dtype=np.int32), 1000)
    once = expected(rows, np.arange(10))
    assert load().gather_floor(indices, rows, 16, 2)[1] == 1000 * once % 2**64


def test_no_edges_cost_nothing():
    assert load().gather_floor(np.empty(0, np.int32), rows_of(3, 4, "float32"), 4, 2)[1] == 0


@pytest.mark.parametrize("indices", [[0, 3], [-1, 0]])
def test_an_index_outside_the_rows_is_refused(indices):
    with pytest.raises(ValueError, match="outside the rows"):
        load().gather_floor(np.array(indices, np.int32), rows_of(3, 4, "float32"), 4, 1)


def test_rows_that_are_not_padded_are_refused():
    with pytest.raises(ValueError, match="padded"):
        load().gather_floor(np.zeros(1, np.int32), np.zeros((4, 3), np.float32), 4, 1)


@pytest.mark.parametrize("size", [63, 64, 100, 3 << 20])
def test_a_stream_reads_every_line(size):
    data = aligned_zeros(size)
    data[:] = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)
    lines = data[: size // LINE * LINE].reshape(-1, LINE)[:, : 2 * WORD]
    total = int(np.ascontiguousarray(lines).view(np.uint64).sum(dtype=np.uint64))
    assert load().stream_read(data, 2)[1] == total
