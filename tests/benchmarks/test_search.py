"""benchmarks/search.py: all settings are measured beside the found one, and starts from the cache train the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import search
from jobs import python

from mgg_hpc.data import generate

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search.py"


def test_settings_and_starts_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # which the script sets to another
    monkeypatch.setitem(search.GRAPHS, "rmat18", lambda: generate.rmat(8, 4, 0))
    words = [
        "--graphs=rmat18",
        "--widths=16",
        "--turns=1",
        "--start=rmat:16:16",
        "-o",
        str(tmp_path / "s.json"),
    ]
    search.main(words, standalone_mode=False)
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    sums = {row["variant"]: row for row in rows if row["part"] == "sums"}
    assert list(sums) == ["found", "best", "default", "(1, 1, 1)"]
    assert (
        sums["best"]["over_best_percent"]
        == 0
        <= min(sums[name]["over_best_percent"] for name in ("found", "default"))
    )
    assert all(row["points"] <= 12 <= row["settings"] for row in sums.values())
    starts = {(row["part"], row["variant"]): row for row in rows if row["part"] != "sums"}
    assert list(starts) == [(part, name) for part in ("process", "epoch") for name in ("job file", "cache")]
    for part in ("process", "epoch"):
        cache = starts[part, "cache"]
        assert cache["turns"] == 2 and cache["min_times"] <= cache["times_first"] <= cache["max_times"]
        assert starts[part, "job file"]["wpb"] == cache["wpb"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--graphs=rmat18,ring"],
            "--graphs rmat18,ring: 'ring' is not one of rmat18, cnr_2000, mesh, stars, sbm",
        ),
        (
            ["--graphs=none", "--start=rmat:7"],
            "--start rmat:7: has 1,872 edges; expected 1,048,576 for each rank",
        ),
    ],
)
def test_bad_input_is_one_line(words, said, tmp_path):
    done = python(SCRIPT, *words, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"search.py: error: {said}\n")
