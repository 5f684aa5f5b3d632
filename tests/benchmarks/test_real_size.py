"""benchmarks/real_size.py on small graphs: every part has its rows, whose sizes are those of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import real_size
from jobs import python

from mgg_hpc.errors import InputError

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "real_size.py"
ROWS = {"text": 5, "ogb": 4, "rmat": 1, "partition": 2, "plan": 2, "read": 1}


def test_every_part_has_its_rows(tmp_path):
    done = python(SCRIPT, "--edges=50000", "--folder", tmp_path, "-o", tmp_path / "r.json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["part"] for row in rows] == [part for part, count in ROWS.items() for _ in range(count)]
    parts = {part: [row for row in rows if row["part"] == part] for part in ROWS}
    commands = [row for part in ("text", "ogb", "rmat") for row in parts[part]] + parts["partition"][1:]
    commands = [row for row in commands if "left out" not in row.get("note", "")]
    assert len(commands) >= 9 and all(row["seconds"] > 0 and 20 < row["peak_mib"] < 1000 for row in commands)
    edges = int(parts["rmat"][0]["case"].split()[2].replace(",", ""))
    assert 0.5 * 50_000 < edges < 2 * 50_000
    of_rank = int(parts["plan"][0]["case"].split()[4].replace(",", ""))
    assert edges / 8 < of_rank < 1.5 * edges / 8  # with self loops
    assert all(row["floor_seconds"] > 0 < row["seconds"] for row in parts["plan"])
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]


def test_a_library_that_is_not_there_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(real_size, "PEERS", {"no_such_library": "import no_such_library"})
    *_, row = real_size.text(real_size.Folder(tmp_path), 100)
    assert row["note"].startswith("left out: ") and row["note"].endswith("has no no_such_library")


def test_a_command_that_fails_is_one_line():
    with pytest.raises(InputError, match=r"^mgg import /absent: exit code 2: mgg: error: [^\n]+$"):
        real_size.mgg("import /absent")


def test_bad_input_is_one_line(tmp_path):
    done = python(SCRIPT, "--parts=text,metis", folder=tmp_path)
    said = "--parts text,metis: 'metis' is not one of text, ogb, rmat, partition, plan, read"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"real_size.py: error: {said}\n")
