"""`mgg study programs`: its tables and pictures, and what it refuses."""

from __future__ import annotations

import pytest
from command import mgg, refused

from mgg_hpc.tools.bench.programs.parts import PARTS
from mgg_hpc.tools.study import table


@pytest.mark.long
def test_each_part_writes_a_table_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = (
        "--width",
        "8",
        "--nodes",
        "300",
        "--threads",
        "1",
        "--turns",
        "1",
        "--peers",
        "none",
        "--programs",
        "typed",
        "--ranks",
        "2",
    )
    assert mgg("study", "programs", "rmat:5:4", *words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{part}.{ending}" for part in PARTS for ending in ("csv", "png")
    }
    rows = table.read(tmp_path / "fused.csv")
    assert [(row["graph"], row["model"], row["variant"]) for row in rows] == [
        ("rmat5", "typed", name) for name in ("mgg", "mgg edge tensors")
    ]
    assert all(row["edge_tensor_bytes"] == row["edges"] * 8 * 4 and row["peak_bytes"] > 0 for row in rows)
    assert rows[0]["times_first"] == 1
    rows = table.read(tmp_path / "density.csv")
    assert [(row["density_percent"], row["nodes"]) for row in rows][-1] == (10, 300)
    rows = table.read(tmp_path / "schedules.csv")
    assert [(row["model"], row["variant"]) for row in rows] == [
        (program, name)
        for program in ("gcn", "gated-gcn")
        for name in ("accumulator", "stage", "destination")
    ]
    assert [row["sums_bytes"] > 0 for row in rows] == [False, True, False] * 2  # one chunk holds all sources
    assert [row["variant"] for row in table.read(tmp_path / "overlap.csv")] == ["ahead", "when wanted"] * 2
    rows = table.read(tmp_path / "ring.csv")
    assert [row["ranks"] for row in rows] == [2, 2]
    assert rows[1]["chunks_bytes"] == 2 * rows[0]["chunks_bytes"]
    said = capsys.readouterr().out
    assert "fused propagation" in said and "products by density" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("karate", "karate: no such graph"),
        ("--parts fused,ring-road", "'ring-road' is not one of fused, density"),
        ("--peers numpy", "'numpy' is not one of none, dgl"),
        ("--folder missing", "--folder missing: is not a folder"),
        ("--width 0", "0 is not in the range"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "study", "programs", *words.split())
