"""What a trace of torch's profiler says of an epoch: what each span takes, and where the host waits for the GPU.

Events are as Chrome's trace format has them and Kineto fills it: a span is a "user_annotation"; a call of CUDA a
"cuda_runtime" or "cuda_driver"; what it launches a "kernel", "gpu_memcpy" or "gpu_memset" of the same "correlation".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EPOCH = "epoch"  # the name of what is named "epoch 7"; the first of every path
STEP = "step"

# Calls that return when the GPU has done what it was asked for before, or may: allocating and freeing wait for it too.
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
_BLOCKING_COPY = re.compile(
    r"Memcpy DtoH .*Pageable"
)  # which no copy engine writes: the call returns when it is done

Path = tuple[str, ...]


@dataclass
class Cost:
    """Cost of a span in all epochs: calls, and milliseconds on the host and on the GPU."""

    calls: int = 0
    host_ms: float = 0.0
    gpu_ms: float = 0.0


@dataclass
class Digest:
    """What one rank's trace says. spans: by path from the epoch down. waits: how often a call waits within a span."""

    spans: dict[Path, Cost] = field(default_factory=dict)
    waits: Counter[tuple[Path, str]] = field(default_factory=Counter)

    @property
    def epochs(self) -> int:
        """That were traced."""
        return self.spans[EPOCH,].calls if (EPOCH,) in self.spans else 0


def digest(events: Iterable[Mapping[str, Any]]) -> Digest:
    """Return the costs of all spans of a rank's trace.

    Threads are not told apart: while backward functions run on one of their own, the one that asked for them waits.
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
    open_spans: list[tuple[float, Path]] = []  # when they end, the innermost last
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
    """A span of this program (torch's own have a # in their names), or a call of CUDA."""
    if event.get("cat") == "user_annotation":
        return "#" not in event["name"]
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def slowest(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Each span as summary.json has it, in the order in which an epoch runs them: an epoch's, of the slowest rank."""
    paths = dict.fromkeys(path for each in digests for path in each.spans)
    return [
        {
            "span": list(path),
            "calls": max(_an_epoch(each, path, "calls") for each in digests),
            "host_ms": max(_an_epoch(each, path, "host_ms") for each in digests),
            "gpu_ms": max(_an_epoch(each, path, "gpu_ms") for each in digests),
        }
        for path in sorted(paths, key=_order(list(paths)))
    ]


def _an_epoch(found: Digest, path: Path, what: str) -> float:
    return getattr(found.spans.get(path, Cost()), what) / max(1, found.epochs)


def _order(paths: list[Path]) -> Any:
    """A span stands before those within it, and these together."""
    first = {path: at for at, path in enumerate(paths)}
    return lambda path: [first.get(path[: depth + 1], 0) for depth in range(len(path))]


def waits(digests: Sequence[Digest]) -> list[dict[str, Any]]:
    """Where each rank's host waited for its GPU, as summary.json has it: calls an epoch."""
    return [
        {"rank": rank, "span": list(path), "call": call, "calls": count / max(1, each.epochs)}
        for rank, each in enumerate(digests)
        for (path, call), count in sorted(each.waits.items())
    ]
