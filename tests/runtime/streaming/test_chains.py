"""Chains of ranks that pass chunks on: whose errors end whom, and which ranks load by a bandwidth tree.

tests/mpi/runtime/test_chained_ranks.py has the sums of all cases.
"""

from __future__ import annotations

import time
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
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes
from mgg_hpc.runtime.streaming.chains import from_tree, measured_tree


@pytest.mark.parametrize("chains", [[[0, 1, 2, 3]], [[2, 3], [0, 1]], [[0], [3, 1, 2]], [[1, 0]]])
def test_a_rank_whose_file_ends_early_ends_those_behind_it(rng, tmp_path, chains):
    """Every rank has an error, none waits; a whole file is read once for each chain."""
    case, world = cases.CASES["ordinary"](rng, 4), World(4)
    x = rng.standard_normal((case.nodes, 8)).astype(np.float32)
    backends = [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(4)]
    store, (parts, order) = store_of("dataset", x, tmp_path), chained(case, 13, 16, 2)
    nbytes = 2 * slot_bytes(order.capacity, store.format)
    buffers = [[ChunkBuffer(each, nbytes, chains) for each in backends] for _ in range(2)]
    behind = {rank for chain in chains for rank in chain[1:]}

    def run(rank, turn=1):
        backends[rank].stream.meter.taken()
        return parts[rank].sums(backends[rank], store, order, buffers[turn][rank])

    def fails(rank):
        with pytest.raises(
            RuntimeError if rank in behind else OSError, match=r"ends at byte|the rank before"
        ):
            run(rank, 0)

    whole = (tmp_path / "dataset").read_bytes()
    with ThreadPoolExecutor(4) as pool:
        (tmp_path / "dataset").write_bytes(whole[:1000])
        list(pool.map(fails, range(4)))
        (tmp_path / "dataset").write_bytes(whole)
        out = np.concatenate(list(pool.map(run, range(4))))
    wanted, bound = (
        of(*case.edge_list, case.nodes, x) for of in (reference.aggregate, reference.error_bound)
    )
    assert (np.abs(out - wanted) <= bound).all()
    nbytes = loaded_rows(order) * 8 * 4
    for buffer in buffers[0] + buffers[1]:
        buffer.close()
    spent = [(each.stream.meter.stored_bytes, each.stream.meter.remote_bytes) for each in backends]
    assert spent == [(0 if rank in behind else nbytes, nbytes) for rank in range(4)]


def test_a_rank_that_begins_the_pass_after_a_failed_one_first_waits_for_it(rng, tmp_path):
    """The same buffers serve both passes; the rank that loads begins the second one long after the others."""
    case, world = cases.CASES["ordinary"](rng, 3), World(3)
    x = rng.standard_normal((case.nodes, 8)).astype(np.float32)
    backends = [SerialBackend(rank, world, Options(SMALL, 1)) for rank in range(3)]
    store, (parts, order) = store_of("dataset", x, tmp_path), chained(case, 13, 16, 2)
    nbytes = 2 * slot_bytes(order.capacity, store.format)
    buffers = [ChunkBuffer(each, nbytes, [[0, 1, 2]]) for each in backends]

    def run(rank):
        return parts[rank].sums(backends[rank], store, order, buffers[rank])

    def fails(rank):
        with pytest.raises((OSError, RuntimeError), match=r"ends at byte|the rank before"):
            run(rank)

    whole = (tmp_path / "dataset").read_bytes()
    with ThreadPoolExecutor(3) as pool:
        (tmp_path / "dataset").write_bytes(whole[:1000])
        list(pool.map(fails, range(3)))
        (tmp_path / "dataset").write_bytes(whole)
        late = [pool.submit(run, rank) for rank in (2, 1)]
        time.sleep(0.05)
        assert not any(each.done() for each in late)
        out = np.concatenate([run(0), late[1].result(10), late[0].result(10)])
    wanted, bound = (
        of(*case.edge_list, case.nodes, x) for of in (reference.aggregate, reference.error_bound)
    )
    assert (np.abs(out - wanted) <= bound).all()


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


PAIRS = switch(leaf(0), leaf(1)), switch(leaf(2), leaf(3))
THREE = leaf(0), leaf(1), leaf(2)


@pytest.mark.parametrize(
    ("tree", "chains"),
    [  # the paper's machine (Figure 7): two GPUs share a switch, two switches a host bridge
        (switch(*PAIRS, speed=40.0), [[0, 1], [2, 3]]),
        (switch(*PAIRS, speed=20.0), [[0, 1, 2, 3]]),
        (switch(*THREE, speed=48.0), [[0], [1], [2]]),
        (switch(*THREE, speed=32.0), [[0, 1], [2]]),
        (leaf(0), [[0]]),
        # The switch's link is what 0 loads by.
        (switch(switch(leaf(0), leaf(1), speed=4.0), leaf(2, 2.0), speed=6.0), [[0, 1], [2]]),
        (measured_tree(5.0, 11.0, 4), [[0, 1], [2, 3]]),
        (measured_tree(5.0, 4.0, 2), [[0, 1]]),
    ],
)
def test_ranks_that_share_a_link_load_once(tree, chains):
    assert from_tree(tree, sum(map(len, chains))) == chains


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
        from_tree(tree, 1)
