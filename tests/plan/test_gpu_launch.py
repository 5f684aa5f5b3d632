"""Sizes of CUDA grids (OSDI '23, section 4) against numbers worked out by hand, and what a GPU cannot hold."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.plan import cuda_grid
from mgg_hpc.plan.cuda_grid import Limits
from mgg_hpc.plan.layout import RowFormat

A100 = Limits("A100", 108, 1024, 2048, 32, 166_912, 167_936, 1024)
SMALL = Limits("small", 4, 512, 1024, 16, 20_000, 40_000, 1000)
FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "dim", "shape"),
    [
        *((np.float32, dim, (lanes, 1)) for dim, lanes in [(1, 4), (16, 4), (17, 8), (64, 16), (65, 32)]),
        *((np.float32, dim, (32, packs)) for dim, packs in [(128, 1), (129, 2), (602, 2)]),
        (np.float16, 64, (8, 1)),
        (ml_dtypes.bfloat16, 256, (32, 1)),
    ],
)
def test_a_worker_has_lanes_for_a_whole_row_if_it_can(dtype, dim, shape):
    assert cuda_grid.shape(RowFormat(np.dtype(dtype), dim)) == shape


def test_the_equations_of_the_paper():
    """ps 16, dist 4, wpb 8, rows of 64 floats: two workers a warp; 1,000,000 local and 300,000 remote partitions."""
    made = cuda_grid.launch(
        "direct", 1_000_000, 300_000, RowFormat(FLOAT, 64), ps=16, dist=4, wpb=8, limits=A100
    )
    assert made.part_edges == 128
    assert made.warps == 125_000  # 1,000,000 / 4, two at a time
    assert made.blocks == 15_625
    assert made.blocks_per_multiprocessor == pytest.approx(15_625 / 108)
    assert made.threads == 256
    assert made.shared_bytes == 256 * 4 * 16 + 64 * 4 * 8  # four packs of 16 bytes a thread, and barriers
    assert made.resident == 8  # 2,048 threads


@pytest.mark.parametrize(
    ("parts", "dim", "blocks", "shared", "resident"),
    [
        ((10, 5000), 513, 1250, 128 * 2 * 64 + 32 * 4 * 8, 2),  # where rows are remote, of 40,000 bytes
        ((5000, 0), 513, 1250, 0, 8),  # 1,024 threads
        ((0, 0), 8, 1, 0, 8),  # without edges
    ],
)
def test_shared_memory_bounds_how_many_blocks_are_resident(parts, dim, blocks, shared, resident):
    made = cuda_grid.launch("direct", *parts, RowFormat(FLOAT, dim), ps=1, dist=1, wpb=4, limits=SMALL)
    assert (made.blocks, made.shared_bytes, made.resident) == (blocks, shared, resident)


@pytest.mark.parametrize(
    ("dim", "settings", "message"),
    [
        (64, {"wpb": 17}, "plan.wpb = 17: a block of 544 threads, but small takes 512; at most 16"),
        (256, {"wpb": 5}, "plan.wpb = 5: a block takes 21,760 bytes .*, .* has 20,000; at most 4"),
        (64, {"ps": 0}, "plan.ps = 0: expected 1 or more"),
        (64, {"dist": -1}, "plan.dist = -1: expected 1 or more"),
    ],
)
def test_what_the_device_cannot_hold_is_refused_with_both_numbers(dim, settings, message):
    asked = {"ps": 4, "dist": 2, "wpb": 2} | settings
    with pytest.raises(InputError, match=f"^{message}$"):
        cuda_grid.launch("direct", 100, 100, RowFormat(FLOAT, dim), **asked, limits=SMALL)


@pytest.mark.parametrize("limits", [A100, SMALL], ids=lambda limits: limits.name)
@pytest.mark.parametrize("dim", [1, 17, 33, 100, 128, 600])
@pytest.mark.parametrize("wpb", [1, 4, 8])
def test_the_default_of_ps_leaves_room_for_two_blocks(limits, dim, wpb):
    """With what CUDA takes of each block; and one row more would not fit, or would be more than is useful."""
    format, dist, most = RowFormat(FLOAT, dim), 2, 16
    ps = cuda_grid.fitting_ps(format, most=most, dist=dist, wpb=wpb, limits=limits)
    lanes, packs = cuda_grid.shape(format)

    def both(rows):
        taken = cuda_grid.stage_bytes(wpb * 32, lanes, packs, rows, dist) + limits.shared_reserved
        return 2 * taken <= limits.shared_per_multiprocessor

    assert 1 <= ps <= most
    assert both(ps) or ps == 1
    assert ps == most or not both(ps + 1)


def test_reads_over_a_link_take_as_many_blocks_as_it_has_requests_under_way(monkeypatch):
    """25.8 GB/s at 1.5 us are 303 requests of 128 bytes (Min, dissertation, section 3.3.2), a warp each."""
    assert cuda_grid.link_blocks(SMALL, 512) == 1  # 2 on each of 0.4
    assert cuda_grid.link_blocks(A100, 256) == 86  # a tenth, which are fewer than the 94 of PCIe 5.0
    monkeypatch.setattr(cuda_grid, "LINK_BANDWIDTH", 25.8e9)
    assert cuda_grid.link_blocks(A100, 256) == 38  # of 8 warps
    monkeypatch.setattr(cuda_grid, "LINK_SHARE", 0.02)
    assert cuda_grid.link_blocks(A100, 256) == 17  # 8 on each of 2.16 multiprocessors
