"""benchmarks/overlap.py: rows, bytes and hidden shares, on ranks that it starts and on two hosts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import two_hosts
from jobs import python

from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.tools.bench import graphs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overlap.py"

pytestmark = pytest.mark.long


def run(tmp_path: Path, *words: object) -> dict:
    """Run the script, and return the JSON that it wrote."""
    done = python(SCRIPT, *words, "-o", tmp_path / "o.json", "-o", tmp_path / "o.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "o.png").stat().st_size > 10_000
    return json.loads((tmp_path / "o.json").read_text())


def test_each_way_moves_its_rows_and_the_hidden_share_is_that_of_medians(tmp_path):
    found = run(tmp_path, "rmat:8", "--ranks=2", "--threads=1", "--width=8", "--turns=3")
    graph = graphs.read("rmat:8")
    owner = np.searchsorted(edge_balanced(graph.indptr, 2), np.arange(graph.nodes), side="right") - 1
    target = np.repeat(owner, np.diff(graph.indptr))
    remote = graph.indices[owner[graph.indices] != target]  # of two ranks: its reader is the other one
    rows = {row["variant"]: row for row in found["rows"]}
    moved = {way: row["crossing_bytes"] / 32 for way, row in rows.items()}
    halo, edges = len(np.unique(remote)), len(remote)
    assert moved == {
        **{"halo": halo, "bulk": halo, "exchange": halo, "direct": edges, "get": edges},
        **{"all-gather": graph.nodes, "sum": 0},
    }
    ms = {way: row["median_ms"] for way, row in rows.items()}
    hidden = (ms["sum"] + ms["exchange"] - ms["halo"]) / min(ms["sum"], ms["exchange"])
    assert rows["halo"]["hidden_share"] == pytest.approx(hidden, abs=1e-3 * (1 + abs(hidden)) + 0.02)
    assert found["transfer"] in ("direct", "get", "halo")


def test_two_hosts_on_a_slow_link(tmp_path, require):
    lacking = two_hosts.missing()
    require(not lacking, f"two hosts need {lacking}")
    rows = run(tmp_path, "rmat:8", "--hosts=gigabit", "--turns=1")["rows"]
    assert [row["variant"] for row in rows] == ["halo", "bulk", "get", "all-gather", "sum", "exchange"]
    assert all(row["case"].startswith("1 Gbit/s") for row in rows)


@pytest.mark.parametrize("words", [["rmat:5", "--ways=halo,carrier"], ["rmat:5", "--hosts=none,three"]])
def test_bad_input_is_refused_in_one_line(words):
    done = python(SCRIPT, *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words[1].split(",")[1] in done.stderr
