"""Fixtures of tests of array formats."""

import pytest

from mgg_hpc.data.readers import compressed, npy
from mgg_hpc.data.readers.arrays import edges, node_rows


@pytest.fixture(params=[True, False], ids=["small blocks", "one block"])
def blocks(request, monkeypatch):
    """Have a few edges and rows make several blocks, or one."""
    if request.param:
        monkeypatch.setattr(edges, "BLOCK_EDGES", 7)
        monkeypatch.setattr(edges, "ROWS", 3)
        monkeypatch.setattr(npy, "PIECE", 64)
        monkeypatch.setattr(node_rows, "PIECE", 64)
        monkeypatch.setattr(compressed, "BLOCK_BYTES", 64)
    return request.param
