"""The gather floor reads everything that it says, once: its sum against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.native import load

WORDS = 8  # of a line


def words_of(rows: np.ndarray) -> np.ndarray:
    """All words of padded rows, [n, words a row]."""
    shape = len(rows), rows.strides[0] // rows.itemsize
    return np.lib.stride_tricks.as_strided(rows, shape, rows.strides).view(np.uint64)


def expected(rows: np.ndarray, indices: np.ndarray) -> int:
    """The sum that the docstring of gather_floor promises: of two words of each line, from where a row begins on."""
    words, used = words_of(rows), -(-rows.shape[1] * rows.itemsize // 8)
    starts = (rows.ctypes.data + np.arange(len(rows)) * rows.strides[0]) // 8  # in words
    total = np.zeros(len(rows), np.uint64)
    for row, start in enumerate(starts.tolist()):
        first = {0, *(at - start for at in range(start, start + used) if at % WORDS == 0 and at > start)}
        total[row] = sum(int(words[row, at : at + 2].sum(dtype=np.uint64)) for at in first) % 2**64
    return int(total[indices].sum(dtype=np.uint64))


def random_rows(rng, count: int, dim: int, dtype: str) -> np.ndarray:
    """Random words as padded rows, the padding random too."""
    rows = padded(count, RowFormat(np.dtype(dtype), dim))
    words = words_of(rows)
    words[:] = rng.integers(2**64, size=words.shape, dtype=np.uint64)
    return rows


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [*((dim, "f4") for dim in (1, 5, 16, 33, 64, 96, 256, 513)), (128, "f8"), (7, "u2"), (64, "u2")],
)
def test_every_line_of_every_row_is_read_once(rng, dim, dtype, threads):
    """Of no edge, of some, and of more than a block."""
    rows = random_rows(rng, 50, dim, dtype)
    for count, ahead in ((0, 4), (300, 0), (300, 4), (300, 1000), (10_000, 16)):
        indices = rng.integers(50, size=count).astype(np.int32)
        seconds, found = load().gather_floor(indices, rows, ahead, threads)
        assert found == expected(rows, indices) and (seconds > 0 or not count)


@pytest.mark.parametrize(
    ("indices", "rows", "said"),
    [
        ([0, 3], padded(3, RowFormat(np.dtype("f4"), 4)), "outside the rows"),
        ([-1, 0], padded(3, RowFormat(np.dtype("f4"), 4)), "outside the rows"),
        ([0], np.zeros((4, 3), np.float32), "padded"),
    ],
)
def test_what_is_not_there_is_refused(indices, rows, said):
    with pytest.raises(ValueError, match=said):
        load().gather_floor(np.array(indices, np.int32), rows, 4, 1)
