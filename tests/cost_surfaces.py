"""Made-up times of all settings of the search's knobs, and how near to the best of them a search comes.

    PYTHONPATH=tests python tests/cost_surfaces.py [SEARCHES]

prints, for each kind of surface, the share of so many searches (300) whose setting takes at most 1, 5 and 12 percent
more than the best of all, the largest excess, and the mean number of settings that were measured.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from mgg_hpc.errors import InputError
from mgg_hpc.plan import launch
from mgg_hpc.plan.launch import Limits
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.tune import Knob, Search, search
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.training.tuning.tuner import gpu_knobs

CPU = [Knob("wpb", (2, 4, 8, 16, 32, 64, 128, 256)), Knob("dist", (0, 4, 8, -1, 32, 64))]
GPU = [Knob("ps", (1, 2, 4, 8, 16, 32)), Knob("dist", (1, 2, 4, 8, 16)), Knob("wpb", (1, 2, 4, 8, 16))]
STARTS = {"cpu": (16, -1), "gpu": (16, 4, 8)}
KNOBS = {"cpu": CPU, "gpu": GPU}
KINDS = ("valley", "plateaus", "ties", "cliffs", "noise", "coupled")
MAKE = {"direct": launch.direct, "get": launch.get, "halo": launch.halo}


def surface(rng: np.random.Generator, knobs: Sequence[Knob], kind: str) -> dict[tuple[int, ...], float]:
    """Seconds of each setting: a valley in the places of the knobs' values, with what the kind adds.

    coupled: the valley of the second knob lies elsewhere for each value of the first one.
    """
    sizes = [len(knob.values) for knob in knobs]
    least = [rng.integers(size) for size in sizes]
    steep = rng.uniform(0.02, 0.3, len(knobs))
    slope = rng.choice([-1, 1])
    seconds = {}
    for places in itertools.product(*map(range, sizes)):
        away = np.abs(np.array(places) - least)
        if kind == "plateaus":
            away = np.maximum(0, away - 1)
        if kind == "coupled":
            away[1] = abs(places[1] - least[1] + slope * (places[0] - least[0]))
        value = 1 + float((steep * away).sum())
        if kind == "ties":
            value = 1 + round(value - 1, 1)
        if kind == "cliffs" and places[0] == sizes[0] - 1:
            value *= 4
        seconds[tuple(knob.values[place] for knob, place in zip(knobs, places, strict=True))] = value
    return seconds


class Clock:
    """Seconds of a launch on a GPU of random limits: waves of CUDA blocks, whose rows' latency resident warps hide."""

    def __init__(self, rng: np.random.Generator, transfer: str) -> None:
        width = int(rng.choice([16, 64, 256]))
        self.limits = Limits(
            "made up", int(rng.integers(40, 150)), 1024, 2048, 32, 227 << 10, 228 << 10, 1024
        )
        self.make, self.format = MAKE[transfer], RowFormat(np.dtype(np.float32), width)
        self.edges = int(rng.integers(1 << 20, 1 << 25))
        self.remote = self.edges * rng.uniform(0.05, 0.9)
        self.nodes = self.edges / rng.uniform(8, 60)
        self.latency, self.fixed = rng.uniform(0.5e-6, 3e-6), rng.uniform(50, 3000)  # s; bytes a block
        self.bandwidth = rng.uniform(1e12, 4e12)
        ps = launch.fitting_ps(self.format, most=16, dist=4, wpb=8, limits=self.limits)
        self.start, self.knobs = (ps, 4, 8), gpu_knobs(Geometry(ps, 4, 8))

    def every(self) -> list[tuple[int, ...]]:
        """All settings that fit."""
        return [each for each in itertools.product(*(knob.values for knob in self.knobs)) if self.fits(each)]

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


@dataclass(frozen=True)
class Found:
    """Result of a search. over_best, over_start: its setting's time over the best one's and the start's, less 1."""

    search: Search
    over_best: float
    over_start: float


def found(search: Search, seconds: Mapping[tuple[int, ...], float]) -> Found:
    """Compare a search that has ended with the times of all settings."""
    taken = seconds[search.best]
    return Found(search, taken / min(seconds.values()) - 1, taken / seconds[tuple(search.start)] - 1)


def least_share(share: float, count: int) -> float:
    """Return the share of ``count`` draws that is undercut once in a million times, if each counts with this chance."""
    return float(binom.ppf(1e-6, count, share)) / count


def over_surface(rng: np.random.Generator, device: str, kind: str) -> Found:
    """Search a surface drawn at random for a device's knobs."""
    seconds = surface(rng, KNOBS[device], kind)
    noise = 0.01 if kind == "noise" else 0.0
    ended = search(KNOBS[device], lambda at: seconds[at] * (1 + noise * rng.exponential()), STARTS[device])
    return found(ended, seconds)


def over_clock(rng: np.random.Generator, transfer: str) -> Found:
    """Search by a clock drawn at random."""
    clock = Clock(rng, transfer)
    ended = search(clock.knobs, clock.seconds, clock.start, allowed=clock.fits)
    return found(ended, {each: clock.seconds(each) for each in clock.every()})


def main(searches: int) -> None:
    """Print the table."""
    print(f"{'surface':<22}{'<= 1%':>8}{'<= 5%':>8}{'<= 12%':>8}{'most':>8}{'points':>8}")
    rows = {
        **{f"{device}, {kind}": (over_surface, device, kind) for device in KNOBS for kind in KINDS},
        **{f"launches of {transfer}": (over_clock, transfer) for transfer in MAKE},
    }
    for name, (draw, *what) in rows.items():
        rng = np.random.default_rng(0)
        ends = [draw(rng, *what) for _ in range(searches)]
        excess = np.array([each.over_best for each in ends])
        shares = "".join(f"{np.mean(excess <= most):8.1%}" for most in (0.01, 0.05, 0.12))
        points = np.mean([each.search.points for each in ends])
        print(f"{name:<22}{shares}{excess.max():8.1%}{points:8.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
