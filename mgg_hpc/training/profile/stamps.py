"""The rounds of halo exchanges as events of a Chrome trace, from the stamps that exchanges on CPUs keep.

Events have the category "exchange": "halo: push round r to rank p" from the moment that this rank had pushed the round
before it, and "halo: wait for round r". args: call, which counts exchanges and is the same on all ranks; round; to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CATEGORY = "exchange"
PUSH, WAIT = "halo: push round", "halo: wait for round"
LINES = 1_000_000  # added to the number of a thread: lines of a trace that are not threads


@dataclass(frozen=True)
class Stamps:
    """Times of one exchange, in seconds of the monotonic clock, as `HaloExchange.stamps` has them.

    waits, arrived: float64 [rounds]. pushed: float64 [rounds, P], 0 where nothing is pushed.
    """

    began: float
    ended: float
    waits: np.ndarray
    arrived: np.ndarray
    pushed: np.ndarray


def unpacked(values: Sequence[float], rounds: int, ranks: int) -> Stamps:
    """Take apart what an exchange among so many ranks has kept."""
    waits, arrived, pushed = np.split(np.array(values[2:]), [rounds, 2 * rounds])
    return Stamps(values[0], values[1], waits, arrived, pushed.reshape(rounds, ranks))


def events(
    exchanges: Sequence[tuple[Any, Sequence[float]]], ranks: int, offset: float, base: float, process: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of exchanges. exchanges: of `Meter.exchanges`. offset: seconds from the monotonic clock to
    Unix time. base: Unix time in seconds at which the trace begins. process: number of this rank's process."""

    def event(name: str, line: int, began: float, ended: float, **about: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": CATEGORY,
            "name": name,
            "pid": process,
            "tid": LINES + line,
            "ts": (began + offset - base) * 1e6,
            "dur": (ended - began) * 1e6,
            "args": about,
        }

    for line, name in enumerate(("halo: pushes", "halo: waits")):
        about = {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": LINES + line,
            "args": {"name": name},
        }
        yield about
    for call, (plan, values) in enumerate(exchanges):
        found = unpacked(values, plan.lists.rounds, ranks)
        before = found.began
        for round_, (wait, arrived, pushed) in enumerate(
            zip(found.waits, found.arrived, found.pushed, strict=True)
        ):
            for to in np.flatnonzero(pushed):
                name = f"{PUSH} {round_ + 1} to rank {to}"
                yield event(name, 0, before, pushed[to], call=call, round=round_, to=int(to))
            before = max(before, pushed.max())
            yield event(f"{WAIT} {round_ + 1}", 1, wait, arrived, call=call, round=round_)
