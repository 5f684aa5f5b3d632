"""One epoch as lanes of bars for each rank, read from the traces of ``mgg train --profile``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...training.profile.phases import STAGES
from ...training.profile.stamps import CATEGORY, SEE, WAIT
from ...training.profile.trace import EPOCH

LARGEST_TRACE = 1 << 28  # bytes, unpacked
MOST_BARS = 2500  # of all timelines of a page, which stays small so; the longest are kept
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """A bar on a lane of a rank. begin, end: ms from the begin of the epoch."""

    rank: int
    lane: str
    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The bars of one epoch.

    ranks: the ranks that have a trace, in order. whole, longest: begin and end of the epoch and of the view of its
    longest exchange, in ms; longest is None where no exchange was traced.
    """

    epoch: int
    ranks: list[int]
    bars: list[Bar]
    whole: tuple[float, float]
    longest: tuple[float, float] | None


def read(traces: Sequence[tuple[int, Path]], timelines: int) -> Timeline | None:
    """Return the last epoch that all traces hold, or None if there is none. Raises InputError for a damaged trace.

    traces: ranks and the paths of their traces. timelines: the number of timelines on the page. Rows that arrive at a
    rank without a trace are left out.
    """
    ranks = [rank for rank, _ in traces]
    every = [_events(path) for _, path in traces]
    epochs = [_epochs(events) for events in every]
    both = set.intersection(*(set(each) for each in epochs)) if epochs else set()
    if not both:
        return None
    number = max(both)
    origin = min(each[number][0] for each in epochs)
    bars: list[Bar] = []
    for rank, events, found in zip(ranks, every, epochs, strict=True):
        first, last = found[number]
        inside = [each for each in events if first <= each["ts"] < last]
        bars += _stages(rank, inside, origin)
        bars += [
            _bar(rank, "kernels", _kernel(each), each, origin) for each in inside if each["cat"] in KERNELS
        ]
        bars += [_exchanged(rank, each, origin) for each in inside if each["cat"] == CATEGORY]
    shown = (bar for bar in bars if bar.rank in ranks)
    bars = sorted(shown, key=lambda bar: bar.begin - bar.end)[: MOST_BARS // timelines]
    end = max(each[number][1] for each in epochs)
    return Timeline(number, ranks, bars, (0.0, (end - origin) / 1e3), _longest(bars))


def _events(path: Path) -> list[Event]:
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST_TRACE + 1)
        if len(content) > LARGEST_TRACE:
            raise InputError(
                f"{path}: has more than {LARGEST_TRACE >> 20} MiB; profile fewer or smaller epochs"
            )
        found = json.loads(content)
        base = float(found.get("baseTimeNanoseconds", 0)) / 1e3  # each rank's own
        return [
            each | {"ts": base + float(each["ts"]), "dur": float(each["dur"])}
            for each in found["traceEvents"]
            if each.get("ph") == "X" and "cat" in each
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is damaged ({error}); remove it to report without a timeline") from error


def _epochs(events: Iterable[Event]) -> dict[int, tuple[float, float]]:
    """Return the begin and the end of each traced epoch, in microseconds, by its number."""
    found = {}
    for each in events:
        word, _, number = str(each.get("name")).partition(" ")
        if each["cat"] == "user_annotation" and word == EPOCH and number.isdecimal():
            found[int(number)] = (each["ts"], each["ts"] + each["dur"])
    return found


def _exchanged(rank: int, event: Event, origin: float) -> Bar:
    """Return the bar of an event of an exchange.

    A push is drawn on the lane of the rank at which its rows arrive; the clocks of one machine agree.
    """
    if event["name"].startswith(WAIT):
        return _bar(rank, "waits", "wait for a round", event, origin)
    if event["name"].startswith(SEE):
        return _bar(rank, "rows arrive", "a chunk is seen", event, origin)
    kind = "a round is pushed here" if "round" in event["args"] else "a chunk is pushed here"
    return _bar(int(event["args"]["to"]), "rows arrive", kind, event, origin)


def _kernel(event: Event) -> str:
    """Return the kind of a kernel or a copy; kernels that sum rows are drawn like the phase."""
    if event["cat"] != "kernel":
        return "copy"
    return "aggregate" if "aggregate" in event["name"] else "kernel"


def _bar(rank: int, lane: str, kind: str, event: Event, origin: float) -> Bar:
    begin = (event["ts"] - origin) / 1e3
    return Bar(rank, lane, kind, begin, begin + event["dur"] / 1e3)


def _stages(rank: int, events: Iterable[Event], origin: float) -> list[Bar]:
    """Return the bars of the stages that contain no other stage, by phase."""
    spans = [each for each in events if each["cat"] == "user_annotation" and "#" not in each["name"]]
    ordered = sorted(spans, key=lambda each: (each["ts"], -each["dur"]))
    bars = []
    for i, each in enumerate(ordered):
        last = i + 1 == len(ordered) or ordered[i + 1]["ts"] >= each["ts"] + each["dur"]
        if last:
            bars.append(_bar(rank, "stages", _phase(each["name"]), each, origin))
    return bars


def _phase(name: str) -> str:
    """Return the phase of a span, whose name may start with its layer; the phase of an unknown stage is dense."""
    stage = name
    words = name.split(" ", 2)
    if words[0] == "layer" and len(words) == 3:
        stage = words[2]
    return STAGES.get(stage, "dense")


def _longest(bars: Iterable[Bar]) -> tuple[float, float] | None:
    """Return the begin and the end of a view of one aggregation, or None.

    It is the aggregation with the most time outside its waits, among those during which rows arrived.
    """
    arrived = [bar for bar in bars if bar.lane == "rows arrive"]
    waits = [bar for bar in bars if bar.lane == "waits"]
    best, view = 0.0, None
    for bar in bars:
        if bar.kind != "aggregate" or not any(
            each.begin < bar.end and each.end > bar.begin for each in arrived
        ):
            continue
        waited = sum(
            each.end - each.begin
            for each in waits
            if each.rank == bar.rank and bar.begin <= each.begin < bar.end
        )
        length = bar.end - bar.begin
        if length - waited > best:
            best, view = length - waited, (bar.begin - 0.1 * length, bar.end + 0.1 * length)
    return view
