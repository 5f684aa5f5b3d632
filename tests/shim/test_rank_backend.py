"""What a rank's backend on a GPU decides by what NVSHMEM and the nodes are: launches, the heap's size, warnings."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from types import SimpleNamespace

import cases
import numpy as np
import pytest
from gpu.pes.engine import SMALL
from gpu.pes.played import Played

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.cuda import heap
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda.nvshmem import SIDE_BY_SIDE
from mgg_hpc.runtime.device import GpuAssignment
from mgg_hpc.training.tuning.tuner import gpu_knobs

MIB = 1 << 20


class Comm:
    """Two ranks that say the same."""

    rank, size = 0, 2

    def Get_rank(self):  # noqa: N802
        return 0

    def allgather(self, value):
        return [value, value]


@pytest.fixture
def made(engine, monkeypatch):
    """made(ranks_here, ranks_on_gpu): a backend of rank 0, with what it has NVSHMEM announce and reserve."""

    def make(ranks_here, ranks_on_gpu, shared_gpu="", grows=True):
        seen = SimpleNamespace(announced=[], reserved=[], checked=[])
        peers = SimpleNamespace(shared_gpu=shared_gpu)
        peers.memory = SimpleNamespace(held=0, left=0, reserve=seen.reserved.append, grows=grows)
        monkeypatch.setattr(cuda_rank.mpi, "node", lambda comm: SimpleNamespace(size=ranks_here))
        monkeypatch.setattr(cuda_rank.mpi, "agree", lambda comm: contextlib.nullcontext())
        monkeypatch.setattr(heap, "check", lambda *given: seen.checked.append(given))
        monkeypatch.setattr(heap, "grows", lambda comm, module: grows)
        monkeypatch.setattr(
            cuda_rank, "_peers", lambda comm, gpu, mapped: seen.announced.append(mapped) or peers
        )
        gpu = cuda_rank.Gpu(GpuAssignment(0, "u", "p", ranks_on_gpu), engine.module, engine.arrays, False)
        backend = cuda_rank.RankBackend(Comm(), gpu, Options(SMALL))
        monkeypatch.setattr(backend, "join", lambda peers: None)
        backend.has_gets = ranks_here < 2
        return backend, seen

    return make


def test_a_halo_beside_another_ranks_is_not_launched_cooperatively(rng, engine, made):
    """Under MPS a rank sees its own part of the GPU only, and yet is not alone on it."""
    case = cases.ordinary(rng, 2)
    played = Played(engine, case, rng.standard_normal((case.nodes, 5)).astype(np.float32), transfer="halo")
    backend, plan = played.backends[0], played.plans[0]
    launch = backend.launch(plan, played.format)
    backend.native = SimpleNamespace(Halo=lambda pushers, claim, fixed, slots, alone, *stamps: alone)
    for ranks in (1, 2):
        real, _ = made(2, ranks, SIDE_BY_SIDE)
        real.memory.reserve(MIB)
        assert real.share == 1.0
        backend.share, backend.alone = real.share, real.alone
        assert backend.halo(plan)._halo(backend, plan, played.format, launch) == (ranks == 1)


def test_the_default_ps_is_the_least_of_all_gpus(engine, monkeypatch):
    """Else ranks with other GPUs would search other values, and one may know what the others still search."""
    monkeypatch.setattr(cuda_rank.mpi, "agree", lambda comm: contextlib.nullcontext())
    gpu = cuda_rank.Gpu(GpuAssignment(0, "u", "p", 1), engine.module, engine.arrays, False)
    said = []

    class Smaller(Comm):
        def allgather(self, value):
            said.append(value)
            return [value, value - 1]

    def ps(**knobs):
        made = cuda_rank.backend(Smaller(), gpu, 1, RowFormat(np.dtype(np.float32), 64), True, knobs)
        return made.options.geometry.ps

    assert ps() == said[0] - 1 > 0
    assert ps(ps=99) == 99


def test_over_nodes_the_larger_heap_is_announced_at_the_start(made):
    """Some heaps cannot grow once it is known that pointers do not lead everywhere."""
    near, near_seen = made(2, 1)
    near.memory.reserve(600 * MIB)
    far, far_seen = made(1, 1)
    far.memory.reserve(600 * MIB)
    need = 600 * MIB + heap.SMALL
    assert near_seen.reserved == [need]
    assert (
        far_seen.reserved
        == [need + heap.network_bytes(need, far.limits, far.geometry)]
        == [need + far.memory.overhead(600 * MIB) - heap.SMALL]
    )
    for seen in (near_seen, far_seen):
        assert seen.announced[0] >= seen.reserved[0]
    assert far_seen.announced[0] > near_seen.announced[0]


def test_symmetric_memory_is_reserved_for_the_largest_geometry_of_a_search(made, rng, engine):
    """And the ring of `get` has room for each of them."""
    reserved = {}
    for searches in (False, True):
        backend, seen = made(1, 1)
        backend.options = Options(Geometry(3, 1, 2, 2), searches=searches)
        backend.memory.reserve(600 * MIB)
        reserved[searches] = seen.reserved[0] - 2 * (600 * MIB + heap.SMALL)
    assert reserved[True] > reserved[False] > 0
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 40)).astype(np.float32)
    for searches in (False, True):
        played = Played(engine, case, x, SMALL, "get", lambda a, b: a == b, searches=searches)
        backend, plan = played.backends[0], played.plans[0]
        refused = 0
        for knobs in itertools.product(*(knob.values for knob in gpu_knobs(SMALL, far=True))):
            try:
                backend.check_fits(plan, played.format, Geometry(*knobs))
            except InputError as error:
                refused += "larger than the ring" in str(error)
        assert (refused == 0) == searches


def test_a_heap_that_does_not_grow_is_as_large_as_it_may_have_to_be(made, monkeypatch):
    """Its memory is taken when NVSHMEM starts, so what is free is not looked at once more."""
    backend, seen = made(2, 1, grows=False)
    monkeypatch.setenv(heap.SIZE, str(2 << 30))
    backend.memory.reserve(600 * MIB)
    need = 600 * MIB + heap.SMALL
    most = need + heap.network_bytes(need, backend.limits, backend.geometry)
    assert seen.reserved == [need] and seen.announced == [heap.mapped_bytes(most, started=False)]
    assert len(seen.checked) == 1
    with pytest.raises(InputError, match=r"NVSHMEM_SYMMETRIC_SIZE allows 1\.5 GiB"):
        backend.memory.reserve(1600 * MIB)
    growing, seen = made(2, 1)
    growing.memory.reserve(600 * MIB)
    assert len(seen.checked) == 2


def test_get_over_nodes_by_the_hosts_proxy_is_warned_of_once(made, monkeypatch):
    backend, _ = made(1, 1)
    monkeypatch.setattr(cuda_rank.DeviceBackend, "prepare", lambda *given: None)
    plan = SimpleNamespace(transfer="get")
    monkeypatch.delenv(heap.IBGDA, raising=False)
    with pytest.warns(UserWarning, match="NVSHMEM_IB_ENABLE_IBGDA=1"):
        backend.prepare(plan, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend.prepare(plan, None)
        monkeypatch.setenv(heap.IBGDA, "1")
        made(1, 1)[0].prepare(plan, None)
        monkeypatch.delenv(heap.IBGDA)
        made(2, 1)[0].prepare(plan, None)
