"""Features of a graph that is streamed: in a store, or where they lie in the graph file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data import schema
from ...data.graph import SparseRows
from ...runtime.streaming.files import FileStore, Pages
from ...runtime.streaming.store import Pace
from ..graph.loading import Part, divide_by_sums
from ..inputs import blocks
from ..workspace import row_format


def lie_as_stored(part: Part, dtype: torch.dtype, normalize: str) -> bool:
    """Return whether the graph file has the features as layers take them, so that they can be read from there."""
    file = part.file
    return file is not None and file.x_dtype == row_format(1, dtype).dtype and normalize == "none"


def in_file(part: Part, dtype: torch.dtype, *, direct: bool, rate: float | Pace, pages: Pages) -> FileStore:
    """Return the features of all ranks in their graph file. direct, rate, pages: as for `FileStore`."""
    assert part.file is not None
    offset, format = part.file.offset(schema.X), row_format(part.features, dtype)
    return FileStore.over(part.file.path, offset, format, part.nodes, direct=direct, rate=rate, pages=pages)


def dense(part: Part, first: int, rows: int, dtype: torch.dtype, normalize: str) -> Iterator[Tensor]:
    """Yield the features of a rank's rows in blocks, each in memory of its own, and take them out of the part.

    first: number of the first one. normalize: "none", or "row" divides each row by its sum. Raises InputError for a
    damaged file.
    """
    held, low = part.take_features(), 0
    for count in blocks.lengths(rows, row_format(part.features, dtype).row_bytes):
        block = torch.empty(count, part.features, dtype=dtype)
        if part.file is not None:
            blocks.read(part.file, first + low, [block], "cpu", lambda rows: None)
        else:
            assert held is not None
            block.copy_(_slice(held, low, low + count))
        if normalize == "row":
            divide_by_sums(block)
        yield block
        low += count


def _slice(held: NDArray[Any] | SparseRows, low: int, high: int) -> Tensor:
    """Return rows low .. high - 1 as dense ones."""
    if not isinstance(held, SparseRows):
        return torch.from_numpy(np.ascontiguousarray(held[low:high]))
    begin, end = int(held.indptr[low]), int(held.indptr[high])
    rows = np.repeat(np.arange(high - low), np.diff(held.indptr[low : high + 1]))
    dense = np.zeros((high - low, held.shape[1]), np.float32)
    np.add.at(dense, (rows, held.indices[begin:end]), held.data[begin:end])
    return torch.from_numpy(dense)
