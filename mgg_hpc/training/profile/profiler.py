"""`mgg train --profile`: trace a few epochs with torch's profiler, and write and summarise a Chrome trace per rank."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch.profiler import ProfilerActivity

from ...nn.graph.handle import GraphHandle
from ...runtime import mpi
from ...runtime.watchdog import Watchdog
from ...sizes import counted
from .. import run_folder
from ..job import Job
from ..report import print_line
from ..screen import console
from . import overlap, trace

WARM, PROFILED = 3, 3  # number of epochs before profiling, and of profiled ones
BLOCK = 1 << 26  # bytes per message


def trace_name(rank: int) -> str:
    """Return the name of a rank's trace."""
    return f"rank-{rank}.json.gz"


def _clocks() -> float:
    """Return time.time() minus time.perf_counter(), in seconds, from the quickest of five readings."""
    readings = []
    for _ in range(5):
        before, now, after = time.perf_counter(), time.time(), time.perf_counter()
        readings.append((after - before, now - (before + after) / 2))
    return min(readings)[1]


class Recorder:
    """Runs torch's profiler in a few epochs, after WARM others that allocate memory, if the run has so many.

    Attributes:
        first, last: first and last profiled epoch; last is smaller in a run that ends earlier.
        content: this rank's trace as JSON.
    """

    def __init__(self, job: Job) -> None:
        total = job.settings.train.epochs
        self.first = min(WARM, total - 1) + 1
        self.last = min(self.first + PROFILED - 1, total)
        self.content = b""
        self._job, self._profiling, self._clocks = job, job.backend.profiling, 0.0
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else Kineto prints on stderr
        activities = [ProfilerActivity.CPU]
        if job.backend.capabilities.device != "cpu":
            activities.append(ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._prepared = self._runs = False

    def begin(self, epoch: int) -> None:
        """Start profiling if the beginning epoch is the first to profile. Collective."""
        if not self._prepared and epoch >= self.first - 1:
            self._profile.prepare_trace()  # an epoch ahead, since it is slow
            self._prepared = True
        if epoch == self.first:
            self._profile.start_trace()
            self._runs = True
            self._profiling.begin()
            self._clocks = _clocks()
            mpi.barrier(self._job.comm)

    def end(self, epoch: int, last: bool) -> None:
        """Stop profiling if the ended epoch is the last to profile, or the last of the run."""
        if self._runs and (epoch == self.last or last):
            self.last = epoch
            self.close()
            with tempfile.TemporaryDirectory(prefix="mgg-profile-") as folder:
                path = Path(folder) / "trace.json"
                self._profile.export_chrome_trace(str(path))
                self.content = self._with_more(path.read_bytes())
        elif last and epoch < self.first:
            self.first, self.last = 1, 0

    def _with_more(self, content: bytes) -> bytes:
        """Return a trace with the events of the profiled halo exchanges, and of the last epoch's hybrid batches."""
        exchanges, kernels = self._profiling.taken()
        sampled = self._job.sampled
        run = sampled.hybrid.run if sampled is not None and sampled.hybrid is not None else None
        if not exchanges and not kernels and run is None:
            return content
        found = json.loads(content)
        when = self._clocks, found["baseTimeNanoseconds"] / 1e9, os.getpid()
        found["traceEvents"] += [
            *trace.exchange_events(exchanges, self._job.comm.size, *when),
            *trace.kernel_events(kernels, found["traceEvents"], os.getpid()),
            *(trace.batch_events(run, *when) if run is not None and run.epoch == self.last else ()),
        ]
        return json.dumps(found).encode()

    def close(self) -> None:
        """Stop profiling. A process that exits while it is profiled crashes."""
        if self._runs:
            self._runs = False
            self._profile.stop_trace()


def finish(job: Job, graph: GraphHandle, recorder: Recorder, folder: Path | None, dog: Watchdog) -> None:
    """Write every rank's trace and summary.json, and print the summary. Collective.

    folder: rank 0's run folder, None elsewhere.
    """
    dog.step("writing traces")
    _write_traces(job.comm, recorder.content, folder)
    with mpi.agree(job.comm):
        events = json.loads(recorder.content)["traceEvents"] if recorder.content else []
        found = trace.digest(events)
    every = job.comm.gather(found)
    exchanges = overlap.measure(job, graph, dog)
    if every is None or folder is None:
        return
    summary = {
        "format": "mgg-profile",
        "version": 1,
        "epochs": list(range(recorder.first, recorder.last + 1)),
        "ranks": job.comm.size,
        "backend": job.backend.capabilities.name,
        "without_graphs": job.records,
        "spans": trace.slowest(every),
        "waits": trace.waits(every),
        "exchanges": exchanges,
    }
    path = run_folder.write_json(folder / run_folder.PROFILE / run_folder.SUMMARY, summary)
    print_summary(summary, path, job.backend.capabilities.device != "cpu")


def _write_traces(comm: Any, content: bytes, folder: Path | None) -> None:
    """Write rank-<r>.json.gz of each rank from rank 0, as others may not see the folder. Collective."""
    mine = np.frombuffer(gzip.compress(content), dtype=np.uint8)
    if folder is None:
        comm.send(len(mine), 0)
        for first in range(0, len(mine), BLOCK):
            comm.Send(mine[first : first + BLOCK], 0)
        return
    run_folder.make_private(folder / run_folder.PROFILE)
    for rank in range(comm.size):
        if rank:
            mine = np.empty(comm.recv(source=rank), dtype=np.uint8)
            for first in range(0, len(mine), BLOCK):
                comm.Recv(mine[first : first + BLOCK], rank)
        run_folder.write_whole(folder / run_folder.PROFILE / trace_name(rank), mine.tobytes())


def print_summary(summary: dict[str, Any], path: Path, on_gpus: bool) -> None:
    """Print tables of an epoch's times and of the hidden transfers, with remarks on both."""
    tables, lines = [], said_of_epochs(summary)
    if summary["spans"]:
        tables.append(_spans(summary, on_gpus))
        lines += said_of_waits(summary) if on_gpus else []
    if summary["ranks"] > 1:
        tables.append(_exchanges(summary))
        unknown = (each for each in summary["exchanges"] if "unknown" in each)
        lines += [f"{_exchange(each)}: not known, {each['unknown']}" for each in unknown]
    console().print(*tables, sep="\n")
    for line in [*lines, f"traces and their summary: {path.parent}"]:
        print_line(line)


def said_of_epochs(summary: dict[str, Any]) -> list[str]:
    """Return remarks on how the profiled epochs differ from others."""
    epochs, said = summary["epochs"], []
    if not epochs:
        said.append(f"patience ended the run before epoch {WARM + 1}: no epoch was profiled")
    elif epochs[0] <= WARM:
        said.append(
            f"epoch {epochs[0]} of a short run also finds memory and starts libraries; train {WARM + 1}"
        )
    if summary["without_graphs"]:
        said.append("no epoch was replayed as a CUDA graph, so that each launch is seen; other runs replay")
    return said


def said_of_waits(summary: dict[str, Any]) -> list[str]:
    """Return remarks on whether, and where, any rank's host waited for its GPU within the training step."""
    inside = [each for each in summary["waits"] if trace.STEP in each["span"]]
    if not inside:
        return ["no rank's host waits for its GPU within the training step"]
    return [
        f"rank {each['rank']} waits within {' / '.join(each['span'])}: {each['call']}, {each['calls']:.3g} an epoch"
        for each in inside
    ]


def _spans(summary: dict[str, Any], on_gpus: bool) -> Table:
    epochs = summary["epochs"]
    which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"mean of epochs {epochs[0]} to {epochs[-1]}"
    slowest = "" if summary["ranks"] == 1 else f", slowest of {counted(summary['ranks'], 'rank')}"
    table = Table(title=f"an epoch: {which}{slowest}")
    table.add_column("span", no_wrap=True)
    for name in ("calls", "host ms", *(["GPU ms"] if on_gpus else [])):
        table.add_column(name, justify="right")
    for each in summary["spans"]:
        times = [f"{each['host_ms']:.3f}", *([f"{each['gpu_ms']:.3f}"] if on_gpus else [])]
        name = "  " * (len(each["span"]) - 1) + each["span"][-1]
        table.add_row(name, f"{each['calls']:.3g}", *times)
    return table


def _exchanges(summary: dict[str, Any]) -> Table:
    table = Table(title="what is hidden of the transfer: ms of the slowest rank, each at its fastest")
    table.add_column("aggregation", no_wrap=True)
    table.add_column("transfer")
    for name in ("width", "both", "sums alone", "transfer alone", "hidden"):
        table.add_column(name, justify="right")
    for each in summary["exchanges"]:
        times = [
            f"{each[name]:.3f}" if name in each else "-" for name in ("both_ms", "sums_ms", "transfer_ms")
        ]
        share = f"{each['hidden_share']:.2f}" if "hidden_share" in each else "not known"
        table.add_row(_exchange(each), each["transfer"], str(each["width"]), *times, share)
    return table


def _exchange(each: dict[str, Any]) -> str:
    return f"layer {each['layer']} {each['direction']}"
