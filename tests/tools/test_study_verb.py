"""`mgg study` as a command: it starts its ranks itself, and refuses what cannot be measured."""

from __future__ import annotations

import subprocess

import pytest
from command import refused
from jobs import MGG, clean_environment
from tiers import drawn

from mgg_hpc.tools.study import cpu, table


def ended(folder, *words: str) -> str:
    """Run a study in a folder, and return what it printed."""
    done = subprocess.run(
        [MGG, "study", *words],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("study", drawn([*cpu.STUDIES, "design-space"], 2))
def test_a_study_starts_its_ranks_and_writes_its_files_here(tmp_path, study):
    said = ended(tmp_path, study, "rmat:6:4", "--ranks", "2", "--threads", "1", "--turns", "1")
    assert "2 x 1 ranks x threads, backend shm" in said
    rows = table.read(tmp_path / f"{study}.csv")
    assert {(row["study"], row["ranks"]) for row in rows} == {(study, 2)}
    assert (tmp_path / f"{study}.png").stat().st_size > 20_000
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.long
def test_scaling_has_each_number_of_ranks_beside_one_rank(tmp_path):
    words = (
        "rmat:6:4",
        "--ranks",
        "1,2",
        "--widths",
        "4,8",
        "--turns",
        "2",
        "--csv",
        "s.csv",
        "--plot",
        "s.svg",
    )
    said = ended(tmp_path, "scaling", *words)
    rows = table.read(tmp_path / "s.csv")
    of = {(row["ranks"], row["width_values"], row["variant"]): row for row in rows}
    assert len(of) == len(rows) and {key[:2] for key in of} == {(1, 4), (1, 8), (2, 4), (2, 8)}
    for (ranks, width, variant), row in of.items():
        assert row["study"] == "scaling" and (row["remote_edges"] > 0) == (ranks > 1)
        alone = of[1, width, variant]["median_ms"]
        assert row["times_first"] == pytest.approx(row["median_ms"] / alone, abs=1e-4)
        assert variant.partition(":")[0][:20] in said
    assert "</svg>" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("transfers karate", "karate: no such graph"),
        ("transfers rmat:5 --widths 0", "--widths 0"),
        ("transfers rmat:5 --csv missing/t.csv", "missing is not a folder"),
        ("transfers rmat:5 --csv .", ". is not a regular file"),
        ("transfers rmat:5 --plot ..", ".. is not a regular file"),
        ("transfers rmat:5 --plot t.bmp", "t.bmp: a plot is a .png, .svg or .pdf"),
        ("interleaving rmat:5 --share 0.2", "--share has a meaning with --device cuda only"),
        ("primitives rmat:5 --device cuda --ranks 2", "--ranks has no meaning with --device cuda"),
        ("transfers rmat:5 --epochs --device cuda", "--epochs is for CPUs"),
        ("transfers rmat:5 --epochs --widths 16", "--widths has no meaning with --epochs"),
        ("scaling rmat:5 --ranks 1,x", "--ranks 1,x"),
        ("design-space rmat:5 --width 0", "0 is not in the range"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "study", *words.split())
