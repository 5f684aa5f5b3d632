"""The benchmark of traversals: what it refuses, and that all parts run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import clean_environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def traversal(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import traversal

    return traversal


def test_results_that_differ_are_refused(traversal):
    ours = np.array([0.0, 1.0, -1.0])
    traversal.compare("bfs", {"mgg": ours, "scipy": ours.copy(), "gapbs": np.zeros(0)})
    with pytest.raises(RuntimeError, match=r"bfs: scipy's result differs from ours, by 1 in all"):
        traversal.compare("bfs", {"mgg": ours, "scipy": ours + np.array([0, 0, 1])})
    traversal.compare("pagerank", {"mgg": ours, "igraph": ours + 1e-4})
    with pytest.raises(RuntimeError, match=r"igraph's result differs"):
        traversal.compare("pagerank", {"mgg": ours, "igraph": ours + 1e-3})


def test_all_parts_run(tmp_path):
    """Beside SciPy, whose results are ours."""
    output = tmp_path / "traversal.json"
    words = ["--graphs=rmat:9:8,rmat:7", "--sources=3", "--turns=1", "--peers=scipy"]
    words += ["--peers-env", str(Path(sys.prefix)), "--json", str(output)]
    command = [sys.executable, ROOT / "benchmarks" / "traversal.py", *words]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(output.read_text())
    for part in ("bfs", "sssp", "cc", "pagerank"):
        assert [row["nodes"] for row in found[part]] == [512, 128]
        peers = {"scipy"} if part != "pagerank" else set()
        for row in found[part]:
            assert row["ms"].keys() == {"mgg"} | peers and row["speedup"].keys() == peers


def test_bad_options_are_one_line(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "traversal.py", "--parts=dfs"]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "traversal: error: --parts dfs: 'dfs' is not one of bfs, sssp, cc, pagerank\n"
