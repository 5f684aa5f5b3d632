"""The search for a GPU's knobs by a made-up clock over the launch equations, and the knobs themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.plan import launch
from mgg_hpc.plan.launch import Limits
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.tune import MOST_POINTS, search
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry
from mgg_hpc.training.tuning.tuner import cpu_knobs, gpu_knobs

MAKE = {"direct": launch.direct, "get": launch.get, "halo": launch.halo}


class Clock:
    """Seconds of a launch on a GPU of random limits: waves of CUDA blocks, whose rows' latency resident warps hide."""

    def __init__(self, rng: np.random.Generator, transfer: str, width: int) -> None:
        self.limits = Limits(
            "made up", int(rng.integers(40, 150)), 1024, 2048, 32, 227 << 10, 228 << 10, 1024
        )
        self.make, self.format = MAKE[transfer], RowFormat(np.dtype(np.float32), width)
        self.edges = int(rng.integers(1 << 20, 1 << 25))
        self.remote = self.edges * rng.uniform(0.05, 0.9)
        self.nodes = self.edges / rng.uniform(8, 60)
        self.latency, self.fixed = rng.uniform(0.5e-6, 3e-6), rng.uniform(50, 3000)  # s; bytes a block
        self.bandwidth = rng.uniform(1e12, 4e12)

    def fits(self, setting: tuple[int, ...]) -> bool:
        try:
            self.seconds(setting)
        except InputError:
            return False
        return True

    def seconds(self, setting: tuple[int, ...]) -> float:
        ps, dist, wpb = setting
        parts = [int(count / ps + self.nodes / 2) for count in (self.edges - self.remote, self.remote)]
        made = self.make(*parts, self.format, ps=ps, dist=dist, wpb=wpb, limits=self.limits)
        at_once = max(1, made.resident) * self.limits.multiprocessors
        waves = np.ceil(made.blocks / at_once)
        block_bytes = (self.edges + self.nodes) * self.format.row_bytes / made.blocks + self.fixed * wpb
        flying = max(1, made.resident) * made.threads / made.lanes * min(dist, 4) * self.format.row_bytes
        rate = min(self.bandwidth / self.limits.multiprocessors, flying / self.latency)
        return float(waves * block_bytes * max(1, made.resident) / rate + made.part_edges * self.latency / 8)


@pytest.mark.parametrize("transfer", MAKE)
def test_the_search_on_a_gpu_is_near_the_best_of_all_settings(rng, transfer):
    losses = []
    for _ in range(60):
        clock = Clock(rng, transfer, int(rng.choice([16, 64, 256])))
        ps = launch.fitting_ps(clock.format, most=16, dist=4, wpb=8, limits=clock.limits)
        knobs = gpu_knobs(Geometry(ps, 4, 8))
        every = [each for each in itertools.product(*(knob.values for knob in knobs)) if clock.fits(each)]
        found = search(knobs, clock.seconds, (ps, 4, 8), allowed=clock.fits)
        assert found.points <= MOST_POINTS and clock.fits(found.best)
        assert clock.seconds(found.best) <= clock.seconds((ps, 4, 8))
        losses.append(clock.seconds(found.best) / min(map(clock.seconds, every)) - 1)
    # The last wave of blocks may be nearly empty, so times have other valleys beside the deepest one.
    assert np.mean(np.array(losses) <= 0.05) >= 0.8 and max(losses) < 0.25, np.sort(losses)[-10:]


def test_a_gpus_knobs_are_the_papers_in_its_order():
    assert [knob.name for knob in gpu_knobs(Geometry(16, 4, 8))] == ["ps", "dist", "wpb"]
    odd = gpu_knobs(Geometry(13, 3, 5))
    assert [value in knob.values for knob, value in zip(odd, (13, 3, 5), strict=True)] == [True] * 3


@pytest.mark.parametrize("width", [1, 16, 100, 700])
def test_a_cpus_knobs_are_blocks_of_powers_of_two_and_distances_around_the_default(width):
    format = RowFormat(np.dtype(np.float32), width)
    for default in (Geometry(256, BY_WIDTH, 16), Geometry(3, 5, 7)):
        wpb, dist = cpu_knobs(default, format)
        assert default.wpb in wpb.values and list(wpb.values) == sorted(set(wpb.values))
        blocks = [default.ps * value for value in wpb.values]
        assert min(blocks) <= 512 and max(blocks) >= 65536 - default.ps
        own = min(64, max(8, 8192 // format.row_bytes))
        shown = [own if value == BY_WIDTH else value for value in dist.values]
        assert shown == sorted(set(shown)) and default.dist in dist.values and 0 in shown and 4 * own in shown
