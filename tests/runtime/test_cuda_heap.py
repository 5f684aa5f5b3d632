"""How much symmetric memory a job takes of each GPU, what is said where there is less, and how a block is cut up."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import numpy as np
import pytest
from gpu.pes.engine import HostArrays

from mgg_hpc.errors import InputError
from mgg_hpc.plan.cuda_grid import Limits
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.backends.cuda import heap
from mgg_hpc.runtime.backends.cuda.heap import RankGpu, mapped_bytes
from mgg_hpc.runtime.backends.cuda.nvshmem import SymmetricMemory

MIB = 1 << 20
H200 = Limits("H200", 132, 1024, 2048, 32, 227 << 10, 228 << 10, 1024)


@pytest.fixture
def environment(monkeypatch):
    """The environment, empty."""
    monkeypatch.setattr(os, "environ", {})
    return os.environ


@pytest.mark.parametrize(
    ("mib", "first", "later"),
    [  # of a block: mapped in MiB with NVSHMEM's own granule, and once it runs
        (0.001, 1024, 512),
        (512, 1024, 512),
        (512.001, 1536, 1024),
        (60_000, 60_928, 60_416),
    ],
)
def test_memory_is_mapped_in_granules(environment, mib, first, later):
    """And what is announced for a block has room for it."""
    nbytes = round(mib * MIB)
    assert mapped_bytes(nbytes, started=False) == first * MIB
    assert mapped_bytes(nbytes, started=True) == later * MIB
    heap.set_sizes(first * MIB)
    heap.check_limit(nbytes, growing=False)
    with pytest.raises(InputError, match="NVSHMEM_SYMMETRIC_SIZE allows"):
        heap.check_limit(nbytes + heap.GRANULE, growing=False)


@pytest.mark.parametrize(
    ("ps", "far_ps", "dist", "mib"),
    # 4 rings x 132 x (2048 lanes x 32 B x dist, at most the 228 KiB of shared memory) x ps
    [(16, None, 4, 1881), (16, 4, 4, 470.25), (1, None, 1, 33), (1, 16, 16, 1881)],
)
def test_rings_of_what_comes_over_a_network(ps, far_ps, dist, mib):
    taken = heap.network_bytes(100 * MIB, H200, Geometry(ps, dist, 8, far_ps))
    assert taken == round((100 + mib) * MIB)


def places(*of: tuple[int, float] | tuple[int, float, int]) -> list[RankGpu]:
    """GPUs by number and free GiB, on the first node or another."""
    return [
        RankGpu((more[0] if more else 0, f"0000:{number:02x}:00.0"), "NVIDIA H200", round(free * 2**30))
        for number, free, *more in of
    ]


@pytest.mark.parametrize(
    ("places", "gib", "said"),
    [
        (places((1, 10), (2, 10)), 10, None),
        (
            places((1, 10), (2, 9.99)),
            10,
            "rank 1's NVIDIA H200 needs 10.0 GiB of symmetric memory, and has 10.0",
        ),
        (places((1, 10), (1, 10)), 5, None),
        (
            places((1, 10), (1, 10)),
            5.5,
            "rank 0's NVIDIA H200 needs 11.0 GiB of symmetric memory for the 2 ranks",
        ),
        (places((1, 10), (1, 10, 1)), 10, None),  # the same place on another node
        (places((1, 40), (2, 80), (2, 80)), 50, "rank 0's NVIDIA H200 needs 50.0 GiB"),
    ],
)
def test_what_does_not_fit_is_said_with_both_numbers_and_the_largest_rank(places, gib, said):
    found = heap.lack_of_room(round(gib * 2**30), places, 7)
    if said is None:
        assert found is None
    else:
        assert found.startswith(said) and "as large as that of rank 7, the largest" in found


def test_nvshmem_is_told_the_size_unless_the_user_has(environment):
    heap.set_sizes(3 << 30)
    assert (environment[heap.SIZE], environment.pop(heap.MOST)) == (str(3 << 30), str(128 << 30))
    environment[heap.SIZE] = "1G"
    heap.set_sizes(100 << 30)
    assert (environment[heap.SIZE], environment[heap.MOST]) == ("1G", str(200 << 30))


def test_more_than_the_heap_may_have_is_refused_before_nvshmem_is_asked(environment):
    """A heap that does not grow has what was announced at the start, less a granule."""
    environment |= {heap.SIZE: str((512 << 20) + 65536), heap.MOST: "1g"}
    module = Allocator()
    memory = SymmetricMemory(module, HostArrays(), grows=False)
    memory.reserve(40_000)
    with pytest.raises(InputError, match=r"NVSHMEM_SYMMETRIC_SIZE allows 0\.0 GiB"):
        memory.reserve(40_000)
    assert len(module.blocks) == 1
    memory.grows = True
    memory.reserve(40_000)
    assert memory.held == 80_000
    environment[heap.MOST] = "many"
    with pytest.raises(InputError, match='NVSHMEM_MAX_MEMORY_PER_GPU = "many": expected bytes'):
        memory.reserve(1)


@pytest.mark.parametrize(
    ("device", "disabled", "others", "wanted"),
    [(True, "0", True, True), (False, "0", True, False), (True, "1", True, False), (True, "0", False, False)],
)
def test_the_heap_grows_where_all_gpus_have_vmm_and_it_is_not_disabled(
    environment, monkeypatch, device, disabled, others, wanted
):
    environment[heap.NO_VMM] = disabled
    monkeypatch.setattr(heap.mpi, "agree", lambda comm: contextlib.nullcontext())
    comm = SimpleNamespace(allgather=lambda mine: [mine, others])
    assert heap.grows(comm, SimpleNamespace(virtual_memory=lambda: device)) == wanted


class Allocator:
    """NVSHMEM's, over the host's memory."""

    def __init__(self):
        self.blocks = {}

    def nvshmem_allocate(self, nbytes):
        block = np.zeros(nbytes + 512, np.uint8)
        at = -(-block.ctypes.data // 512) * 512
        self.blocks[at] = (block, nbytes)
        return at

    def nvshmem_release(self, address):
        del self.blocks[address]


def test_arrays_are_cut_from_the_block_and_do_not_overlap(rng):
    """Beyond it each is allocated by itself."""
    module = Allocator()
    memory = SymmetricMemory(module, HostArrays(), grows=True)
    memory.reserve(100_000)
    sizes = [int(size) for size in rng.integers(0, 9000, 40)]
    arrays = [memory.zeros(size) for size in sizes]
    inside = 0
    for number, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
        assert memory.address(array) % 512 == 0 and len(array) >= size and not array.any()
        array[:] = number
        at = memory.address(array)
        block, held = next((b, n) for b, (_, n) in module.blocks.items() if b <= at < b + n)
        assert at + len(array) <= block + held
        inside += held == 100_000
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert 0 < inside < len(arrays) and len(module.blocks) == 1 + len(arrays) - inside
    memory.release()
    assert not module.blocks and memory.left == 0
