"""`mgg bench start`: the parts of a run's start, and how they add up."""

from __future__ import annotations

import json
import subprocess

import pytest
from jobs import MGG, clean_environment
from tiers import long_except


@pytest.mark.long
@pytest.mark.parametrize("ranks", long_except([1, 2], 1))
def test_parts_of_a_start_are_shown_and_written(tmp_path, ranks):
    words = ["rmat:8:4", "--ranks", str(ranks), "--turns", "2", "--json", "s.json", "--table", "s.md"]
    done = subprocess.run(
        [MGG, "bench", "start", *words],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "s.json").read_text())
    assert (found["benchmark"], found["ranks"], found["nodes"]) == ("start", ranks, 256)
    assert found["backend"] == ("serial" if ranks == 1 else "shm")
    samples = found["samples_ms"]
    assert all(len(times) == 2 and min(times) >= 0 for times in samples.values())
    parts = ["backend", "read", "check", "plan", "features", "transfer", "estimate"]
    parts += ["symmetric memory", "first epoch"]
    assert list(samples) == [*parts, "all beyond reading", "process"]
    for turn in range(2):
        beyond = sum(samples[name][turn] for name in parts if name != "read")
        assert samples["all beyond reading"][turn] == pytest.approx(beyond)
        assert beyond < samples["process"][turn]
    assert "| first epoch |" in (tmp_path / "s.md").read_text() and "first epoch" in done.stdout
