"""Chrome traces of torch's profiler: the time of each span of an epoch, host waits, and events of halo exchanges.

As Kineto writes traces, a span is a "user_annotation", a CUDA call a "cuda_runtime" or "cuda_driver" event, and its
launches are "kernel", "gpu_memcpy" or "gpu_memset" events with the same "correlation".

Events of halo exchanges have the category "exchange". On CPUs: "halo: push round r to rank p", from the moment that
this rank had pushed the previous round, and "halo: wait for round r"; args: call (counts exchanges, the same on all
ranks), round, to. On GPUs: "halo: push chunk c to rank p", from the moment that a CUDA block began to pack the chunk
until it was signalled, and "halo: see chunk c of rank q", without length, when the first worker saw it; args: call
(counts this rank's kernels), chunk (in the order of leaving or of need), to or of.

Calls of the operators of hybrid mini-batches, in the last profiled epoch, have the category "batches" and names as
"batch by cpu"; args: number (of the batch), overlap.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...runtime.backends.profiling import KernelStamps
from ..minibatch.executor import Run

EPOCH = "epoch"  # name of the spans "epoch 1", "epoch 2" ...; the first of every path
STEP = "step"

# Calls that may wait until the GPU has done all earlier work; allocating and freeing are among them.
WAITING = frozenset(
    {
        *(f"cuda{what}Synchronize" for what in ("Device", "Stream", "Event", "Thread")),
        *(f"cu{what}Synchronize" for what in ("Ctx", "Stream", "Event")),
        *(f"cudaMemcpy{what}" for what in ("", "2D", "3D", "Peer", "ToSymbol", "FromSymbol")),
        *("cudaMalloc", "cudaFree", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc", "cudaFreeHost"),
        *("cudaHostRegister", "cudaHostUnregister", "cuMemUnmap", "cuMemRelease"),
    }
)
_COPY = re.compile(r"cudaMemcpy\w*Async")
_BLOCKING_COPY = re.compile(r"Memcpy DtoH .*Pageable")  # the call returns when the copy is done

CATEGORY, BATCHES = "exchange", "batches"
PUSH, WAIT, SEE = "halo: push", "halo: wait for", "halo: see"  # first words of events' names
KERNEL = "aggregate_halo"  # part of the name of a halo's kernels
LINES = 1_000_000  # added to a thread's number: lines of a trace that are not threads

Path = tuple[str, ...]


@dataclass
class Cost:
    """Cost of a span in all epochs: number of calls, and milliseconds on the host and on the GPU."""

    calls: int = 0
    host_ms: float = 0.0
    gpu_ms: float = 0.0


@dataclass
class Digest:
    """Summary of one rank's trace. spans: costs by path from the epoch down. waits: calls by (path, name)."""

    spans: dict[Path, Cost] = field(default_factory=dict)
    waits: Counter[tuple[Path, str]] = field(default_factory=Counter)

    @property
    def epochs(self) -> int:
        """Number of traced epochs."""
        return self.spans[EPOCH,].calls if (EPOCH,) in self.spans else 0


def digest(events: Iterable[Mapping[str, Any]]) -> Digest:
    """Return the costs of all spans of a rank's trace.

    Threads are not distinguished: while backward functions run on another thread, the calling one waits.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    launched: defaultdict[Any, float] = defaultdict(float)  # ms, by correlation
    blocking = set()
    for event in whole:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            correlation = event["args"].get("correlation")
            launched[correlation] += float(event["dur"]) / 1e3
            if _BLOCKING_COPY.search(event["name"]):
                blocking.add(correlation)
    found = Digest()
    open_spans: list[tuple[float, Path]] = []  # (end, path), the innermost last
    for event in sorted(filter(_counts, whole), key=lambda event: (float(event["ts"]), -float(event["dur"]))):
        began = float(event["ts"])
        while open_spans and open_spans[-1][0] <= began:
            open_spans.pop()
        path = open_spans[-1][1] if open_spans else ()
        if event["cat"] == "user_annotation":
            path = (*path, re.sub(rf"^{EPOCH} \d+$", EPOCH, event["name"]))
            if path[0] == EPOCH:
                open_spans.append((began + float(event["dur"]), path))
                cost = found.spans.setdefault(path, Cost())
                cost.calls, cost.host_ms = cost.calls + 1, cost.host_ms + float(event["dur"]) / 1e3
            continue
        correlation, name = event["args"].get("correlation"), event["name"].removesuffix("_ptsz")
        for depth in range(1, len(path) + 1):
            found.spans[path[:depth]].gpu_ms += launched.get(correlation, 0.0)
        if path and (name in WAITING or (_COPY.fullmatch(name) and correlation in blocking)):
            found.waits[path, name] += 1
    return found


def _counts(event: Mapping[str, Any]) -> bool:
    """Return whether an event is a span of this package (torch's have a # in their names) or a CUDA call."""
    if event.get("cat") == "user_annotation":
        return "#" not in event["name"]
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def slowest(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Return the spans for summary.json, in the order in which an epoch runs them.

    Calls and times are means over the epochs of a rank, each from the rank where it is largest.
    """
    paths = list(dict.fromkeys(path for each in digests for path in each.spans))
    first = {path: at for at, path in enumerate(paths)}

    def order(path: Path) -> list[int]:  # puts each span before those within it, and these next to each other
        return [first.get(path[: depth + 1], 0) for depth in range(len(path))]

    def most(path: Path, what: str) -> float:
        return max(getattr(each.spans.get(path, Cost()), what) / max(1, each.epochs) for each in digests)

    costs = ("calls", "host_ms", "gpu_ms")
    return [
        {"span": list(path)} | {what: most(path, what) for what in costs} for path in sorted(paths, key=order)
    ]


def waits(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Return where each rank's host waited for its GPU, for summary.json: calls per epoch."""
    return [
        {"rank": rank, "span": list(path), "call": call, "calls": count / max(1, each.epochs)}
        for rank, each in enumerate(digests)
        for (path, call), count in sorted(each.waits.items())
    ]


@dataclass(frozen=True)
class Stamps:
    """Times of one halo exchange on CPUs, in seconds of the monotonic clock, as `HaloExchange.stamps` has them.

    waits, arrived: float64 [rounds]. pushed: float64 [rounds, P], 0 where nothing is pushed.
    """

    began: float
    ended: float
    waits: np.ndarray
    arrived: np.ndarray
    pushed: np.ndarray


def unpacked(values: Sequence[float], rounds: int, ranks: int) -> Stamps:
    """Return the stamps in the flat list that an exchange of so many rounds and ranks keeps."""
    waits, arrived, pushed = np.split(np.array(values[2:]), [rounds, 2 * rounds])
    return Stamps(values[0], values[1], waits, arrived, pushed.reshape(rounds, ranks))


def exchange_events(
    exchanges: Sequence[tuple[Any, Sequence[float]]], ranks: int, offset: float, base: float, process: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of exchanges on CPUs.

    exchanges: as in `Profiling.taken`. offset: seconds from the monotonic clock to Unix time. base: Unix time in
    seconds at which the trace begins. process: this rank's process id.
    """

    def event(name: str, line: int, began: float, ended: float, **about: int) -> dict[str, Any]:
        at, duration = (began + offset - base) * 1e6, (ended - began) * 1e6
        return _event(name, process, line, at, duration, **about)

    if exchanges:
        yield from _line_names(process, "halo: pushes", "halo: waits")
    for call, (plan, values) in enumerate(exchanges):
        found = unpacked(values, plan.lists.rounds, ranks)
        before = found.began
        rounds = zip(found.waits, found.arrived, found.pushed, strict=True)
        for round_, (wait, arrived, pushed) in enumerate(rounds):
            for to in np.flatnonzero(pushed):
                name = f"{PUSH} round {round_ + 1} to rank {to}"
                yield event(name, 0, before, pushed[to], call=call, round=round_, to=int(to))
            before = max(before, pushed.max())
            yield event(f"{WAIT} round {round_ + 1}", 1, wait, arrived, call=call, round=round_)


def kernel_events(
    exchanges: Sequence[KernelStamps], trace: Sequence[Mapping[str, Any]], process: int
) -> Iterator[dict[str, Any]]:
    """Yield the events of exchanges driven by GPU kernels.

    exchanges: in the order of the launches. trace: events with the kernels of this rank's GPU, whose begins translate
    the GPU's clock into the trace's. If the trace lacks kernels of these calls, there are no events.
    """
    found = [each for each in trace if each.get("cat") == "kernel" and KERNEL in each["name"]]
    if not exchanges or len(found) != len(exchanges):
        return
    yield from _line_names(process, "halo: pushes", "halo: chunks seen")
    kernels = sorted(found, key=lambda each: float(each["ts"]))
    for call, (kernel, times) in enumerate(zip(kernels, exchanges, strict=True)):
        pushed, seen = (
            float(kernel["ts"]) + (each - times.began) / 1e3 for each in (times.pushed, times.seen)
        )
        for chunk, (to, (began, ended)) in enumerate(zip(times.to.tolist(), pushed.tolist(), strict=True)):
            name = f"{PUSH} chunk {chunk + 1} to rank {to}"
            yield _event(name, process, 0, began, ended - began, call=call, chunk=chunk, to=to)
        for chunk, (of, at) in enumerate(zip(times.owners.tolist(), seen.tolist(), strict=True)):
            name = f"{SEE} chunk {chunk + 1} of rank {of}"
            yield _event(name, process, 1, at, 0.0, call=call, chunk=chunk, of=of)


def batch_events(run: Run, offset: float, base: float, process: int) -> Iterator[dict[str, Any]]:
    """Yield the events of an epoch of hybrid mini-batches. offset, base, process: as for `exchange_events`."""
    lines: dict[str, int] = {}
    for each in run.activities():
        line = lines.setdefault(each.thread, 2 + len(lines))
        at, dur = 1e6 * (run.began + each.begin + offset - base), 1e6 * (each.end - each.begin)
        made = _event(
            " by ".join(each.operator), process, line, at, dur, number=each.number, overlap=each.overlap
        )
        yield made | {"cat": BATCHES}
    yield from _line_names(process, *(f"batches: {name}" for name in lines), first=2)


def _event(name: str, process: int, line: int, ts: float, dur: float, **about: int) -> dict[str, Any]:
    """Return an event of a trace. ts, dur: in microseconds."""
    where = {"pid": process, "tid": LINES + line, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": CATEGORY, "name": name, **where, "args": about}


def _line_names(process: int, *names: str, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events that name lines of a trace which are not threads."""
    for line, name in enumerate(names, first):
        where = {"pid": process, "tid": LINES + line}
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
