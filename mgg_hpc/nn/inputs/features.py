"""Input rows of a model: the features of a graph, or rows made for graphs without features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.graph import SparseRows
from ...data.store import GraphFile
from ...runtime.backends.base import Backend
from ...runtime.backends.native import uniform
from ..graph.loading import Part
from ..workspace import accumulator
from .host import HostFeatures, Input, copy_stream, empty_rows, lengths, on_host
from .sparse import SparseFeatures

DEGREE_COLUMNS = 32  # fixed, so that a model fits other graphs too
LEARNED = 0xC000  # first random stream of learned rows; the streams before it draw initial weights
IDS_A_STREAM = 1 << 16  # number of node ids whose rows use the same stream


def degree_rows(indptr: NDArray[np.int64]) -> SparseRows:
    """Return one-hot rows of in-degrees [n, 32]: column 0 for degree 0, else 1 + floor(log2(degree)), at most 31."""
    degree = np.diff(indptr)
    _, exponent = np.frexp(degree.astype(np.float64))  # degree = m 2^exponent with m in [1/2, 1), exactly
    column = np.minimum(exponent, DEGREE_COLUMNS - 1).astype(np.int32)
    rows = len(degree)
    return SparseRows(np.arange(rows + 1), column, np.ones(rows, np.float32), (rows, DEGREE_COLUMNS))


def learned_rows(
    ids: NDArray[np.int64], columns: int, seed: int, dtype: torch.dtype, device: str = "cpu"
) -> torch.nn.Parameter:
    """Return trainable rows [n, columns], initially uniform with variance 1, for this rank's nodes.

    ids: int64 [n], original node ids. A row depends only on the seed and its id, not on the rank that draws it.
    """
    rows = np.empty((len(ids), columns))
    limit, stream = np.sqrt(3.0), ids // IDS_A_STREAM
    for number in np.unique(stream):
        chosen, first = stream == number, number * IDS_A_STREAM
        drawn = np.empty((int(ids[chosen].max() - first) + 1, columns))
        uniform(drawn, -limit, limit, seed, LEARNED + int(number))
        rows[chosen] = drawn[ids[chosen] - first]
    return torch.nn.Parameter(torch.from_numpy(rows).to(device, dtype))


def without_features(part: Part, kind: str, columns: int) -> None:
    """Replace a part's features by the input that model.input = ``kind`` names.

    "degree" stores `degree_rows`. "learned" stores nothing yet (`learned_rows` makes the rows later) and sets the
    number of features to ``columns``.
    """
    x = degree_rows(part.slice.indptr) if kind == "degree" else None
    part.slice = replace(part.slice, x=x)
    part.close()
    part.features = columns if x is None else x.shape[1]


def input_features(
    part: Part, backend: Backend, dtype: torch.dtype, normalize: str, *, on_host: bool = False
) -> Input:
    """Return this rank's features [n, F], dense or sparse as stored, and remove them from ``part``.

    normalize: "row" divides each row by its sum, unless that is 0. on_host: keep dense rows in the host's memory. Dense
    rows are read from the part's file, which is closed. Raises InputError if the file is damaged.
    """
    device, x = backend.capabilities.device, part.take_features()
    if isinstance(x, SparseRows):
        values = torch.from_numpy(x.data).to(accumulator(dtype))
        if normalize == "row":
            degree = np.diff(x.indptr)
            row = np.repeat(np.arange(len(degree)), degree)
            total = np.bincount(row, values.numpy(), minlength=len(degree)).astype(values.numpy().dtype)
            values /= torch.from_numpy(np.where(total == 0, 1, total)[row])
        return SparseFeatures(backend, x.indptr, x.indices, values.to(device), x.shape[1], dtype)
    rows, columns = len(part.slice.ids), part.features
    found: Tensor | HostFeatures
    if on_host:
        device, found = "cpu", HostFeatures(backend, rows, columns, dtype)
        blocks: Sequence[Tensor] = found.blocks
    else:
        found = empty_rows(rows, columns, dtype, device)
        blocks = found.split(lengths(rows, columns * dtype.itemsize))
    finish = divide_by_sums if normalize == "row" else lambda block: None
    if part.file is not None:
        read(part.file, int(part.bounds[backend.collectives.rank]), blocks, device, finish)
        part.close()
    else:
        assert x is not None  # the graph has features
        values = torch.from_numpy(x)
        for block, given in zip(blocks, values.split([len(each) for each in blocks]), strict=True):
            block.copy_(given)
            finish(block)
    return found


def divide_by_sums(rows: Tensor) -> None:
    """Divide each row by its sum, in place, unless that is 0."""
    total = rows.sum(1, keepdim=True, dtype=accumulator(rows.dtype))
    rows.div_(torch.where(total == 0, torch.ones_like(total), total))


# ---- reading dense features in blocks


def read(
    file: GraphFile,
    first: int,
    blocks: Sequence[Tensor],
    device: str,
    finish: Callable[[Tensor], None],
) -> None:
    """Read the dense features of row ``first`` and the following rows into tensors [rows, F] on ``device``.

    They are converted to the tensors' type. finish: called with each tensor as soon as it is full. Raises InputError as
    `GraphFile.feature_blocks` does.
    """
    if not blocks:
        return
    stored = torch.from_numpy(np.empty(0, file.x_dtype)).dtype
    last = first + sum(map(len, blocks))
    if device != "cpu":
        _read_to_gpu(file, (first, last), blocks, stored, device, finish)
        return
    sources = blocks
    if blocks[0].dtype != stored:
        buffer = torch.empty_like(blocks[0], dtype=stored)
        sources = [buffer[: len(block)] for block in blocks]
    found = file.feature_blocks(first, last, (each.numpy() for each in sources))
    for source, block, _ in zip(sources, blocks, found, strict=True):
        if source is not block:
            block.copy_(source)
        finish(block)


def _read_to_gpu(
    file: GraphFile,
    bounds: tuple[int, int],
    blocks: Sequence[Tensor],
    stored: torch.dtype,
    device: str,
    finish: Callable[[Tensor], None],
) -> None:
    """Read rows bounds[0] .. bounds[1] - 1 through two buffers: one is filled while the other is copied."""
    rows, columns = blocks[0].shape
    buffers = [on_host(rows, columns, stored) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in range(2)]
    sources = [buffers[number % 2][: len(block)] for number, block in enumerate(blocks)]

    def arrays() -> Iterator[NDArray[Any]]:
        for number, source in enumerate(sources):
            copied[number % 2].synchronize()
            yield source.numpy()

    found = file.feature_blocks(*bounds, arrays())
    with copy_stream(device) as stream:
        for number, (source, block, _) in enumerate(zip(sources, blocks, found, strict=True)):
            with torch.cuda.stream(stream):
                arrived = source.to(device, non_blocking=True)
                copied[number % 2].record(stream)
                block.copy_(arrived)
                finish(block)
