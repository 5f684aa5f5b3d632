"""benchmarks/start.py: the parts of a run's start, and how they add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import python

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "start.py"
PARTS = [
    "backend",
    "read",
    "check",
    "plan",
    "features",
    "transfer",
    "estimate",
    "symmetric memory",
    "first epoch",
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_of_a_start_add_up(tmp_path, ranks):
    words = ["rmat:8:4", f"--ranks={ranks}", "--turns=1", "-o", "s.json", "-o", "s.md"]
    done = python(SCRIPT, *words, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "s.json").read_text())
    assert (found["ranks"], found["nodes"]) == (ranks, 256)
    assert found["backend"] == ("serial" if ranks == 1 else "shm")
    ms = {row["variant"]: row["median_ms"] for row in found["rows"]}
    assert list(ms) == [*PARTS, "all beyond reading", "process"] and min(ms.values()) >= 0
    beyond = sum(ms[name] for name in PARTS if name != "read")
    assert ms["all beyond reading"] == pytest.approx(beyond, abs=1e-2) and beyond < ms["process"]
    assert "| first epoch |" in (tmp_path / "s.md").read_text() and "first epoch" in done.stdout


def test_kept_plans_are_taken(tmp_path):
    words = ["rmat:8:4", "--backend=serial", "--kept-plans", "--turns=1", "-o", "s.json"]
    assert python(SCRIPT, *words, folder=tmp_path).returncode == 0
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["kept_plans"] and 50 < found["peak_mib"] < 2000


def test_bad_input_is_one_line(tmp_path):
    for words, said in (
        (["nothing"], "no such graph"),
        (["rmat:28:7", "--backend=fast"], "run.backend is 'fast'"),  # before it is drawn
    ):
        done = python(SCRIPT, *words, folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
