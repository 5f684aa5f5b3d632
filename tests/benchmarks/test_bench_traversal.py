"""benchmarks/traversal.py: results are compared, all parts run, and GAPBS's programs are read as they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import traversal
from jobs import python
from peers import traversals

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "traversal.py"


def test_results_that_differ_are_named():
    ours = np.array([0.0, 1.0, -1.0])
    assert not traversal.differing("bfs", ours, ours.copy())
    assert not traversal.differing("bfs", ours, np.zeros(0))
    assert (
        traversal.differing("bfs", ours, ours + np.eye(3)[2]) == "its result differs from ours, by 1 in all"
    )
    assert not traversal.differing("pagerank", ours, ours + 1e-4)
    assert traversal.differing("pagerank", ours, ours + 1e-3)


def test_results_have_one_form():
    assert traversals.finite([0.0, np.inf, 1.7e308, 3.0]).tolist() == [0, -1, -1, 3]
    assert traversals.least_nodes(np.array([7, 2, 7, 2, 5])).tolist() == [0, 1, 0, 1, 4]


def test_all_parts_run(tmp_path):
    """Beside SciPy, whose results are ours, and programs with the names of GAPBS's."""
    printed = "\n".join(f"Trial Time:     {seconds}" for seconds in (0.003, 0.001, 0.002))
    for name in ("bfs", "sssp", "cc", "pr"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$0 $*" >>"{tmp_path}/asked"\necho "{printed}"\n')
        (tmp_path / name).chmod(0o755)
    words = [
        "rmat:7:8",
        "rmat:6",
        "--sources=3",
        "--turns=1",
        "--peers=scipy,gapbs",
        "-o",
        "t.json",
        "-o",
        "t.svg",
    ]
    words += [f"--peers-env={sys.prefix}"]
    done = python(SCRIPT, *words, folder=tmp_path, MGG_GAPBS=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "t.json").read_text())
    for graph in ("rmat7", "rmat6"):
        for part in traversal.PARTS:
            rows = {
                row["variant"]: row for row in found["rows"] if (row["graph"], row["part"]) == (graph, part)
            }
            assert rows.keys() == {"mgg", "gapbs"} | ({"scipy"} if part != "pagerank" else set())
            assert rows["gapbs"]["median_ms"] == 2  # of its own clock, for each source
            assert rows["mgg"]["times_first"] == 1 and rows["mgg"]["min_ms"] > 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert any("/sssp -n 3 -f " in line and line.endswith(("-d 1", "-d 64")) for line in asked)
    assert any("/pr -n 3 -f " in line and line.endswith(".sg -i 1000 -t 0.0001") for line in asked)


def test_default_graphs_that_are_not_there_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("MGG_DATA", str(tmp_path))
    monkeypatch.setattr(traversal, "GRAPHS", ("rmat:6", "cnr_2000"))
    words = ["--parts=cc", "--peers=none", "--turns=1", "--threads=1", "-o", str(tmp_path / "t.json")]
    traversal.main(words, standalone_mode=False)
    found = json.loads((tmp_path / "t.json").read_text())
    assert [row["graph"] for row in found["rows"]] == ["rmat6"]
    assert any(note.startswith("cnr_2000 is left out: ") for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts=dfs"], "--parts dfs: 'dfs' is not one of bfs, sssp, cc, pagerank"),
        (["rmat:4", "ring.h5"], "ring.h5: no such file"),
        (["--device=cuda"], "--device cuda: benchmarks/studies/traversal.py measures searches on a GPU"),
    ],
)
def test_bad_input_is_one_line(words, said):
    done = python(SCRIPT, *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"traversal.py: error: {said}\n")
