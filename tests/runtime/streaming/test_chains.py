"""Chains of ranks that pass chunks on: ranks of one process, and which ranks load by a bandwidth tree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cases
import numpy as np
import pytest
import reference
from chunks.chained import chained
from chunks.gridded import loaded_rows, store_of
from world import SMALL

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming import ring
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes


def played(case, chains, store, slots, passes=2):
    """What ranks of one process find of the last pass, one below another, and their bytes (stored, all)."""
    ranks = len(case.bounds) - 1
    world = World(ranks)
    backends = [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(ranks)]
    parts, order = chained(case, 13, 16, slots)
    nbytes = slots * slot_bytes(order.capacity, store.format)
    buffers = [ChunkBuffer(backend, nbytes, chains) for backend in backends]

    def run(rank):
        backend = backends[rank]
        for _ in range(passes):
            backend.stream.meter.taken()
            out = parts[rank].sums(backend, store, order, buffers[rank])
        meter = backend.stream.meter
        return out, meter.stored_bytes, meter.remote_bytes

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(run, range(ranks)))
    for buffer in buffers:
        buffer.close()
    rows = [out for out, _, _ in found]
    return np.concatenate(rows), [each[1:] for each in found], order


@pytest.mark.parametrize("chains", [[[0, 1, 2, 3]], [[2, 3], [0, 1]], [[0], [3, 1, 2]], []])
@pytest.mark.parametrize("name", cases.CASES)
def test_each_chain_reads_the_store_once(rng, tmp_path, name, chains):
    case = cases.CASES[name](rng, 4)
    x = rng.standard_normal((case.nodes, 33)).astype(np.float32)
    store = store_of("host", x, tmp_path)
    out, spent, order = played(case, chains, store, int(rng.integers(2, 5)))
    edges = reference.edge_list(case.indptr, case.indices)
    wanted = reference.aggregate(*edges, case.nodes, x)
    assert (np.abs(out - wanted) <= reference.error_bound(*edges, case.nodes, x)).all()
    nbytes = loaded_rows(order) * 33 * 4
    first = {chain[0] for chain in chains} | (set(range(4)) - {rank for chain in chains for rank in chain})
    assert spent == [(nbytes if rank in first else 0, nbytes) for rank in range(4)]


def test_a_chain_changes_no_bit(rng, tmp_path):
    case = cases.CASES["hub"](rng, 4)
    store = store_of("host", rng.standard_normal((case.nodes, 40)).astype(np.float32), tmp_path)
    found = {
        played(case, chains, store, slots)[0].tobytes() for chains, slots in (([], 2), ([[1, 0, 3, 2]], 3))
    }
    assert len(found) == 1


def test_a_rank_whose_file_ends_early_ends_those_behind_it(rng, tmp_path):
    """Every rank has an error, none waits; and with a whole file the same buffers make the next pass."""
    case = cases.CASES["ordinary"](rng, 3)
    world = World(3)
    backends = [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(3)]
    x = rng.standard_normal((case.nodes, 8)).astype(np.float32)
    store = store_of("dataset", x, tmp_path)
    parts, order = chained(case, 13, 16, 2)
    buffers = [ChunkBuffer(each, 2 * slot_bytes(13, store.format), [[0, 1, 2]]) for each in backends]

    def run(rank):
        return parts[rank].sums(backends[rank], store, order, buffers[rank])

    def fails(rank):
        with pytest.raises(OSError if rank == 0 else RuntimeError, match=r"ends at byte|the rank before"):
            run(rank)

    whole = (tmp_path / "dataset").read_bytes()
    with ThreadPoolExecutor(3) as pool:
        (tmp_path / "dataset").write_bytes(whole[:1000])
        list(pool.map(fails, range(3)))
        (tmp_path / "dataset").write_bytes(whole)
        out = np.concatenate(list(pool.map(run, range(3))))
    edges = reference.edge_list(case.indptr, case.indices)
    bound = reference.error_bound(*edges, case.nodes, x)
    assert (np.abs(out - reference.aggregate(*edges, case.nodes, x)) <= bound).all()


def test_chains_need_memory_within_reach():
    world = World(2, lambda rank, peer: rank == peer)
    for rank in range(2):
        buffer = ChunkBuffer(SerialBackend(rank, world, Options(SMALL)), 4096, [[0, 1]])
    with pytest.raises(InputError, match=r"run.backend = shm"):
        buffer.links(3)


def leaf(rank, speed=16.0):
    return {"gb_per_s": speed, "rank": rank}


def switch(*below, speed=16.0):
    return {"gb_per_s": speed, "below": list(below)}


def test_ranks_that_share_a_link_load_once():
    """The paper's machine (Figure 7): two GPUs share a switch, two switches a host bridge."""
    bridge = switch(switch(leaf(0), leaf(1)), switch(leaf(2), leaf(3)), speed=40.0)
    assert ring.chains(bridge, 4) == [[0, 1], [2, 3]]
    assert ring.chains(switch(*bridge["below"], speed=20.0), 4) == [[0, 1, 2, 3]]
    assert ring.chains(switch(leaf(0), leaf(1), leaf(2), speed=48.0), 3) == [[0], [1], [2]]
    assert ring.chains(switch(leaf(0), leaf(1), leaf(2), speed=32.0), 3) == [[0, 1], [2]]
    assert ring.chains(leaf(0), 1) == [[0]]
    slow = switch(
        switch(leaf(0), leaf(1), speed=4.0), leaf(2, 2.0), speed=6.0
    )  # the switch's link is what 0 loads by
    assert ring.chains(slow, 3) == [[0, 1], [2]]
    assert ring.chains(ring.measured_tree(5.0, 11.0, 4), 4) == [[0, 1], [2, 3]]
    assert ring.chains(ring.measured_tree(5.0, 4.0, 2), 2) == [[0, 1]]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (leaf(1), r"its ranks are \[1\], and there are 1"),
        (switch(leaf(0), leaf(0)), r"\[0, 0\]"),
        ({"gb_per_s": 0, "rank": 0}, "no number above 0"),
        ({"gb_per_s": 3}, "either rank or below"),
        ({"gb_per_s": 3, "rank": 0, "ranks": 1}, "either rank or below"),
        (switch(7), "no table"),
    ],
)
def test_what_is_no_tree_is_refused(tree, says):
    with pytest.raises(InputError, match=says):
        ring.chains(tree, 1)
