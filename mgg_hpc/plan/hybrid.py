"""Plans of hybrid mini-batches: which batches the CPU prepares, and which ones the device (MorphGL, Zhang et al.).

A batch takes one of two routes: the CPU prepares it, and it is copied over the link; or the device prepares it, and
occupies the link as well. The device trains on all batches. Two buffers hold batches that wait. An epoch is a sequence
of overlaps (the paper's Algorithms 1 to 4) with three stages:

    filling     the device prepares ``device`` batches, while the CPU prepares its own
    blocking    ``extra`` times, the device trains on a batch of its own and prepares another one
    flushing    the device trains on its batches; each one that ends makes room for one of ``cpu`` batches to be copied,
                on which it trains then, while the CPU prepares batches of the next overlap

Batches are numbered in the order in which they are trained on, so losses do not depend on the plan.

Three things differ from the paper. Extra batches are part of the plan and do not depend on the clock. Algorithm 1 stops
when either side has no batches left; here overlaps of half as many batches, and again half, end the epoch, since the
CPU has nothing to do while the last buffer is flushed. The size of the CPU's buffer is device / x, as in the paper's
Table VII; its text multiplies.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

MOST = 40, 10  # batches in the buffers of CPU and device; the paper's largest are 30 and 10
ALIKE = 1.001  # plans up to so many times as slow as the fastest count as equal: the largest buffers decide
GAIN = 0.01  # share of the time that two routes must save over one
NEAR = 4  # batches by which the search for the last overlaps may be wrong
NS = 1e-9  # times are simulated in whole nanoseconds, so that sums are exact


@dataclass(frozen=True)
class Phases:
    """Seconds of a batch's phases.

    cpu: one of ``workers`` threads of the CPU prepares it (the paper's T_CB is cpu / workers). copy: it crosses the
    link (T_DMA). device: the device prepares it and reads its rows over the link (T_GB). train: a training step (T_M).
    """

    cpu: float
    copy: float
    device: float
    train: float
    workers: int = 1

    def __post_init__(self) -> None:
        times = self.cpu, self.copy, self.device, self.train
        if not all(0 <= each < 1e6 for each in times) or not self.cpu or not self.train or self.workers < 1:
            raise ValueError(f"phases of a batch are positive seconds: {self}")

    @property
    def each(self) -> float:
        """Seconds that the CPU takes per batch if all of its workers prepare batches."""
        return self.cpu / self.workers


class Overlap(NamedTuple):
    """Numbers of batches in one overlap, the unit of a plan (see above).

    cpu: prepared by the CPU. device: prepared by the device in the first stage. extra: prepared and trained on
    by the device in the second stage, while the CPU's batches are not ready.
    """

    cpu: int
    device: int
    extra: int = 0


@dataclass(frozen=True)
class Plan:
    """The overlaps of an epoch, each with how often it is repeated, and its simulated time.

    name: "cpu" or "device" if one side prepares all batches, "sequential" if one thread of the CPU does and
    nothing overlaps, else "hybrid". buffers: numbers of batches that wait in the buffers of CPU and device;
    each worker and the device hold one more. A CPU without a buffer waits for room on the device before it
    prepares a batch.
    """

    name: str
    phases: Phases
    overlaps: tuple[tuple[int, Overlap], ...]
    buffers: tuple[int, int]
    seconds: float

    @property
    def batches(self) -> int:
        """Number of batches of the epoch."""
        return sum(times * sum(each) for times, each in self.overlaps)

    @property
    def on_cpu(self) -> int:
        """Number of batches that the CPU prepares."""
        return sum(times * each.cpu for times, each in self.overlaps)

    @property
    def on_device(self) -> int:
        """Number of batches that the device prepares."""
        return self.batches - self.on_cpu

    @property
    def busy(self) -> dict[str, float]:
        """Share of the epoch in which CPU, link and device work."""
        phases, ours, theirs = self.phases, self.on_cpu, self.on_device
        seconds = {
            "cpu": ours * phases.each,
            "link": ours * phases.copy + theirs * phases.device,
            "device": self.batches * phases.train + theirs * phases.device,
        }
        return {name: each / self.seconds if self.seconds else 0.0 for name, each in seconds.items()}

    def each(self) -> Iterator[Overlap]:
        """Yield the overlaps one after another."""
        for times, overlap in self.overlaps:
            yield from itertools.repeat(overlap, times)

    def program(self, first: int = 0) -> Iterator[tuple[bool, int]]:
        """Yield what the device does, in order: (True, number of a batch to prepare), (False, one to train on).

        first: number of the first batch.
        """
        for overlap in self.each():
            for number in range(first, first + overlap.device):
                yield True, number
            for number in range(first, first + overlap.extra):
                yield False, number
                yield True, number + overlap.device
            for number in range(first + overlap.extra, first + sum(overlap)):
                yield False, number
            first += sum(overlap)

    def of_cpu(self, first: int = 0) -> Iterator[int]:
        """Yield the numbers, from ``first`` on, of the batches that the CPU prepares, in order."""
        for overlap in self.each():
            first += sum(overlap)
            yield from range(first - overlap.cpu, first)


def start(phases: Phases) -> float:
    """Return the ratio of the device's to the CPU's batches that would take the least time in theory.

    It assumes unlimited buffers and divisible batches. This is the paper's x by Equation 6, with all of the
    device's preparation in place of its transfer, as in the proof of Theorem 2. The function is monotone
    between the points where its pieces meet, so one of these, 0 or infinity is best.
    """
    cpu, copy, device, train = phases.each, phases.copy, phases.device, phases.train

    def time(x: float) -> float:
        return (x * device + max(copy, (1 + x) * train, cpu - x * device)) / (1 + x)

    meets = [copy / train - 1, (cpu - train) / (device + train), (cpu - copy) / device if device else 0.0]
    best = min([0.0, *(x for x in meets if x > 0)], key=time)
    return math.inf if device + train < time(best) else best


def bound(phases: Phases, batches: int) -> float:
    """Return a lower bound of the seconds of any plan: the busiest of device, link and CPU for the best division."""
    theirs = np.arange(batches + 1)
    ours, prepared = batches - theirs, theirs * phases.device
    device, link = batches * phases.train + prepared, prepared + ours * phases.copy
    return float(np.maximum(np.maximum(device, link), ours * phases.each).min())


class _Clock:
    """Simulated times at which CPU, link and device are free, and until when slots of the buffers are held.

    One overlap maps the times before it to those after it by sums and maxima alone. Such a map is convex in each of its
    results. So where it adds the same times to a state and to one that lies m such additions later, it does so to all
    states between: `run` skips these, and finds m by bisection.
    """

    def __init__(self, phases: Phases, buffers: tuple[int, int]) -> None:
        times = (phases.cpu, phases.copy, phases.device, phases.train)
        self._times = tuple(round(each / NS) for each in times)
        # Of each worker, of the copies and of the steps that free the slots of the next batches; link and device.
        self._sizes = phases.workers, buffers[0] + phases.workers, buffers[1] + 1
        self._overlaps = buffers[0] > 0
        self.state = [0] * (sum(self._sizes) + 2)

    def run(self, overlaps: Iterable[tuple[int, Overlap]]) -> float:
        """Run overlaps, each as often as its number says; return the end of the last step."""
        for times, overlap in overlaps:
            self._repeat(overlap, times)
        return self.state[1] * NS

    def _repeat(self, overlap: Overlap, times: int) -> None:
        added: list[int] = []
        while times:
            before, state, self.state = added, self.state, self._mapped(self.state, overlap)
            added, times = [b - a for a, b in zip(state, self.state, strict=True)], times - 1
            if added == before and times:
                fits, beyond = 0, times + 1  # a state so many additions later
                while beyond - fits > 1:
                    middle = times if not fits and beyond > times else (fits + beyond) // 2
                    there = self._later(added, middle - 1)
                    if self._mapped(there, overlap) == self._later(added, middle):
                        fits = middle
                    else:
                        beyond = middle
                self.state, times = self._later(added, fits), times - fits

    def _later(self, added: Sequence[int], times: int) -> list[int]:
        return [at + times * more for at, more in zip(self.state, added, strict=True)]

    def _mapped(self, state: list[int], overlap: Overlap) -> list[int]:
        """Return the times after an overlap, whose activities begin as soon as they can.

        To prepare a batch, the CPU waits for a worker and for a slot, which the copy of an earlier batch frees. A copy
        waits for the link and for a slot, which a step frees. To prepare a batch, the device waits for the link.
        """
        prepare, copy, prepare_there, train = self._times
        workers, waiting, there = self._sizes
        link, device = state[:2]
        ready = state[2 : 2 + workers]
        copied = state[2 + workers : 2 + workers + waiting]
        trained = state[2 + workers + waiting :]
        begins = 0 if self._overlaps else device
        for i in range(overlap.cpu):
            ready.append(max(ready[i], copied[i], begins) + prepare)
        if overlap.device or overlap.extra:
            device = max(link, device) + overlap.device * prepare_there
            for _ in range(overlap.extra):
                trained.append(device + train)
                device += train + prepare_there
            link = device
        own = overlap.device + overlap.extra
        for i in range(overlap.device + overlap.cpu):
            if i < overlap.cpu:
                link = max(link, ready[workers + i], trained[own + i]) + copy
                copied.append(link)
            if i >= overlap.device:
                device = max(device, copied[waiting + i - overlap.device])
            device += train
            trained.append(device)
        return [link, device, *ready[-workers:], *copied[-waiting:], *trained[-there:]]


def simulate(phases: Phases, overlaps: Sequence[tuple[int, Overlap]], buffers: tuple[int, int]) -> float:
    """Return the seconds of an epoch of these overlaps, each with how often it is repeated."""
    return _Clock(phases, buffers).run(overlaps)


def static(phases: Phases, batches: int, buffers: tuple[int, int] = (2, 1)) -> list[Plan]:
    """Return the plans that mix no routes: "cpu" (a pipeline), "device", and "sequential"."""
    # Overlaps of a batch of each worker, so that the simulator sees that they repeat.
    times, left = divmod(batches, phases.workers)
    pipeline = (times, Overlap(phases.workers, 0)), (left, Overlap(1, 0))
    found = [
        ("cpu", phases, pipeline, buffers),
        ("device", phases, ((batches, Overlap(0, 1)),), buffers),
        ("sequential", replace(phases, workers=1), ((batches, Overlap(1, 0)),), (0, 0)),
    ]
    return [Plan(*each, simulate(*each[1:])) for each in found]


def dual(phases: Phases, batches: int, buffers: tuple[int, int]) -> Plan:
    """Return the plan "hybrid" whose overlaps fill buffers of given sizes.

    buffers: sizes of the buffers of CPU and device in batches, at least 1 each. In the first overlap the CPU's
    buffer is empty. The device trains on extra batches until that buffer is full. The last batches, fewer than
    two overlaps take, are divided between CPU and device so that the epoch takes the least time.
    """
    (cpu, device), clock = buffers, _Clock(phases, buffers)
    filling, turn = cpu * phases.each - device * phases.device, phases.train + phases.device
    begins = Overlap(cpu, device, max(0, int(filling // turn)))
    steady = Overlap(cpu, device, max(0, int((filling - (cpu + device) * phases.train) // turn)))
    overlaps = []
    if sum(begins) + sum(steady) <= batches:
        times = (batches - sum(begins)) // sum(steady) - 1  # what is left is one overlap to almost two
        overlaps = [(1, begins), (times, steady)]
    clock.run(overlaps)
    left, state = batches - sum(times * sum(each) for times, each in overlaps), clock.state

    @functools.cache
    def ended(ours: int) -> float:
        clock.state = state
        return clock.run(_halved(ours, left - ours, buffers))

    fewest, most = 0, left  # more of the CPU's take less time up to some number, and from there on more
    while fewest < most:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if ended(middle) <= ended(middle + 1) else (middle + 1, most)
    near = range(max(0, fewest - NEAR), min(left, fewest + NEAR) + 1)  # nearly so, as overlaps are whole
    ours = min(near, key=ended)
    overlaps += _halved(ours, left - ours, buffers)
    return Plan("hybrid", phases, tuple(overlaps), buffers, ended(ours))


def _halved(ours: int, theirs: int, buffers: tuple[int, int]) -> list[tuple[int, Overlap]]:
    """Divide the last batches into overlaps: one takes half of them, the next one half of the rest, and so on.

    ours, theirs: numbers of batches for the CPU and for the device. buffers: their sizes, the most in one
    overlap. Returns (how often it is repeated, overlap) pairs.
    """
    found = []
    while ours or theirs:
        overlap = Overlap(min(buffers[0], -(-ours // 2)), min(buffers[1], -(-theirs // 2)))
        sides = zip((ours, theirs), overlap, buffers, strict=False)
        # A side fills its buffer again while it has twice as many batches left.
        times = max(1, min(left // most - 1 if here == most else 1 for left, here, most in sides if here))
        found.append((times, overlap))
        ours, theirs = ours - times * overlap.cpu, theirs - times * overlap.device
    return found


def balanced(phases: Phases, batches: int, device: int, most: int) -> list[Plan]:
    """Return the plans that are tried for a device's buffer of ``device`` batches.

    The CPU's buffer, of 1 to ``most`` batches, begins with the number that `start` says. If the CPU is idle for
    longer than the device, it gets one more in each overlap, else one less, until each is idle for less than
    the device takes to prepare a batch, or a size would be tried again.
    """
    x = start(phases)
    cpu = min(most, max(1, int(device / x))) if x else most
    found: dict[int, Plan] = {}
    while 1 <= cpu <= most and cpu not in found:
        plan = found[cpu] = dual(phases, batches, (cpu, device))
        ours, theirs = plan.busy["cpu"], plan.busy["device"]
        if (1 - min(ours, theirs)) * plan.seconds < phases.device * sum(times for times, _ in plan.overlaps):
            break
        cpu += 1 if ours < theirs else -1
    return list(found.values())


@functools.lru_cache(8)
def plans(phases: Phases, batches: int, most: tuple[int, int] = MOST) -> dict[str, Plan]:
    """Return the plans of an epoch by name, the same dictionary each time.

    most: largest buffers of the CPU and of the device, at least 1 each. "hybrid" is the fastest plan with any
    sizes of buffers; of those that are nearly as fast, the one with the largest, which even out differences
    between batches.
    """
    found = {each.name: each for each in static(phases, batches, (min(2, most[0]), 1))}
    tried = [each for device in range(1, most[1] + 1) for each in balanced(phases, batches, device, most[0])]
    enough = ALIKE * min(each.seconds for each in tried)
    found["hybrid"] = max(
        (each for each in tried if each.seconds <= enough), key=lambda each: sum(each.buffers)
    )
    return found


def choose(found: dict[str, Plan]) -> Plan:
    """Return the fastest of these plans, "hybrid" if it saves at least GAIN."""
    return min(found.values(), key=lambda each: each.seconds / ((1 - GAIN) if each.name == "hybrid" else 1))
