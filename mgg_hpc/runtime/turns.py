"""The loop in which measurements that are compared take turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
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
    """Measure each run once per round (A B C, A B C, ...), and return what each call returned.

    What slows the machine for a while slows all of them. turns: rounds, of all or of each run. pause: seconds
    before each call. deadline: the time (`time.monotonic`) after which no round begins but the first.
    """
    rounds = turns if isinstance(turns, Mapping) else dict.fromkeys(runs, turns)
    taken: dict[Name, list[Result]] = {name: [] for name in runs}
    for turn in range(max(rounds.values(), default=0)):
        if turn and time.monotonic() > deadline:
            break
        for name, measure in runs.items():
            if turn < rounds[name]:
                time.sleep(pause)
                taken[name].append(measure())
    return taken
