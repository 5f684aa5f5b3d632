"""Halo exchanges as events of a Chrome trace, from the stamps that exchanges on CPUs and kernels on GPUs keep.

Events have the category "exchange". On CPUs: "halo: push round r to rank p" from the moment that this rank had pushed
the round before it, and "halo: wait for round r". args: call, which counts exchanges and is the same on all ranks;
round; to. On GPUs: "halo: push chunk c to rank p" from the moment that a CUDA block began to pack it until its signal
left, and "halo: see chunk c of rank q", without length, when the first worker saw it. args: call, which counts this
rank's kernels; chunk, in the order of leaving or needing; to or of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.backends.profiling import KernelStamps

CATEGORY = "exchange"
PUSH, WAIT, SEE = "halo: push", "halo: wait for", "halo: see"  # how names begin
KERNEL = "aggregate_halo"  # part of the name of a halo's kernels
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
    """Yield the events of exchanges. exchanges: of `Profiling.taken`. offset: seconds from the monotonic clock to
    Unix time. base: Unix time in seconds at which the trace begins. process: number of this rank's process."""

    def event(name: str, line: int, began: float, ended: float, **about: int) -> dict[str, Any]:
        place = (began + offset - base) * 1e6, (ended - began) * 1e6
        return _event(name, process, line, *place, **about)

    if exchanges:
        yield from _lines(process, "halo: pushes", "halo: waits")
    for call, (plan, values) in enumerate(exchanges):
        found = unpacked(values, plan.lists.rounds, ranks)
        before = found.began
        for round_, (wait, arrived, pushed) in enumerate(
            zip(found.waits, found.arrived, found.pushed, strict=True)
        ):
            for to in np.flatnonzero(pushed):
                name = f"{PUSH} round {round_ + 1} to rank {to}"
                yield event(name, 0, before, pushed[to], call=call, round=round_, to=int(to))
            before = max(before, pushed.max())
            yield event(f"{WAIT} round {round_ + 1}", 1, wait, arrived, call=call, round=round_)


def of_kernels(
    exchanges: Sequence[KernelStamps], trace: Sequence[Mapping[str, Any]], process: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of exchanges that kernels drive, within the kernels of a trace.

    exchanges: in the order of the launches. trace: events with the kernels of this rank's GPU; the begin of each tells
    what its clock's times are in the trace. A trace that lacks kernels of these calls gets no events.
    """
    found = [each for each in trace if each.get("cat") == "kernel" and KERNEL in each["name"]]
    if not exchanges or len(found) != len(exchanges):
        return
    yield from _lines(process, "halo: pushes", "halo: chunks seen")
    kernels = sorted(found, key=lambda each: float(each["ts"]))
    for call, (kernel, times) in enumerate(zip(kernels, exchanges, strict=True)):
        pushed, seen = (
            float(kernel["ts"]) + (each - times.began) / 1e3 for each in (times.pushed, times.seen)
        )
        for chunk, (to, (began, ended)) in enumerate(zip(times.to.tolist(), pushed.tolist(), strict=True)):
            name = f"{PUSH} chunk {chunk + 1} to rank {to}"
            yield _event(name, process, 0, began, ended - began, call=call, chunk=chunk, to=to)
        for chunk, (of, at) in enumerate(zip(times.owners.tolist(), seen.tolist(), strict=True)):
            yield _event(
                f"{SEE} chunk {chunk + 1} of rank {of}", process, 1, at, 0.0, call=call, chunk=chunk, of=of
            )


def _event(name: str, process: int, line: int, ts: float, dur: float, **about: int) -> dict[str, Any]:
    """Return an event of a trace. ts, dur: in microseconds."""
    place = {"pid": process, "tid": LINES + line, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": CATEGORY, "name": name, **place, "args": about}


def _lines(process: int, *names: str) -> Iterator[dict[str, Any]]:
    """Yield what names the lines of a trace that are not threads."""
    for line, name in enumerate(names):
        place = {"pid": process, "tid": LINES + line}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
