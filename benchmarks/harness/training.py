"""Trainings by `mgg train`, in processes of their own, as a user starts them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import tomli_w

from . import children


def train(folder: Path, tree: dict[str, dict[str, Any]], ranks: int = 1) -> dict[str, Any]:
    """Train on so many ranks; return summary.json, with "process_ms": the time of all processes from start to end.

    folder: for the job file, to which names of files are relative, and for the runs. tree: sections of the job file.

    Raises InputError if it fails.
    """
    sections = tree | {"run": {"folder": str(folder / "runs")} | tree.get("run", {})}
    (folder / "job.toml").write_text(tomli_w.dumps(sections))
    launch = [] if ranks == 1 else ["launch", "-n", str(ranks)]
    words = [sys.executable, "-m", "mgg_hpc", *launch, "train", str(folder / "job.toml"), "--no-progress"]
    began = time.perf_counter()
    children.output(words, "mgg train")
    seconds = time.perf_counter() - began
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    return summary | {"process_ms": 1e3 * seconds}
