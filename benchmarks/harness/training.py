"""Trainings by `mgg train`, in processes of their own, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomli_w

from mgg_hpc.errors import InputError


def train(folder: Path, tree: dict[str, dict[str, Any]], ranks: int = 1) -> dict[str, Any]:
    """Train on so many ranks; return summary.json, with "process_ms": the time of all processes from start to end.

    folder: for the job file, to which names of files are relative, and for the runs. tree: sections of the job file.

    Raises InputError, with the output of the training, if it fails.
    """
    sections = tree | {"run": {"folder": str(folder / "runs")} | tree.get("run", {})}
    (folder / "job.toml").write_text(tomli_w.dumps(sections))
    launch = [] if ranks == 1 else ["launch", "-n", str(ranks)]
    words = [sys.executable, "-m", "mgg_hpc", *launch, "train", str(folder / "job.toml"), "--no-progress"]
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise InputError(f"the training failed: {' '.join(done.stderr.split()) or done.returncode}")
    summary: dict[str, Any] = json.loads((folder / "runs" / "latest" / "summary.json").read_text())
    return summary | {"process_ms": 1e3 * seconds}
