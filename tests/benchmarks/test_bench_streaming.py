"""The benchmark of streaming: parts that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def test_parts_that_are_none_are_named_before_anything_runs():
    command = [
        sys.executable,
        ROOT / "benchmarks" / "streaming.py",
        "--parts",
        "capped,memroy",
        "--graph",
        "nothing",
    ]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    told = "--parts capped,memroy: 'memroy' is not one of memory, capped"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"streaming: error: {told}\n")
