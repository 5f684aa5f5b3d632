"""Made-up times of all settings of the search's knobs, and how near to the best of them a search comes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from mgg_hpc.errors import InputError
from mgg_hpc.plan import cuda_grid
from mgg_hpc.plan.cuda_grid import Limits
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.tune import MOST_POINTS, Knob, Search, Setting
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.training.tuning.tuner import gpu_knobs

CPU = [Knob("wpb", (2, 4, 8, 16, 32, 64, 128, 256)), Knob("dist", (0, 4, 8, -1, 32, 64))]
GPU = [Knob("ps", (1, 2, 4, 8, 16, 32)), Knob("dist", (1, 2, 4, 8, 16)), Knob("wpb", (1, 2, 4, 8, 16))]
STARTS = {"cpu": (16, -1), "gpu": (16, 4, 8)}
KNOBS = {"cpu": CPU, "gpu": GPU}
KINDS = ("valley", "plateaus", "ties", "cliffs", "noise", "coupled")


def search(
    knobs: Sequence[Knob],
    measure: Callable[[Setting], float],
    start: Setting,
    allowed: Callable[[Setting], bool] = lambda setting: True,
    most: int = MOST_POINTS,
) -> Search:
    """A search that has ended, whose settings take the seconds that ``measure`` returns."""
    found = Search(knobs, start, allowed, most)
    while found.setting is not None:
        found.tell(measure(found.setting))
    return found


def surface(rng: np.random.Generator, knobs: Sequence[Knob], kind: str) -> dict[tuple[int, ...], float]:
    """Seconds of each setting: a valley in the places of the knobs' values, with what the kind adds.

    coupled: the valley of the second knob lies elsewhere for each value of the first one.
    """
    sizes = [len(knob.values) for knob in knobs]
    places = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1).reshape(-1, len(knobs))
    least, steep = [rng.integers(size) for size in sizes], rng.uniform(0.02, 0.3, len(knobs))
    away = np.abs(places - least)
    if kind == "plateaus":
        away = np.maximum(0, away - 1)
    if kind == "coupled":
        away[:, 1] = np.abs(places[:, 1] - least[1] + rng.choice([-1, 1]) * (places[:, 0] - least[0]))
    seconds = 1 + away @ steep
    if kind == "ties":
        seconds = seconds.round(1)
    if kind == "cliffs":
        seconds[places[:, 0] == sizes[0] - 1] *= 4
    settings = itertools.product(*(knob.values for knob in knobs))
    return dict(zip(settings, seconds.tolist(), strict=True))


class Clock:
    """Seconds of a launch on a GPU of random limits: waves of CUDA blocks, whose rows' latency resident warps hide."""

    def __init__(self, rng: np.random.Generator, transfer: str) -> None:
        width = int(rng.choice([16, 64, 256]))
        self.limits = Limits(
            "made up", int(rng.integers(40, 150)), 1024, 2048, 32, 227 << 10, 228 << 10, 1024
        )
        self.transfer, self.format = transfer, RowFormat(np.dtype(np.float32), width)
        self.edges = int(rng.integers(1 << 20, 1 << 25))
        self.remote = self.edges * rng.uniform(0.05, 0.9)
        self.nodes = self.edges / rng.uniform(8, 60)
        self.latency, self.fixed = rng.uniform(0.5e-6, 3e-6), rng.uniform(50, 3000)  # s; bytes a block
        self.bandwidth = rng.uniform(1e12, 4e12)
        ps = cuda_grid.fitting_ps(self.format, most=16, dist=4, wpb=8, limits=self.limits)
        self.start, self.knobs = (ps, 4, 8), gpu_knobs(Geometry(ps, 4, 8))

    def fits(self, setting: tuple[int, ...]) -> bool:
        try:
            return self.seconds(setting) > 0
        except InputError:
            return False

    def seconds(self, setting: tuple[int, ...]) -> float:
        ps, dist, wpb = setting
        parts = [int(count / ps + self.nodes / 2) for count in (self.edges - self.remote, self.remote)]
        knobs = {"ps": ps, "dist": dist, "wpb": wpb}
        made = cuda_grid.launch(self.transfer, *parts, self.format, **knobs, limits=self.limits)
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
    every = filter(clock.fits, itertools.product(*(knob.values for knob in clock.knobs)))
    return found(ended, {each: clock.seconds(each) for each in every})
