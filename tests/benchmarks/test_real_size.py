"""benchmarks/real_size.py on small graphs: every part has its rows, whose sizes are those of the files."""

from __future__ import annotations

import pytest
import real_size

from mgg_hpc.errors import InputError

pytestmark = pytest.mark.long

ROWS = {"text": 3, "ogb": 4, "rmat": 3}


def test_every_part_has_its_rows(measured, tmp_path):
    rows = measured("real_size", "--edges=50000", "--folder", tmp_path, picture=False)["rows"]
    assert [row["part"] for row in rows] == [part for part, count in ROWS.items() for _ in range(count)]
    commands = [row for row in rows if not row["case"].startswith("ranges")]
    assert len(commands) == 9 and all(row["seconds"] > 0 and 20 < row["peak_mib"] < 1000 for row in commands)
    edges = int(rows[7]["case"].split()[2].replace(",", ""))  # of rmat
    assert 0.5 * 50_000 < edges < 2 * 50_000
    assert list(tmp_path.iterdir()) == [tmp_path / "found.json"]


def test_a_command_that_fails_is_one_line():
    with pytest.raises(InputError, match=r"^mgg import /absent: exit code 2: mgg: error: [^\n]+$"):
        real_size.mgg("import /absent")
