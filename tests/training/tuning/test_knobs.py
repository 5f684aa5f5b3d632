"""The knobs that a search moves."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry
from mgg_hpc.training.tuning.tuner import cpu_knobs, gpu_knobs


def test_a_gpus_knobs_are_the_papers_in_its_order_and_take_any_start():
    odd = gpu_knobs(Geometry(13, 3, 5))
    assert [knob.name for knob in odd] == ["ps", "dist", "wpb"]
    assert all(value in knob.values for knob, value in zip(odd, (13, 3, 5), strict=True))


@pytest.mark.parametrize("width", [1, 16, 100, 700])
def test_a_cpus_knobs_are_blocks_of_powers_of_two_and_distances_around_the_default(width):
    format = RowFormat(np.dtype(np.float32), width)
    for default in (Geometry(256, BY_WIDTH, 16), Geometry(3, 5, 7)):
        wpb, dist = cpu_knobs(default, format)
        assert default.wpb in wpb.values and list(wpb.values) == sorted(set(wpb.values))
        blocks = [default.ps * value for value in wpb.values]
        assert min(blocks) <= 512 and max(blocks) >= 65536 - default.ps
        own = min(256, max(8, 16384 // format.row_bytes))
        shown = [own if value == BY_WIDTH else value for value in dist.values]
        assert shown == sorted(set(shown)) and default.dist in dist.values and 0 in shown and 2 * own in shown
