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
    shutil.copytree("runs/first/001", "runs/ties")
    shown = tmp_path / "runs/ties/metrics.csv"
    head, *rest = shown.read_text().splitlines()
    scores = [(0.4, 0.1, 0.1), (0.5, 0.2, 0.9), (0.5, 0.3, 0.8), (0.5, 0.4, 0.8)]
    for place, (val, test, loss) in enumerate(scores):
        cells = dict(zip(head.split(","), rest[place].split(","), strict=True))
        cells |= {"val_accuracy": str(val), "test_accuracy": str(test), "val_loss": str(loss)}
        rest[place] = ",".join(cells.values())
    shown.write_text("\n".join([head, *rest, ""]))
    capsys.readouterr()
    assert mgg("runs") == 0
    printed = capsys.readouterr().out
    assert "┃ time of epochs ┃" in printed  # mgg train prints those of the start as well
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    found = {name: cells for name, *cells in filter(None, lines)}
    assert list(found) == ["first/001", "second/001", "stopped", "ties", "wrong"]
    assert found["ties"][3:5] == [
        "0.5000",
        "0.3000",
    ]  # of equal scores the lowest loss, of equal losses the first
    for name, epochs in (("first/001", "4"), ("second/001", "5"), ("stopped", "5 of 5, not ended")):
        with (tmp_path / "runs" / name / "metrics.csv").open() as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
        row = best if name == "first/001" else rows[-1]
        seconds = sum(row["epoch_ms"] + row["eval_ms"] for row in rows) / 1000
        scores = [f"{row['val_accuracy']:.4f}", f"{row['test_accuracy']:.4f}", f"{seconds:.1f} s"]
        assert found[name] == ["gcn", "g" if name == "stopped" else blocks().name, epochs, *scores]
    assert found["wrong"] == ["damaged", "", "", "", "", ""]
    with (tmp_path / "runs/first/001/summary.json").open() as file:
        assert f"{json.load(file)['test_accuracy']:.4f}" == found["first/001"][4]


MISSPELT = {
    "trian": "there is no command 'trian'; did you mean 'train'?",
    "imprt": "there is no command 'imprt'; did you mean 'import'?",
    "generate rmta": "there is no command 'rmta'; did you mean 'rmat'?",
    "traverse pagernk g.h5": "there is no command 'pagernk'; did you mean 'pagerank'?",
    "traverse components": "there is no command 'components'; there are bfs, sssp, cc, pagerank",
    "launch -n 2 trian": "NAME.py); did you mean 'train'?",
    "import plantoid -o g.h5": "or --format; did you mean 'planetoid'?",
    "import g.txt --format edgse -o g.h5": "'edgse' is not one of 'digits', 'planetoid', 'npz', 'edges', ",
    "import g.txt --format mtix -o g.h5": "'ogb'; did you mean 'mtx'?",
    "generate like redit -o g.h5": "'papers100M'; did you mean 'reddit'?",
    "train job.toml --verbos": "No such option '--verbos'.",
}


@pytest.mark.parametrize("words", MISSPELT)
def test_misspelt_words_are_answered_with_what_was_meant(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert MISSPELT[words] in refused(capsys, *words.split())
