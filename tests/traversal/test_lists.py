"""Lists of edges that are copied together, for processors without the whole graph, are NumPy's slices."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.data import native

NODES = 60


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_chosen_lists_lie_one_after_another(rng, dtype, weighted):
    collect = native.load().collect
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, NODES))]).astype(np.int64)
    indices = rng.integers(0, 1000, indptr[-1]).astype(dtype)
    length = rng.random(len(indices) if weighted else 0).astype(np.float32)
    for count in (0, 1, 25):
        chosen = rng.permutation(NODES)[:count].astype(np.int32)
        edges = np.concatenate([np.arange(indptr[v], indptr[v + 1]) for v in chosen] or [np.zeros(0, int)])
        offsets = np.concatenate([[0], np.cumsum(np.diff(indptr)[chosen])]).astype(np.int64)
        out, taken = np.empty(len(edges), dtype), np.empty(len(edges) if weighted else 0, np.float32)
        collect(indptr, indices, length, chosen, offsets, out, taken)
        np.testing.assert_array_equal(out, indices[edges])
        np.testing.assert_array_equal(taken, length[edges] if weighted else [])
    for wrong in (
        (length[1:] if weighted else np.ones(1, np.float32), chosen, offsets, out, taken),
        (length, chosen, offsets[1:], out, taken),
        (length, chosen, offsets, out[1:], taken),
        (length, chosen, offsets, out, np.ones(len(out) + 1, np.float32)),
        (length, np.full_like(chosen, NODES), offsets, out, taken),
        (length, chosen[::-1].copy(), offsets, out, taken),
    ):
        with pytest.raises(ValueError, match=r"^collect: "):
            collect(indptr, indices, *wrong)
