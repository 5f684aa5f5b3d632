"""Sizes by which training and exports cut what they compute change no result: tests set small ones, to cross them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mgg_hpc.data import row_files
from mgg_hpc.training import nonfinite


@pytest.mark.parametrize("block", [1, 3, 10, 1 << 20])
def test_the_first_value_that_is_not_finite_is_found_in_any_block(rng, monkeypatch, block):
    monkeypatch.setattr(nonfinite, "BLOCK", block)
    rows = torch.from_numpy(rng.standard_normal((17, 3)))
    assert nonfinite._position(rows) is None
    for row, column in [(16, 2), (9, 0), (9, 1), (3, 1)]:
        rows[row, column] = torch.inf
        known = (9, 0) if (row, column) == (9, 1) else (row, column)
        assert nonfinite._position(rows) == (*known, torch.inf)


@pytest.mark.parametrize("block", [1, 4, 7, 1 << 16])
def test_rows_of_other_ranks_come_in_blocks(rng, monkeypatch, tmp_path, block):
    """Of two ranks that play in one process: what the second sends is what the first gets."""
    monkeypatch.setattr(row_files, "BLOCK", block)
    ids, rows = rng.permutation(18), rng.standard_normal((18, 3))
    bounds, sent = np.array([0, 7, 18]), []
    first = SimpleNamespace(rank=0, size=2, Recv=lambda into, source: np.copyto(into, sent.pop(0)))
    second = SimpleNamespace(rank=1, size=2, Send=lambda array, to: sent.append(array.copy()))
    for comm, part in ((second, slice(7, 18)), (first, slice(7))):
        row_files.write(comm, tmp_path / "out.npy", ids[part], {"rows": rows[part]}, bounds, {})
    assert sent == [] and np.array_equal(np.load(tmp_path / "out.npy")[ids], rows)
