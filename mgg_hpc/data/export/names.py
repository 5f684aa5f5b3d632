"""Names of nodes in graph files: the user's integer of each row, or the user's word, UTF-8."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import checks, schema
from ..store import GraphFile

ROWS = 1 << 18  # that are read at a time

Names = NDArray[np.int64] | NDArray[np.bytes_]


def kind_of(held: schema.Contents) -> str:
    """Return "id" where a graph file has integers for its rows, "name" where it has words, and nothing without."""
    if schema.NODE_ID in held.datasets:
        return "id"
    return "name" if schema.NAME_TEXT in held.datasets else ""


def read(opened: GraphFile, lo: int, hi: int) -> Names | None:
    """Return the names of rows lo .. hi-1: int64 [n], or UTF-8 bytes [n], as long as the longest; None without.

    Raises InputError for names that are not UTF-8, and for a block whose digest differs.
    """
    kind = kind_of(opened.contents)
    if kind == "id":
        with opened.compared():
            return opened.checked(schema.NODE_ID, lo, hi)
    if not kind:
        return None
    parts = [_words(*_text(opened, row, min(row + ROWS, hi))) for row in range(lo, hi, ROWS)]
    return np.concatenate(parts) if parts else np.empty(0, "S1")


def _text(opened: GraphFile, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets [n + 1] from 0 on and the text of the names of rows lo .. hi-1."""
    total = opened.contents.datasets[schema.NAME_TEXT].shape[0]
    with opened.compared():
        offsets = opened.checked(schema.NAME_OFFSETS, lo, hi + 1)
        checks.offsets(opened.where, schema.NAME_OFFSETS, offsets, row=lo, rows=opened.nodes, total=total)
        text = opened.checked(schema.NAME_TEXT, int(offsets[0]), int(offsets[-1]))
        checks.names(opened.where, offsets, text, lo)
    return offsets - offsets[0], text


def _words(offsets: NDArray[np.int64], text: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Return words as an array of bytes of one length."""
    lengths = np.diff(offsets)
    longest = max(1, int(lengths.max(initial=0)))
    found = np.zeros((len(lengths), longest), np.uint8)
    found[np.arange(longest) < lengths[:, None]] = text
    return found.view(f"S{longest}").reshape(-1)
