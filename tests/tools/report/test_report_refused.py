"""What `mgg report` refuses: damaged runs, and outputs that cannot be."""

from __future__ import annotations

import json
import math

import pytest
from tools.report.pages import checked, write_profile

from mgg_hpc.__main__ import main


def edited(name, change):
    def edit(folder):
        path = folder / name
        path.write_text(change(path.read_text()))

    return edit


def without(text, key):
    found = json.loads(text)
    del found[key]
    return json.dumps(found)


REFUSED = {
    "no run": (lambda folder: (folder / "job.toml").unlink(), "holds no run (job.toml is missing)"),
    "no metrics": (lambda folder: (folder / "metrics.csv").unlink(), "metrics.csv: is missing"),
    "a line too short": (
        edited("metrics.csv", lambda text: text.replace("\n4,", "\n4\n4,", 1)),
        "line 5 must have 8",
    ),
    "a line twice": (edited("metrics.csv", lambda text: text.replace("\n4,", "\n5,", 1)), "epoch 4 first"),
    "words": (
        edited("metrics.csv", lambda text: text.replace("\n4,", "\n4,x", 1)),
        "line 5 is not of numbers",
    ),
    "another header": (edited("metrics.csv", lambda text: "x" + text), "its first line must name columns"),
    "no text": (lambda folder: (folder / "metrics.csv").write_bytes(b"\xff\xfe"), "metrics.csv: is damaged"),
    "half a summary": (edited("summary.json", lambda text: text[:200]), "summary.json: is damaged"),
    "another's summary": (
        edited("summary.json", lambda text: text.replace("mgg-summary", "mgg-bench")),
        "is no mgg-summary of version 1",
    ),
    "a list": (edited("summary.json", lambda text: f"[{text}]"), "is no mgg-summary of version 1"),
    "a key less": (edited("summary.json", lambda text: without(text, "bytes")), "lacks what a run writes"),
    "a text for ranks": (
        edited("summary.json", lambda text: text.replace('"per_rank": [', '"per_rank": ["x", ', 1)),
        "lacks what a run writes",
    ),
    "the tuner's": (lambda folder: (folder / "tuning.json").write_text("{"), "tuning.json: is damaged"),
    "a profile of ranks in words": (
        lambda folder: write_profile(folder, "two", {}),
        "profile/summary.json: ranks must be a whole number of at least 1",
    ),
    "a profile of no rank": (
        lambda folder: write_profile(folder, 0, {}),
        "profile/summary.json: ranks must be",
    ),
    "a damaged job": (edited("job.toml", lambda text: text + "\n[x]\ny = 1\n"), "unknown section [x]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_run_gets_one_line_and_no_page(copied, capsys, case):
    damage, message = REFUSED[case]
    folder = copied()
    damage(folder)
    capsys.readouterr()
    assert main(["report", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err
    assert not (folder / "report.html").exists()


def test_outputs_and_numbers_of_runs_are_checked(copied, tmp_path, capsys):
    folder = copied()
    there = tmp_path / "there.html"
    there.write_text("mine")
    for arguments, message in (
        ([folder, "-o", there], "exists"),
        ([folder, "-o", tmp_path / "no" / "page.html"], "is not a folder"),
        ([folder, folder], "a run is named twice"),
        ([folder] * 9, "a report shows 8 at most"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert main(["report", str(folder), "-o", str(there), "--force", "--no-least"]) == 0
    checked(there)
    assert math.isclose(there.stat().st_mode & 0o777, 0o600)
