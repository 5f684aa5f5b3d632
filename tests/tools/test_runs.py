"""`mgg runs`: each run with the scores of its metrics.csv."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
from command import mgg, refused
from jobs import blocks, write_job


def test_runs_are_listed_with_their_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "holds no runs" in refused(capsys, "runs")
    for name, chosen in (("first", {"epochs": 4}), ("second", {"epochs": 5, "select": "last"})):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        assert mgg("train", write_job(folder, blocks(), train=chosen, run={"folder": f"runs/{name}"})) == 0
    shutil.copytree("runs/second/001", "runs/stopped")
    (tmp_path / "runs/stopped/summary.json").unlink()
    shutil.copytree("runs/second/001", "runs/wrong")
    (tmp_path / "runs/wrong/metrics.csv").write_text("epoch,loss\n7,1\n")
    capsys.readouterr()
    assert mgg("runs") == 0
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()
    ]
    found = {name: cells for name, *cells in filter(None, lines)}
    assert list(found) == ["first/001", "second/001", "stopped", "wrong"]
    for name, epochs in (("first/001", "4"), ("second/001", "5"), ("stopped", "5 of 5, not ended")):
        with (tmp_path / "runs" / name / "metrics.csv").open() as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        row = max(rows, key=lambda row: row["val_accuracy"]) if name == "first/001" else rows[-1]
        seconds = sum(row["epoch_ms"] + row["eval_ms"] for row in rows) / 1000
        scores = [f"{row['val_accuracy']:.4f}", f"{row['test_accuracy']:.4f}", f"{seconds:.1f} s"]
        assert found[name] == ["gcn", "g" if name == "stopped" else blocks().name, epochs, *scores]
    assert found["wrong"] == ["damaged", "", "", "", "", ""]
    with (tmp_path / "runs/first/001/summary.json").open() as file:
        assert f"{json.load(file)['test_accuracy']:.4f}" == found["first/001"][4]


@pytest.mark.parametrize(
    ("word", "meant"), [("trian", "train"), ("imprt", "import"), ("generat", "generate")]
)
def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(
    word, meant, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert f"there is no command '{word}'; did you mean '{meant}'?" in refused(capsys, word)
