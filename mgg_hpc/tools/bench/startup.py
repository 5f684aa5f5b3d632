"""`mgg bench start`: how long `mgg train` takes from its start to the end of the first epoch, part by part."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from ...data import writer
from ...errors import InputError
from ...runtime import backends
from ...runtime.turns import take_turns
from .epoch.shape import Shape, labelled
from .harness import document, graphs, timing, watch
from .harness.document import Sheet, cell
from .harness.gpu import Device, release
from .harness.options import BenchOptions

SHAPE = Shape(32, 16, 8, 0.5)


def run_start(graph: str, ranks: int, backend: str, turns: int, json: Path | None, table: Path | None) -> int:
    """Measure, print and write. Raises InputError for a graph or a backend that there is not."""
    options = BenchOptions(turns=turns, json=json, table=table)
    options.check(graph)
    found = document.begin("start", options, Device.current() if backends.needs_gpus(backend) else None)
    release()
    with timing.workspace() as folder:
        read = labelled(graphs.read(graph), SHAPE)
        writer.write(folder / "graph.h5", read)
        job = {"graph": {"file": "graph.h5"}, "model": {"hidden": SHAPE.hidden}, "train": {"epochs": 1}}
        job["plan"] = {"cache": "never"}  # each turn plans anew
        job["run"] = {"backend": backend, "folder": str(folder / "runs"), "share_gpu": True}
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        taken = take_turns({"train": partial(measured, folder, ranks)}, turns)["train"]
    found |= document.about(read) | {"ranks": ranks, "backend": taken[0]["backend"]}
    found["samples_ms"] = turns_of(taken)
    found["notes"].append(
        f"{read.name}: {read.nodes:,} nodes, {read.edges:,} edges, {SHAPE.features} features; {ranks} "
        f"rank{'s' * (ranks != 1)} on {found['backend']}; the file is in the page cache"
    )
    document.finish(found, sheets(found), options)
    return 0


def measured(folder: Path, ranks: int) -> dict[str, Any]:
    """Return one run's summary.json, with the seconds of its process. Raises InputError with its output if it fails."""
    words = ["train", str(folder / "job.toml"), "--no-progress"]
    start = [] if ranks == 1 else ["launch", "-n", str(ranks)]
    began = time.perf_counter()
    with watch.cell("train", f"{ranks} ranks"):
        done = subprocess.run(
            [sys.executable, "-m", "mgg_hpc", *start, *words], capture_output=True, text=True, check=False
        )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise InputError(f"the run failed: {' '.join(done.stderr.split()) or done.returncode}")
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    return summary | {"process_ms": 1e3 * seconds}


def turns_of(summaries: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return each part's milliseconds, turn by turn; and those of all but reading, and of the whole process."""
    parts = {name: [each["start_ms"][name] for each in summaries] for name in summaries[0]["start_ms"]}
    beyond = [sum(each["start_ms"].values()) - each["start_ms"]["read"] for each in summaries]
    return parts | {"all beyond reading": beyond, "process": [each["process_ms"] for each in summaries]}


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables that are printed."""
    rows = [[name, cell(timing.spread(ms), 0)] for name, ms in found["samples_ms"].items()]
    return [Sheet("from the start to the end of the first epoch, ms", ["part", "slowest rank"], rows)]
