"""benchmarks/studies as programs: they start their ranks themselves, and refuse bad input in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from jobs import python
from tiers import drawn

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"

MEASURED = ("neighbour_partitioning", "interleaving", "primitives", "transfers", "epochs")

pytestmark = pytest.mark.long


def run(study: str, *words: object) -> str:
    """Run a study, and return its output."""
    done = python(STUDIES / f"{study}.py", *words, COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("study", drawn(MEASURED, 2))
def test_a_study_starts_its_ranks_and_writes_its_files(tmp_path, study):
    files = [tmp_path / f"found{suffix}" for suffix in (".csv", ".png")]
    said = run(study, "rmat:6:4", "--ranks=2", "--threads=1", "--turns=1", *(f"-o{file}" for file in files))
    rows = list(csv.DictReader(files[0].open()))
    assert {(row["ranks"], row["backend"]) for row in rows} == {("2", "shm")}
    assert {row["benchmark"] for row in rows} == {study.replace("_", " ")}
    assert all(row["variant"][:20] in said for row in rows)
    assert files[1].stat().st_size > 20_000
    assert set(tmp_path.iterdir()) == set(files)


def test_scaling_has_each_number_of_ranks_and_its_ratio_to_one_rank(tmp_path):
    words = ("rmat:6:4", "--ranks=1,2", "--widths=4,8", "--turns=2")
    run("scaling", *words, "-o", tmp_path / "s.json", "-o", tmp_path / "s.svg")
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    found = {(row["ranks"], row["width"], row["variant"]): row for row in rows}
    assert len(found) == len(rows) and {key[:2] for key in found} == {(1, 4), (1, 8), (2, 4), (2, 8)}
    for (ranks, width, variant), row in found.items():
        assert (row["remote_edges"] > 0) == (ranks > 1)
        alone = found[1, width, variant]["median_ms"]
        assert row["times_first"] == pytest.approx(row["median_ms"] / alone, abs=1e-4)
    assert "</svg>" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize(
    ("study", "words", "said"),
    [
        ("transfers", ["karate"], "karate: no such graph"),
        ("transfers", ["rmat:5", "--widths=0"], "--widths 0"),
        ("epochs", ["rmat:5", "-o", "missing/e.csv"], "missing is not a folder"),
        ("scaling", ["rmat:5", "--ranks=1,x"], "--ranks 1,x"),
        ("design_space", ["rmat:5", "--backend=none"], "none"),
        (
            "design_space",
            ["rmat:5", "--device=cuda", "--threads=1"],
            "--threads has no meaning with --device cuda",
        ),
        ("primitives", ["rmat:5", "--device=cuda", "--ranks=2"], "--ranks has no meaning"),
        ("transfers", ["rmat:5", "--share=0.2"], "--share has no meaning with --device cpu"),
    ],
)
def test_bad_input_is_refused_in_one_line(study, words, said):
    done = python(STUDIES / f"{study}.py", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
