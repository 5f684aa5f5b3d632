"""Take measurements in turn, and summarise them by minimum, median and maximum."""

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
    """Call all functions in turn, ``repeats`` times (A B C, A B C, ...); return the results of each by name.

    In this order, whatever slows the machine down for a while affects all of them. repeats: number of calls, of
    all functions or by name. pause: seconds to wait before each call.
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
    """Return the minimum, median and maximum of values, as {"min", "median", "max"}."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Return the minimum, median and maximum (`spread`) of the ratios slow[i] / fast[i]."""
    return spread([s / f for s, f in zip(slow, fast, strict=True)])
