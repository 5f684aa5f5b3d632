"""The sizes of blocks in which text is read."""

from __future__ import annotations

import pytest

from mgg_hpc.data import native
from mgg_hpc.data.readers import compressed


@pytest.fixture
def small_blocks(monkeypatch):
    """Read blocks of 50 bytes, which end within most lines."""
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 50)


@pytest.fixture(params=["one block", "small blocks", "line by line"])
def blocks(request, monkeypatch):
    """Each way in which a list of numbers may be read."""
    if request.param == "small blocks":
        monkeypatch.setattr(compressed, "BLOCK_BYTES", 50)
    if request.param == "line by line":
        monkeypatch.setattr(native.load(), "parse_edges", lambda *_: (0, 0))
