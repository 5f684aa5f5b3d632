"""One epoch as lanes of bars for each rank, read from the traces of ``mgg train --profile``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...training.profile.phases import AGGREGATE, DENSE, STAGES
from ...training.profile.trace import BATCHES, CATEGORY, EPOCH, SEE, WAIT
from .read import content

MOST_BARS = 2500  # of all timelines of a page, which stays small so; the longest are kept
STAGE, WAITS, KERNEL, ARRIVE = LANES = ("stages", "waits", "kernels", "rows arrive")
WAITED, ROUND, CHUNK, SEEN = (
    "wait for a round",
    "a round is pushed here",
    "a chunk is pushed here",
    "a chunk is seen",
)
KINDS = (WAITED, ROUND, CHUNK, SEEN, "kernel", "copy")  # beside the phases
# Of hybrid mini-batches: lanes, kinds of their bars, and limits of their figure.
POOL, HOST, LINK, NEAR, DEVICE = POOLS = ("CPU pool", "CPU buffer", "link", "device buffer", "device")
DRAWN, COPIED, MADE, TRAINED, WAITING = USES = (
    "prepared by the CPU",
    "copied",
    "prepared by the device",
    "trained on",
    "batches that wait",
)
SIZES = {POOL: " ({} at once)", HOST: " (up to {})", NEAR: " (up to {})"}
# Ranks; heights of a lane, which are means over time where more would be needed.
MOST_POOLED, MOST_STEPS = 4, 150
SPAN, KERNELS = "user_annotation", ("kernel", "gpu_memcpy", "gpu_memset")  # categories of events

Event = Mapping[str, Any]


class Bar(NamedTuple):
    """A bar on a lane of a rank. begin, end: ms from the begin of the epoch."""

    rank: int
    lane: str
    kind: str
    begin: float
    end: float


class Use(NamedTuple):
    """How much of a pool, the link or a buffer is in use. begin, end: as of a bar. base, height: shares of its size."""

    lane: str
    kind: str
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    base: NDArray[np.float64]
    height: NDArray[np.float64]


class Timeline(NamedTuple):
    """The bars of one epoch.

    ranks: the ranks that have a trace, in order. views: begin and end, in ms, of the epoch and, where an exchange was
    traced, of the view of its longest one. pools: of hybrid mini-batches, views of the epoch and of an overlap in its
    middle, each with uses of the first ranks, whose lanes are named with rank and size.
    """

    epoch: int
    ranks: list[int]
    bars: list[Bar]
    views: list[tuple[float, float]]
    pools: Sequence[tuple[tuple[float, float], list[Use]]] = ()


def read(traces: Mapping[int, Path], timelines: int) -> Timeline | None:
    """Return the last epoch that all traces hold, or None if there is none. Raises InputError for a damaged trace.

    traces: paths by rank. timelines: the number of timelines on the page. Rows that arrive at a rank without a trace
    are left out.
    """
    events = {rank: _events(path) for rank, path in traces.items()}
    epochs = {rank: _epochs(found) for rank, found in events.items()}
    common = set.intersection(*map(set, epochs.values()))
    if not common:
        return None
    epoch = max(common)
    whole = {rank: found[epoch] for rank, found in epochs.items()}
    origin = min(begin for begin, _ in whole.values())
    bars: list[Bar] = []
    for rank, (first, last) in whole.items():
        inside = [each for each in events[rank] if first <= each["ts"] < last]
        drawn = [each for each in inside if each["cat"] in (*KERNELS, CATEGORY)] + _stages(inside)
        bars += [_bar(rank, each, origin) for each in drawn]
    shown = sorted((bar for bar in bars if bar.rank in traces), key=lambda bar: bar.begin - bar.end)
    shown = shown[: MOST_BARS // timelines]
    end = max(end for _, end in whole.values())
    views = [(0.0, (end - origin) / 1e3), *_longest(shown)]
    batches = {rank: [each for each in found if each["cat"] == BATCHES] for rank, found in events.items()}
    return Timeline(epoch, list(traces), shown, views, _pools(batches, origin))


def _events(path: Path) -> list[Event]:
    """Return the events of a trace that have a duration, in microseconds of this machine's clock."""
    found = content(path)
    base = float(found.get("baseTimeNanoseconds", 0)) / 1e3  # each rank's own
    events = (each for each in found["traceEvents"] if each.get("ph") == "X" and "cat" in each)
    return [each | {"ts": base + float(each["ts"]), "dur": float(each["dur"])} for each in events]


def _epochs(events: Sequence[Event]) -> dict[int, tuple[float, float]]:
    """Return the begin and the end of each traced epoch, in microseconds, by its number."""
    spans = [each for each in events if each["cat"] == SPAN and re.fullmatch(f"{EPOCH} [0-9]+", each["name"])]
    return {int(each["name"].split()[1]): (each["ts"], each["ts"] + each["dur"]) for each in spans}


def _stages(events: Sequence[Event]) -> list[Event]:
    """Return the stages that contain no other stage."""
    spans = [each for each in events if each["cat"] == SPAN and "#" not in each["name"]]
    spans.sort(key=lambda each: (each["ts"], -each["dur"]))
    later = [*(each["ts"] for each in spans[1:]), float("inf")]
    return [each for each, begin in zip(spans, later, strict=True) if begin >= each["ts"] + each["dur"]]


def _bar(rank: int, event: Event, origin: float) -> Bar:
    """Return the bar of an event.

    Kernels that sum rows look like the phase. A push is drawn on the lane of the rank at which its rows arrive: the
    clocks of one machine agree.
    """
    name, cat, begin = event["name"], event["cat"], (event["ts"] - origin) / 1e3
    if cat == SPAN:  # a stage's name may start with its layer; the phase of an unknown stage is dense
        lane, kind = STAGE, STAGES.get(re.sub(r"^layer \S* ", "", name), DENSE)
    elif cat in KERNELS:
        lane, kind = KERNEL, "copy" if cat != "kernel" else AGGREGATE if AGGREGATE in name else "kernel"
    elif name.startswith((WAIT, SEE)):
        lane, kind = (WAITS, WAITED) if name.startswith(WAIT) else (ARRIVE, SEEN)
    else:
        rank, lane, kind = int(event["args"]["to"]), ARRIVE, ROUND if "round" in event["args"] else CHUNK
    return Bar(rank, lane, kind, begin, begin + event["dur"] / 1e3)


def _longest(bars: Sequence[Bar]) -> list[tuple[float, float]]:
    """Return the begin and the end of a view of one aggregation, if there is one during which rows arrived.

    It is the one with the most time outside its waits.
    """
    arrived = [bar for bar in bars if bar.lane == ARRIVE]
    best, view = 0.0, []
    for bar in (bar for bar in bars if bar.kind == AGGREGATE):
        waits = [each for each in bars if each[:2] == (bar.rank, WAITS) and bar.begin <= each.begin < bar.end]
        length = bar.end - bar.begin
        worked = length - sum(each.end - each.begin for each in waits)
        if worked > best and any(each.begin < bar.end and each.end > bar.begin for each in arrived):
            best, view = worked, [(bar.begin - 0.1 * length, bar.end + 0.1 * length)]
    return view


def _pools(
    batches: Mapping[int, Sequence[Event]], origin: float
) -> list[tuple[tuple[float, float], list[Use]]]:
    """Return views of hybrid mini-batches, none without them. batches: their events by rank."""
    ranks = [rank for rank, found in batches.items() if found][:MOST_POOLED]
    if not ranks:
        return []
    found = batches[ranks[0]]
    overlap = sorted(each["args"]["overlap"] for each in found)[len(found) // 2]
    # Of what the device does: the CPU has prepared its batches before.
    of_it = [each for each in found if each["args"]["overlap"] == overlap and each["name"] != "batch by cpu"]
    views = [
        ((first - origin) / 1e3, (max(each["ts"] + each["dur"] for each in shown) - origin) / 1e3)
        for shown, first in ((found, origin), (of_it, min(each["ts"] for each in of_it)))
    ]
    return [
        (view, [use for rank in ranks for use in _uses(rank, batches[rank], origin, view)]) for view in views
    ]


def _uses(rank: int, events: Sequence[Event], origin: float, view: tuple[float, float]) -> Iterator[Use]:
    """Yield how the pools, the link and the buffers of a rank are used in a view."""
    spans: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for each in events:
        begin = (each["ts"] - origin) / 1e3
        spans[each["name"]][each["args"]["number"]] = begin, begin + each["dur"] / 1e3
    cpu, copy, train = spans["batch by cpu"], spans["transfer by copy"], spans["train by device"]
    made = [*spans["batch by device"].values(), *spans["transfer by direct"].values()]
    begun = {
        number: begin for each in (copy, spans["batch by device"]) for number, (begin, _) in each.items()
    }
    lanes = {
        POOL: {DRAWN: list(cpu.values())},
        HOST: {WAITING: [(cpu[number][1], copy[number][0]) for number in cpu.keys() & copy.keys()]},
        LINK: {COPIED: list(copy.values()), MADE: made},
        NEAR: {WAITING: [(begun[number], train[number][0]) for number in begun.keys() & train.keys()]},
        DEVICE: {MADE: made, TRAINED: list(train.values())},
    }
    for lane, kinds in lanes.items():
        times = np.array([each for spans in kinds.values() for each in spans]).reshape(-1, 2)
        most = max(1, round(max(_held(times, np.unique(times)), default=1.0))) if lane in SIZES else 1
        edges = np.unique(np.clip([*times.flat, *view], *view).round(6))  # to ns
        if len(edges) > MOST_STEPS:
            edges = np.linspace(*view, MOST_STEPS + 1)
        base = np.zeros(len(edges) - 1)
        for kind, of_kind in kinds.items():
            # A copy may still run while the device begins to prepare.
            height = np.minimum(_held(np.array(of_kind).reshape(-1, 2), edges) / most, 1 - base)
            shown = height > 1e-6
            name = f"rank {rank}: {lane}{SIZES.get(lane, '').format(most)}"
            yield Use(name, kind, *(each[shown] for each in (edges[:-1], edges[1:], base, height)))
            base = base + height


def _held(spans: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean number of spans (begin, end) [n, 2] that are active between consecutive edges."""

    def passed(times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each edge, the sum of (edge - time) over the times before it."""
        count = np.searchsorted(np.sort(times), edges)
        sums: NDArray[np.float64] = count * edges - np.concatenate([[0], np.cumsum(np.sort(times))])[count]
        return sums

    return np.diff(passed(spans[:, 0]) - passed(spans[:, 1])) / np.diff(edges)
