"""benchmarks/overlap.py: rows, bytes and hidden shares, on ranks that it starts and on two hosts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import overlap
import pytest
import two_hosts
from jobs import python

from mgg_hpc.errors import InputError
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results

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
    rounding = 5e-5 * (3 + abs(hidden)) / min(ms["sum"], ms["exchange"])  # ms have four decimals
    assert rows["halo"]["hidden_share"] == pytest.approx(hidden, abs=1e-3 + 2 * rounding)
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


def test_a_run_on_hosts_that_fails_or_does_not_end_is_one_line():
    class Failing:
        def run(self, command, *_, **__):
            return subprocess.CompletedProcess(command, 3, "", "mgg: much\nis said\nthe end\n")

    class Endless:
        def run(self, command, *_, seconds, **__):
            raise subprocess.TimeoutExpired(command, seconds)

    with pytest.raises(InputError, match=r"rmat:5 .*: exit code 3: the end$"):
        overlap.rows_of("rmat:5", hosts=Failing())
    with pytest.raises(InputError, match=r"rmat:5 .*: not done after 300 seconds$"):
        overlap.rows_of("rmat:5", hosts=Endless())


@pytest.mark.parametrize(("moving", "case"), [(1.05, "matched link"), (3.0, "link not matched")])
def test_rows_and_notes_say_whether_the_link_was_matched(monkeypatch, moving, case):
    ms = {"halo": 2.0, "bulk": 3.0, "sum": 1.0, "exchange": moving}
    rows = {way: {"median_ms": taken, "cpu_ms": 0.5, "crossing_bytes": 64} for way, taken in ms.items()}
    monkeypatch.setattr(overlap, "rows_of", lambda *_, **__: {way: dict(row) for way, row in rows.items()})
    results, rates = Results("overlap"), []
    hosts = SimpleNamespace(throttle=lambda rate="": rates.append(rate))
    overlap.on_matched_link(results, hosts, "rmat:5", 1)
    assert {(row["case"], row["exchange_over_sums"]) for row in results.rows} == {(case, moving)}
    assert len(results.notes) == (moving > 2)
    assert len(rates) == 1 + (1 if moving < 2 else overlap.TRIES)
