"""The sizes of blocks in which files are read."""

from __future__ import annotations

import pytest

from mgg_hpc.data import native
from mgg_hpc.data.readers import array_edges, compressed, edge_list, node_arrays, npy


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """A few edges and rows make several blocks; those of text, of 50 bytes, end within most lines."""
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 50)
    monkeypatch.setattr(array_edges, "BLOCK_EDGES", 7)
    monkeypatch.setattr(array_edges, "ROWS", 3)
    monkeypatch.setattr(npy, "PIECE", 64)
    monkeypatch.setattr(node_arrays, "PIECE", 64)
    monkeypatch.setattr(edge_list, "PIECE", 7)


@pytest.fixture(params=["one block", "small blocks", "line by line"])
def blocks(request, monkeypatch) -> str:
    """Each way in which a list of numbers may be read."""
    if request.param == "small blocks":
        request.getfixturevalue("small_blocks")
    if request.param == "line by line":
        monkeypatch.setattr(native.load(), "parse_edges", lambda *_: (0, 0, 0, 0))
    return request.param
