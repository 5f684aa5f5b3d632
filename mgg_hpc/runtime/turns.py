"""The loop in which measurements that are compared take turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def take_turns(
    runs: Mapping[Name, Callable[[], Result]],
    turns: int | Mapping[Name, int],
    *,
    pause: float = 0.0,
    deadline: float = math.inf,
) -> dict[Name, list[Result]]:
    """Measure each run once per turn (A B C, A B C, ...), and return what each call returned.

    What slows the machine for a while slows all of them. turns: number of turns, of all runs or of each. pause: seconds
    before each call. deadline: the time (`time.monotonic`) after which no turn begins but the first.
    """
    counts = turns if isinstance(turns, Mapping) else dict.fromkeys(runs, turns)
    taken: dict[Name, list[Result]] = {name: [] for name in runs}
    for turn in range(max(counts.values(), default=0)):
        if turn and time.monotonic() > deadline:
            break
        for name, measure in runs.items():
            if turn < counts[name]:
                time.sleep(pause)
                taken[name].append(measure())
    return taken


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the minimum, the median and the maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Return the spread of slow / fast, turn by turn."""
    return spread([s / f for s, f in zip(slow, fast, strict=True)])
