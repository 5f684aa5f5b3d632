"""benchmarks/real_size.py on small graphs: every part has its rows, whose sizes are those of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import python

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "real_size.py"
ROWS = {"text": 5, "ogb": 4, "rmat": 1, "partition": 2, "plan": 2, "start": 3, "read": 1}


def test_every_part_has_its_rows(tmp_path):
    done = python(SCRIPT, "--edges=50000", "--folder", tmp_path, "-o", tmp_path / "r.json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["part"] for row in rows] == [part for part, count in ROWS.items() for _ in range(count)]
    parts = {part: [row for row in rows if row["part"] == part] for part in ROWS}
    commands = [row for part in ("text", "ogb", "rmat") for row in parts[part]] + parts["partition"][1:]
    assert all(row["seconds"] > 0 and 20 < row["peak_mib"] < 1000 for row in commands + parts["start"])
    edges = int(parts["rmat"][0]["case"].split()[2].replace(",", ""))
    assert 0.5 * 50_000 < edges < 2 * 50_000
    of_rank = int(parts["plan"][0]["case"].split()[4].replace(",", ""))
    assert edges / 8 < of_rank < 1.5 * edges / 8  # with self loops
    assert "0 MB of plans" in parts["start"][0]["note"] and "read 0." in parts["start"][2]["note"]
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]


def test_bad_input_is_one_line(tmp_path):
    done = python(SCRIPT, "--parts=text,metis", folder=tmp_path)
    said = "--parts text,metis: 'metis' is not one of text, ogb, rmat, partition, plan, start, read"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"real_size.py: error: {said}\n")
