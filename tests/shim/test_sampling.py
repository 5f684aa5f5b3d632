"""Neighbour sampling by the GPU's kernels over the shim. The table has the hard cases, against the host's sampler."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.pes import samples
from memory import untouched
from runtime.test_sampler import check, graph_of, hard_degrees

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda.sampling import MOST_DRAWN
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampler import Sampler


@pytest.mark.parametrize("near", [0, 0.3, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_draws_are_those_of_the_definition(rng, engine, weighted, near):
    indptr, indices = graph_of(hard_degrees(rng), dtype=rng.choice([np.int32, np.int64]))
    more = {"weight": rng.integers(0, 5, len(indices)).astype(np.float32)} if weighted else {}
    more["ids"] = rng.integers(0, 1 << 47, len(indptr) - 1)
    device = samples.bound(engine, indptr, indices, near, **more)
    for fanouts in ([3, 2], [64, -1], [65], []):
        engine.seed(int(rng.integers(1 << 60)))
        seeds = rng.permutation(len(indptr) - 1)[:9]
        check(indptr, indices, seeds, fanouts, step=int(rng.integers(1 << 31)), sampler=device, **more)


@pytest.mark.parametrize("fanout", [199, 256, MOST_DRAWN + 1])
def test_most_edges_of_a_row(rng, engine, fanout):
    """Many places that are drawn are taken already; large fanouts are the host's."""
    given = graph_of([200, 40, 0, 1500])
    check(*given, [3, 0, 1, 2], [fanout], step=9, sampler=samples.bound(engine, *given, 1))


def test_words_that_would_favour_some_neighbours_are_refused(engine):
    """As in runtime/test_sampler.py; the edges are read where they lie, with pages of their own."""
    given = np.array([0, 300_000_000]), untouched(4 * 300_000_000).view(np.int32)
    device, host = samples.bound(engine, *given, 0), Sampler(*given)
    assert engine.arrays.locked[given[1].ctypes.data] == given[1].nbytes
    for step in range(3):
        how = {"seed": 1, "step": step, "edges": True}
        samples.same(*(each.sample(np.array([0]), [70], **how) for each in (device, host)))
    del device
    assert not engine.arrays.locked


def test_refused(engine):
    """As on the host; and edges that do not fit."""
    given, (backend,) = graph_of([2, 2, 3]), engine.backends(World(1))
    device = samples.bound(engine, *given, 1)
    for seeds, fanouts, step, said in (
        ([3], [2], 0, "seeds: 3 is none of 3 rows"),
        ([1, 1], [2], 0, "seeds: row 1 comes twice"),
        ([1], [0], 0, "fanouts: at least 1"),
        ([1], [2], -1, "step"),
    ):
        with pytest.raises(ValueError, match=said):
            device.sample(np.array(seeds), fanouts, seed=0, step=step)
    with pytest.raises(ValueError, match="row 0 has more than 2\\^31 - 1 in-edges"):
        backend.sampling.bind(np.array([0, 1 << 31]), untouched(1 << 33).view(np.int32), near_bytes=0)
    many = 3 << 30
    with pytest.raises(InputError, match=r"takes 24\.0 GiB on the GPU, and 8\.0 GiB are free; leave"):
        backend.sampling.bind(
            np.array([0, many // 2, many // 2, many]), untouched(4 * many).view(np.int32), near_bytes=4 * many
        )
