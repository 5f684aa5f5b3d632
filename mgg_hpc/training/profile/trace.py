"""Summarise a trace of torch's profiler: the time of each span of an epoch, and where the host waits for the GPU.

Events are as Chrome's trace format has them and Kineto fills it: a span is a "user_annotation"; a call of CUDA a
"cuda_runtime" or "cuda_driver"; what it launches a "kernel", "gpu_memcpy" or "gpu_memset" of the same "correlation".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

Path = tuple[str, ...]


@dataclass
class Cost:
    """Cost of a span in all epochs: calls, and milliseconds on the host and on the GPU."""

    calls: int = 0
    host_ms: float = 0.0
    gpu_ms: float = 0.0


@dataclass
class Digest:
    """Summary of one rank's trace. spans: by path from the epoch down. waits: number of calls that wait in a span."""

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
    """Return whether an event is a span of this program (torch's have a # in their names) or a call of CUDA."""
    if event.get("cat") == "user_annotation":
        return "#" not in event["name"]
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def slowest(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Return each span as in summary.json, in an epoch's order: means by epoch, of the slowest rank."""
    paths = list(dict.fromkeys(path for each in digests for path in each.spans))
    first = {path: at for at, path in enumerate(paths)}

    def order(path: Path) -> list[int]:  # puts each span before those within it, and these side by side
        return [first.get(path[: depth + 1], 0) for depth in range(len(path))]

    def most(path: Path, what: str) -> float:
        return max(getattr(each.spans.get(path, Cost()), what) / max(1, each.epochs) for each in digests)

    costs = ("calls", "host_ms", "gpu_ms")
    return [
        {"span": list(path)} | {what: most(path, what) for what in costs} for path in sorted(paths, key=order)
    ]


def waits(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Return where each rank's host waited for its GPU, as in summary.json: calls an epoch."""
    return [
        {"rank": rank, "span": list(path), "call": call, "calls": count / max(1, each.epochs)}
        for rank, each in enumerate(digests)
        for (path, call), count in sorted(each.waits.items())
    ]
