"""Nodes whose ids are words: rows in order of first appearance, and the words kept as datasets of the graph file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import native, schema
from ..edge_stream import Rows

PIECE = 1 << 18  # rows


class NodeNames:
    """The rows of words, in order of first appearance.

    It takes 30 to 60 bytes of memory a node whose id is a whole number, and for any other word 40 to 75 bytes and up to
    twice its text; half as much again while it grows. Words are whole numbers if they are written without needless
    zeros and signs, and fit int64.
    """

    def __init__(self) -> None:
        self.table: Any = native.load().Names()

    def __len__(self) -> int:
        return len(self.table)

    def rows(self) -> dict[str, Rows]:
        """Return the dataset of ids where all are whole numbers that fit int64; otherwise those of names."""
        count = len(self)
        if self.table.all_numbers():
            return {schema.NODE_ID: Rows(schema.Layout(schema.INT64, (count,)), self._numbers)}
        size = sum(int(lengths.sum()) for lengths in self._lengths())
        return {
            schema.NAME_OFFSETS: Rows(schema.Layout(schema.INT64, (count + 1,)), self._offsets),
            schema.NAME_TEXT: Rows(schema.Layout(np.dtype(np.uint8), (size,)), self._text),
        }

    def _numbers(self) -> Iterator[NDArray[np.int64]]:
        for first in range(0, len(self), PIECE):
            piece = np.empty(min(PIECE, len(self) - first), np.int64)
            self.table.fill_numbers(first, piece)
            yield piece

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the bytes of each name."""
        for first in range(0, len(self), PIECE):
            piece = np.empty(min(PIECE, len(self) - first), np.int64)
            self.table.fill_lengths(first, piece)
            yield piece

    def _offsets(self) -> Iterator[NDArray[np.int64]]:
        total = 0
        yield np.zeros(1, np.int64)
        for lengths in self._lengths():
            yield total + np.cumsum(lengths)
            total += int(lengths.sum())

    def _text(self) -> Iterator[NDArray[np.uint8]]:
        first = 0
        for lengths in self._lengths():
            piece = np.empty(int(lengths.sum()), np.uint8)
            self.table.fill_text(first, len(lengths), piece)
            yield piece
            first += len(lengths)
