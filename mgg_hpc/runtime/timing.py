"""Interleaved measurements, and their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def interleaved(
    runs: Mapping[Name, Callable[[], Result]],
    repeats: int | Mapping[Name, int],
    *,
    pause: float = 0.0,
) -> dict[Name, list[Result]]:
    """Call all runs in turn, ``repeats`` times (A B C, A B C, ...), and return the results of each.

    What slows the machine for a while slows all of them. repeats: of all runs, or of each. pause: seconds before each
    call.
    """
    counts = repeats if isinstance(repeats, Mapping) else dict.fromkeys(runs, repeats)
    found: dict[Name, list[Result]] = {name: [] for name in runs}
    for repeat in range(max(counts.values(), default=0)):
        for name, measure in runs.items():
            if repeat < counts[name]:
                time.sleep(pause)
                found[name].append(measure())
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the minimum, the median and the maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Return the spread of slow / fast, pair by pair."""
    return spread([s / f for s, f in zip(slow, fast, strict=True)])
