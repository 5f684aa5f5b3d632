"""Neighbour sampling by the GPU's kernels over the shim. The table has the hard cases, against the host's sampler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jobs
import numpy as np
import pytest
from gpu.pes import samples
from gpu.pes.engine import Engine
from memory import untouched
from mpi4py import MPI
from runtime.test_sampler import check, graph_of, hard_degrees

from mgg_hpc.errors import InputError
from mgg_hpc.nn.graph.loading import sliced
from mgg_hpc.nn.sampling.source import SharedEdges
from mgg_hpc.runtime.backends.cuda.sampling import MOST_DRAWN
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.backends.traversal import own_pages
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


def test_lists_of_several_backends_are_locked_once(engine):
    """That begin with a page, as those of `own_pages` do, and others by chance."""
    indices = own_pages(16).view(np.int64)
    indices[:] = 0
    samplers = [samples.bound(engine, np.array([0, 2]), indices, 0) for _ in range(2)]
    for _ in range(2):
        assert engine.arrays.locked == {indices.ctypes.data: 16}
        del samplers[1:]
    samplers.clear()
    assert not engine.arrays.locked


@pytest.fixture
def edges():
    return SharedEdges(MPI.COMM_SELF, sliced(jobs.directed_weighted()))


def test_threads_draw_what_the_host_does_until_the_graph_is_closed(rng, engine, edges):
    """Edges of the rows of most out-edges, or of the highest score, are on the GPU; pages of others are locked."""
    (backend,), (serial,), near = engine.backends(World(1)), Engine.host().backends(World(1)), 2400
    with edges.used() as graph:
        source, degree = graph.indices, np.diff(graph.indptr)
        host = edges.sampler(serial, weighted=True)
        for score in (None, rng.permutation(len(degree)).astype(float)):
            device = edges.sampler(backend, weighted=True, near_bytes=near, score=score)
            hottest = np.argsort(-(np.bincount(source) if score is None else score), kind="stable")
            lists = np.cumsum(degree[hottest])
            share = lists[lists <= near // 8][-1] / len(source)
            assert (host.place, device.place) == ("CPU", f"GPU, {share:.1%} of the edges there")
            assert sorted(engine.arrays.locked.values()) == [4 * len(source)] * 2
        calls = [(rng.permutation(150)[:8], int(rng.integers(1 << 32))) for _ in range(6)]
        draw = [partial(each.sample, fanouts=[3, 2], seed=7, edges=True) for each in (device, host)]
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda call: draw[0](call[0], step=call[1]), calls))
    for sampled, (seeds, step) in zip(found, calls, strict=True):
        samples.same(sampled, draw[1](seeds, step=step))
    locked, free = list[dict](), graph.close
    graph.close = lambda: locked.append(dict(engine.arrays.locked)) or free()
    edges.close()
    assert locked == [{}]


def test_samplers_of_one_graph_lock_its_pages_once(engine):
    (backend,), memory = engine.backends(World(1)), untouched(1 << 20).view(np.int32)
    host = Sampler(np.array([0, len(memory)]), memory)
    one, two = backend.sampling.bind(host, 0), backend.sampling.bind(host, 0)
    del one
    assert engine.arrays.locked == {memory.ctypes.data: 1 << 20}
    two.close()
    assert not engine.arrays.locked


def test_memory_of_a_sampler_is_counted(rng, engine, monkeypatch):
    """What it holds, and what a hop takes, to what the arrays that it makes have."""
    given, made = graph_of(rng.integers(0, 20, 60)), list[int]()
    zeros = type(engine.arrays).zeros
    monkeypatch.setattr(
        engine.arrays, "zeros", lambda nbytes: made.append(nbytes) or zeros(engine.arrays, nbytes)
    )
    device = samples.bound(
        engine, *given, float(rng.random()), weight=rng.random(len(given[1])).astype(np.float32)
    )
    assert device.device_bytes == sum(made)
    for fanout in (9, 2):
        made.clear()
        before = device.scratch_bytes
        device.sample(rng.permutation(60)[: 7 * fanout], [fanout], seed=1, step=1)
        assert (device.scratch_bytes >= sum(made)) if fanout == 9 else (device.scratch_bytes == before)


def test_a_gpu_without_room_leaves_draws_to_the_host(engine, edges, monkeypatch):
    (backend,) = engine.backends(World(1))
    monkeypatch.setenv("MGG_SHIM_FREE_BYTES", "1000")
    place = edges.sampler(backend, weighted=False).place
    assert place.startswith("CPU (a graph to be sampled takes 0.0 GiB on the GPU, and 0.0 GiB are free")
    assert not engine.arrays.locked


def test_edges_that_do_not_fit_stay_on_the_host(engine, edges, monkeypatch):
    (backend,) = engine.backends(World(1))
    with edges.used() as graph:
        whole = 2 * graph.indptr.nbytes + graph.indices.nbytes
    monkeypatch.setenv("MGG_SHIM_FREE_BYTES", str(2 * whole))
    device = edges.sampler(backend, weighted=False, near_bytes=1 << 40)
    assert device.place.startswith("GPU") and "100.0%" not in device.place
    assert engine.arrays.locked


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
    with pytest.raises(InputError, match="row 0 has more than 2\\^31 - 1 in-edges"):
        backend.sampling.bind(Sampler(np.array([0, 1 << 31]), untouched(1 << 33).view(np.int32)), 0)
    many = 3 << 30
    with pytest.raises(InputError, match=r"takes 24\.0 GiB on the GPU, and 8\.0 GiB are free; leave"):
        graph = Sampler(np.array([0, many // 2, many // 2, many]), untouched(4 * many).view(np.int32))
        backend.sampling.bind(graph, 4 * many)
