"""Rows in blocks: read from a graph file, or copied to a GPU, the next one while the last one is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.store import GraphFile
from ..workspace import as_tensor, row_format

BLOCK_BYTES = 32 << 20  # most bytes of a block; torch rounds pinned memory up to powers of two

Finish = Callable[[Tensor], None]


def lengths(rows: int, row_bytes: int) -> list[int]:
    """Return the number of rows of each block: as even as possible, in descending order.

    Only a single row in all makes a block of one row, which torch would sum in another order if it is wide.
    """
    return _even(rows, most=max(3, BLOCK_BYTES // row_bytes))


def shares(rows: int, count: int) -> list[int]:
    """Return the number of rows of each of ``count`` blocks, as `lengths` does; few rows make fewer blocks."""
    return _even(rows, most=max(3, -(-rows // count)))


def _even(rows: int, most: int) -> list[int]:
    count = -(-rows // most)
    return [rows // count + (number < rows % count) for number in range(count)]


def empty(rows: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    """Allocate uninitialised rows; on a host by NumPy, which asks for huge pages, unlike torch."""
    if device == "cpu":
        return as_tensor(np.empty((rows, columns), row_format(columns, dtype).dtype))
    return torch.empty(rows, columns, dtype=dtype, device=device)


def on_host(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Allocate uninitialised rows in the host's memory; pinned where there is a GPU, for copies by DMA."""
    if torch.cuda.is_available():
        return torch.empty(rows, columns, dtype=dtype, pin_memory=True)
    return empty(rows, columns, dtype, "cpu")


def read(file: GraphFile, first: int, blocks: Sequence[Tensor], device: str, finish: Finish) -> None:
    """Read the dense features of row ``first`` and after into tensors [rows, F] on ``device``, cut by `lengths`.

    They are converted to the tensors' type, and ``finish`` is called with each tensor as soon as it is full. Raises
    InputError as `GraphFile.feature_blocks` does.
    """
    if not blocks:
        return
    stored = torch.from_numpy(np.empty(0, file.x_dtype)).dtype
    if device != "cpu":
        _read_to_gpu(file, first, blocks, stored, device, finish)
        return
    sources = blocks
    if blocks[0].dtype != stored:
        buffer = torch.empty_like(blocks[0], dtype=stored)
        sources = [buffer[: len(block)] for block in blocks]
    found = file.feature_blocks(first, first + sum(map(len, blocks)), (each.numpy() for each in sources))
    for source, block, _ in zip(sources, blocks, found, strict=True):
        if source is not block:
            block.copy_(source)
        finish(block)


def _read_to_gpu(
    file: GraphFile, first: int, blocks: Sequence[Tensor], stored: torch.dtype, device: str, finish: Finish
) -> None:
    """Read to a GPU through two buffers in turn: one is copied, converted and finished while the other is filled."""
    rows, columns = blocks[0].shape
    buffers = [on_host(rows, columns, stored) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in range(2)]
    sources = [buffers[number % 2][: len(block)] for number, block in enumerate(blocks)]

    def arrays() -> Iterator[NDArray[Any]]:
        for number, source in enumerate(sources):
            copied[number % 2].synchronize()
            yield source.numpy()

    found = file.feature_blocks(first, first + sum(map(len, blocks)), arrays())
    with _beside(device) as stream:
        for number, (source, block, _) in enumerate(zip(sources, blocks, found, strict=True)):
            with torch.cuda.stream(stream):
                arrived = source.to(device, non_blocking=True)
                copied[number % 2].record(stream)
                block.copy_(arrived)
                finish(block)


def on_device(blocks: Sequence[Tensor], device: str) -> Iterator[Tensor]:
    """Yield each of these host tensors, cut by `lengths`, on ``device``; a copy on a GPU lives until the next one.

    Copies go to two buffers in turn, one of which is filled while the current stream uses the other.
    """
    if device == "cpu" or not blocks:
        yield from blocks
        return
    buffers = [torch.empty_like(blocks[0], device=device) for _ in range(2)]
    copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    current = torch.cuda.current_stream(device)

    def copy(number: int, stream: torch.cuda.Stream) -> None:
        stream.wait_event(used[number % 2])
        with torch.cuda.stream(stream):
            buffers[number % 2][: len(blocks[number])].copy_(blocks[number], non_blocking=True)
        copied[number % 2].record(stream)

    with _beside(device) as stream:
        copy(0, stream)
        for number, block in enumerate(blocks):
            if number + 1 < len(blocks):
                copy(number + 1, stream)
            current.wait_event(copied[number % 2])
            yield buffers[number % 2][: len(block)]
            used[number % 2].record(current)


@contextmanager
def _beside(device: str) -> Iterator[torch.cuda.Stream]:
    """Yield a second stream of the GPU, ordered after the current stream's work so far, and before its work later on.

    So both may use memory of the current stream.
    """
    current, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(current)
    try:
        yield stream
    finally:
        current.wait_stream(stream)
