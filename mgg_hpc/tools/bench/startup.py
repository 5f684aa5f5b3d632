"""`mgg bench start`: how long `mgg train` takes from its start to the end of the first epoch, part by part."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomli_w

from ...data import store
from ...errors import InputError
from .epoch.shape import Shape, labelled
from .harness import document, graphs, timing
from .harness.document import Options, Sheet, cell

GRAPH = "rmat:21:26"  # a hundred million edges
SHAPE = Shape(32, 16, 8, 0.5)


def run_start(graph: str, ranks: int, backend: str, turns: int, json: Path | None, table: Path | None) -> int:
    """Print the table, write the files; the exit code. Raises InputError for a graph or a backend that there is not."""
    options = Options("none", None, 0, turns, "", json, table, None)
    options.check()
    document.refuse_ranks()
    process_start(graph, ranks, backend, options)
    return 0


def process_start(
    name: str, ranks: int, backend: str, options: Options, more: dict[str, Any] | None = None
) -> None:
    """Measure, show, and write. more: what else the document says, of a GPU."""
    shape, found = SHAPE, document.begin("start", 0, options.turns) | (more or {})
    with timing.workspace() as folder:
        graph = labelled(graphs.read(name), shape)
        store.write(folder / "graph.h5", graph)
        job = {"graph": {"file": "graph.h5"}, "model": {"hidden": shape.hidden}, "train": {"epochs": 1}}
        job["run"] = {"backend": backend, "folder": str(folder / "runs"), "share_gpu": True}
        (folder / "job.toml").write_text(tomli_w.dumps(job))
        turns = [measured(folder, ranks) for _ in range(options.turns)]
    found |= {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges, "ranks": ranks}
    found |= {"backend": turns[0]["backend"], "samples_ms": turns_of(turns)}
    found["notes"].append(
        f"{graph.name}: {graph.nodes:,} nodes, {graph.edges:,} edges, {shape.features} features; {ranks} "
        f"rank{'s' * (ranks != 1)} on {found['backend']}; the file is in the page cache"
    )
    document.finish(found, sheets(found), options)


def measured(folder: Path, ranks: int) -> dict[str, Any]:
    """One run's summary.json, with the seconds of its process. Raises InputError with what it said if it fails."""
    words = ["train", str(folder / "job.toml"), "--no-progress"]
    start = [] if ranks == 1 else ["launch", "-n", str(ranks)]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mgg_hpc", *start, *words], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise InputError(f"the run failed: {' '.join(done.stderr.split()) or done.returncode}")
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    return summary | {"process_ms": 1e3 * seconds}


def turns_of(summaries: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Each part's milliseconds, turn by turn; and those of all but reading, and of the whole process."""
    parts = {name: [each["start_ms"][name] for each in summaries] for name in summaries[0]["start_ms"]}
    beyond = [sum(each["start_ms"].values()) - each["start_ms"]["read"] for each in summaries]
    return parts | {"all beyond reading": beyond, "process": [each["process_ms"] for each in summaries]}


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """What is printed."""
    rows = [
        [name, cell({"min": min(ms), "median": sorted(ms)[len(ms) // 2], "max": max(ms)}, 0)]
        for name, ms in found["samples_ms"].items()
    ]
    return [Sheet("from the start to the end of the first epoch, ms", ["part", "slowest rank"], rows)]
