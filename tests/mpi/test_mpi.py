"""The world of several ranks: agreement, deterministic sums, shared windows."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
import torch

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import cores, exit_code, mpi
from mgg_hpc.runtime.backends.cuda.collectives import NcclSums

pytestmark = pytest.mark.mpi


def summands(size, count, kind):
    """What each rank brings; the same on all ranks. Floats whose sum depends on the order of addition."""
    rng = np.random.default_rng([size, count])
    if np.issubdtype(kind, np.integer):
        return rng.integers(-(2**40), 2**40, (size, count)).astype(kind)
    return (rng.standard_normal((size, count)) * 10.0 ** rng.integers(-6, 7, (size, count))).astype(kind)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 64, 1001])
def test_sum_in_rank_order_adds_in_rank_order(comm, kind, count):
    parts = summands(comm.size, count, kind)
    expected = parts[0].astype(np.float64 if kind != np.int64 else np.int64)
    for part in parts[1:]:
        expected = expected + part
    for _ in range(3):
        array = parts[comm.rank].copy()
        if comm.rank == comm.size - 1:
            time.sleep(0.002)  # arrive out of order
        mpi.sum_in_rank_order(comm, array)
        np.testing.assert_array_equal(array, expected.astype(kind))


def test_sum_in_rank_order_works_in_place_on_contiguous_arrays(comm):
    array = np.full((3, 5), comm.rank + 1.0, np.float32)
    view = array.reshape(-1)
    mpi.sum_in_rank_order(comm, array)
    np.testing.assert_array_equal(view, comm.size * (comm.size + 1) / 2)
    with pytest.raises(ValueError, match="contiguous"):
        mpi.sum_in_rank_order(comm, np.zeros((4, 4))[:, ::2])


def test_a_process_group_of_torch_sums_over_all_ranks(comm, rng):
    """As NCCL does, by gloo, which needs no GPU: twice, and again in a group that is made after the first has ended."""
    values = rng.standard_normal((3, comm.size, 1001)).astype(np.float32)
    for turn in range(2):
        sums = NcclSums(comm, "gloo")
        for part in values[turn : turn + 2]:
            mine = torch.from_numpy(part[comm.rank].copy())
            sums.add_up(mine)
            np.testing.assert_allclose(mine, part.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
            assert len(set(comm.allgather(mine.numpy().tobytes()))) == 1
        sums.close()


@pytest.mark.parametrize("failing", ["none", "first", "last", "all"])
def test_agree_raises_the_lowest_ranks_input_error_on_all_ranks(comm, failing):
    last = comm.size - 1
    ranks = {"none": [], "first": [0], "last": [last], "all": range(comm.size)}[failing]
    lines = [f"row {rank} is wrong" for rank in ranks]
    raised = pytest.raises(InputError, match=lines[0]) if lines else contextlib.nullcontext()
    with raised, mpi.agree(comm):
        if comm.rank in ranks:
            raise InputError(f"row {comm.rank} is wrong")


def test_agree_prefers_the_lowest_rank_among_different_errors(comm):
    """An InputError is raised on all ranks; any other shows where it happened."""
    with pytest.raises(InputError, match="the file"), mpi.agree(comm):
        raise InputError("the file") if comm.rank == 0 else ZeroDivisionError
    last = comm.rank == comm.size - 1
    with pytest.raises(ZeroDivisionError if last else exit_code.FailedElsewhere), mpi.agree(comm):
        if last:
            raise ZeroDivisionError


def test_barrier_waits_for_the_last_rank(comm):
    if comm.rank == 0:
        time.sleep(0.1)
    arrived = time.monotonic()  # one clock for all processes of a machine
    mpi.barrier(comm)
    left = time.monotonic()
    assert max(comm.allgather(arrived)) <= left


def test_barrier_sleeps_where_ranks_outnumber_cores(comm, monkeypatch):
    other = comm.Dup()  # a communicator whose layout has not been asked for
    monkeypatch.setattr(cores, "affinity", lambda: frozenset([0]))
    assert mpi.oversubscribed(other) == (comm.size > 1)
    if comm.size > 1:
        comm.Barrier()
        busy = time.process_time()
        if comm.rank == 0:
            time.sleep(0.3)
        mpi.barrier(other)
        assert time.process_time() - busy < 0.15
    other.Free()


def test_threads_share_divides_the_nodes_cores(comm, monkeypatch):
    for mine, quota, expected in [
        (frozenset(range(8)), float("inf"), 8 // comm.size),
        (frozenset(range(8)), 4.0, 4 // comm.size),
        (frozenset([comm.rank * 2, comm.rank * 2 + 1]), float("inf"), 2),  # bound to cores of its own
        (frozenset([0]), float("inf"), 1),
    ]:
        monkeypatch.setattr(cores, "affinity", lambda mine=mine: mine)
        monkeypatch.setattr(cores, "quota", lambda quota=quota: quota)
        other = comm.Dup()
        assert mpi.threads_share(other) == expected
        other.Free()


def test_node_holds_all_ranks_of_this_machine_and_is_made_once_and_rank_0_reports(comm):
    assert mpi.node(comm).Get_size() == comm.size
    assert mpi.node(comm) is mpi.node(comm)
    assert comm.allgather(exit_code.is_first()) == [rank == 0 for rank in range(comm.size)]


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 3 << 20])
def test_window_shares_bytes(comm, nbytes):
    shared, ranks = mpi.SharedWindow(mpi.node(comm), nbytes), range(comm.size)
    addresses, buffers = [shared.address(rank) for rank in ranks], [shared.buffer(rank) for rank in ranks]
    assert len({*addresses}) == comm.size and not any(address % 64 for address in addresses)
    assert all(each.dtype == np.uint8 and each.size == nbytes and not each.any() for each in buffers)
    comm.Barrier()
    buffers[comm.rank][:] = comm.rank + 1
    shared.sync()
    comm.Barrier()
    shared.sync()
    assert all((each == rank + 1).all() for rank, each in enumerate(buffers))
    del buffers
    shared.free()
    shared.free()
    with pytest.raises(ValueError, match="freed"):
        shared.address(0)


def test_window_that_does_not_fit_is_refused_on_all_ranks_with_both_numbers(
    comm, monkeypatch, no_segments_left
):
    with pytest.raises(InputError, match=rf"need {1024 * comm.size:.1f} TiB .* is .* [GT]iB"):
        mpi.SharedWindow(mpi.node(comm), 1 << 50)
    monkeypatch.setattr(mpi, "free_shared", lambda: 3 << 20)
    with pytest.raises(InputError, match=r"free space of /dev/shm is 3\.0 MiB"):
        mpi.SharedWindow(mpi.node(comm), 4 << 20)


PROMISES = ["MGG_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]


@pytest.mark.parametrize("name", PROMISES)
def test_world_of_another_size_than_promised_is_refused(comm, monkeypatch, name):
    for other in PROMISES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, str(comm.size + 1))
    with pytest.raises(InputError, match=f"started {comm.size + 1} ranks .* has {comm.size}: Python loads"):
        mpi.world()
    monkeypatch.setenv(name, str(comm.size))
    assert mpi.world() == comm
