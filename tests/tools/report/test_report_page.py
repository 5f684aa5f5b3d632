"""`mgg report`: a page that stands alone, whose numbers are the run's."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from tools.report.pages import EPOCHS, checked, curves_of, lines_of, summary_of, write_profile

from mgg_hpc.__main__ import main


def test_a_run_s_page_shows_what_its_files_say(copied, capsys):
    folder = copied()
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    page, summary, lines = checked(folder / "report.html"), summary_of(folder), lines_of(folder)
    facts = page.facts("runs/001")
    assert facts["test accuracy"] == f"{summary['test_accuracy']:.4f}"
    assert facts["final loss"] == f"{float(lines[-1]['loss']):.6f}" == f"{summary['final_loss']:.6f}"
    assert facts["best epoch"] == f"{summary['best_epoch']} of {EPOCHS}"
    assert facts["epoch, ms"].split()[0] == f"{np.median([float(line['epoch_ms']) for line in lines]):.2f}"
    phases = {row["phase"]: row for row in page.table("phase")}
    spent = summary["per_rank"][0]["phases_ms"]
    assert set(phases) == {name for name, ms in spent.items() if ms > 0}
    assert all(row["mean"] == f"{spent[phase]:.1f}" for phase, row in phases.items())
    assert {row[""]: row["runs/001"] for row in page.table("runs/001")}["seed"] == "5"
    # A curve is drawn upwards, of losses and times by their logarithm.
    drawn = [np.corrcoef(curve, range(EPOCHS))[0, 1] for curve in curves_of(page, EPOCHS)]
    assert len(drawn) == 7
    columns = {name: np.array([float(line[name]) for line in lines]) for name in lines[0]}
    expected = [np.log(columns[name]) for name in ("loss", "val_loss", "epoch_ms", "eval_ms")]
    expected += [columns[f"{split}_accuracy"] for split in ("train", "val", "test")]
    for values in expected:
        alike = [np.corrcoef(curve, values)[0, 1] for curve in curves_of(page, EPOCHS)]
        assert min(alike) == pytest.approx(-1, abs=1e-5)


def test_several_runs_stand_side_by_side_with_the_tuner_s_path(copied, tmp_path, rng):
    folders = [copied("001"), copied("002")]
    changed = summary_of(folders[1]) | {"test_accuracy": 0.4321}
    (folders[1] / "summary.json").write_text(json.dumps(changed))
    seconds = rng.uniform(0.01, 0.02, 5).tolist()
    steps = [
        {
            "knob": "start" if i == 0 else "ps",
            "setting": {"ps": 1 << i, "dist": 3, "wpb": 2},
            "seconds": s,
            "epoch": i,
        }
        for i, s in enumerate(seconds)
    ]
    chosen = steps[int(np.argmin(seconds))]["setting"]
    row = {"rows": "layer 1", "source": "measured", "steps": steps, "chosen": chosen, "gain": 0.25}
    kept = {"format": "mgg-tuning", "version": 1, "rows": [row]}
    (folders[0] / "tuning.json").write_text(json.dumps(kept))
    out = tmp_path / "both.html"
    assert main(["report", *map(str, folders), "-o", str(out)]) == 0
    page = checked(out)
    assert page.facts("runs/002")["test accuracy"] == "0.4321" != page.facts("runs/001")["test accuracy"]
    (path,) = curves_of(page, 5)
    assert np.corrcoef(path, seconds)[0, 1] == pytest.approx(-1, abs=1e-5)
    assert f"layer 1: ps {chosen['ps']}, dist 3, wpb 2 (measured, 25% less time than by default)" in page.said


def test_a_run_that_has_not_ended_shows_its_epochs_so_far(copied):
    folder = copied()
    (folder / "summary.json").unlink()
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text()[:-9])  # within the last line
    assert main(["report", str(folder)]) == 0
    page, line = checked(folder / "report.html"), lines_of(folder)[-2]
    facts = page.facts("runs/001")
    assert facts["state"] == f"has not ended: {EPOCHS - 1} of at most {EPOCHS} epochs"
    assert float(facts["loss"]) == pytest.approx(float(line["loss"]), rel=1e-5)
    assert len(curves_of(page, EPOCHS - 1)) == 7


def test_a_run_without_an_epoch_or_of_an_earlier_version_has_a_page(copied):
    folder = copied()
    summary = summary_of(folder)
    for name in ("per_rank", "bounds", "exchanges", "machine", "timed_epochs"):
        del summary[name]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["report", str(folder)]) == 0
    checked(folder / "report.html")
    (folder / "summary.json").unlink()
    (folder / "metrics.csv").write_text("")
    assert main(["report", str(folder)]) == 0
    assert "has not ended: 0 of" in (folder / "report.html").read_text()


@pytest.mark.long
def test_a_page_stays_small(copied, tmp_path, rng):
    """Eight runs of many epochs, ranks and traced events."""
    folders, ranks = [copied(f"00{i}") for i in range(8)], 600
    for folder in folders:
        header = (folder / "metrics.csv").read_text().partition("\n")[0]
        rows = rng.uniform(0.1, 1, (5000, header.count(",") + 1))
        lines = (",".join([f"{i}", *(f"{x:.9g}" for x in row[1:])]) for i, row in enumerate(rows, 1))
        (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
        summary = summary_of(folder)
        summary |= {"per_rank": summary["per_rank"] * ranks, "ranks": ranks, "bounds": [0] * ranks + [150]}
        summary |= {name: summary[name] * ranks for name in ("estimated_bytes", "peak_rss_bytes")}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "profile").mkdir()
        kept = {"format": "mgg-profile", "version": 1, "ranks": 4, "exchanges": []}
        (folder / "profile" / "summary.json").write_text(json.dumps(kept))
        events = [{"ph": "X", "cat": "user_annotation", "name": "epoch 4", "ts": 0, "dur": 1e5}]
        events += [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "layer 1 forward: aggregate",
                "ts": 10 * i,
                "dur": 5,
            }
            for i in range(5000)
        ]
        for rank in range(4):
            trace = gzip.compress(json.dumps({"traceEvents": events}).encode(), 1)
            (folder / "profile" / f"rank-{rank}.json.gz").write_bytes(trace)
    assert main(["report", *map(str, folders), "-o", str(tmp_path / "page.html")]) == 0
    page = checked(tmp_path / "page.html")
    assert "only where there are at most 256 ranks" in page.said and f"{ranks - 64} more" in page.said
    assert "epoch 4, as it was profiled" in page.said


@pytest.mark.slow
def test_names_are_shown_and_not_obeyed(copied, tmp_path):
    run, rows = 'x"y<b>$_$', 'a" onload="alert(1)" x="'
    folders = [copied(run), copied()]
    name = "<script>alert(1)</script><b onload='x'>&amp;\ud800"
    summary = summary_of(folders[0])
    summary["graph"]["name"] = name
    (folders[0] / "summary.json").write_text(json.dumps(summary))
    setting = {"ps": 16, "dist": 1, "wpb": 2}
    steps = [{"knob": rows, "setting": setting, "seconds": 0.01, "epoch": 1}]
    row = {"rows": rows, "source": rows, "steps": steps, "chosen": setting, "gain": 0.5}
    kept = {"format": "mgg-tuning", "version": 1, "rows": [row]}
    (folders[0] / "tuning.json").write_text(json.dumps(kept))
    out = tmp_path / "page.html"
    assert main(["report", *map(str, folders), "-o", str(out)]) == 0
    page, text = checked(out), out.read_text()
    assert "<script" not in text and "<b " not in text and "<b>" not in text
    assert page.facts(f"runs/{run}")["graph"].startswith(name.replace("\ud800", "?"))
    assert f"Settings that runs/{run} has tried for {rows}" in page.labels
    assert f"runs/{run}" in page.drawn and rows in page.drawn


def test_runs_of_one_name_are_told_apart(copied, tmp_path):
    folders = [copied("a/runs/001"), copied("b/runs/001"), copied("b/runs/002")]
    changed = summary_of(folders[1]) | {"test_accuracy": 0.4321}
    (folders[1] / "summary.json").write_text(json.dumps(changed))
    assert main(["report", *map(str, folders), "-o", str(tmp_path / "page.html")]) == 0
    page = checked(tmp_path / "page.html")
    assert page.facts("b/runs/001")["test accuracy"] == "0.4321" != page.facts("a/runs/001")["test accuracy"]
    assert page.tables[0][0] == ["", "a/runs/001", "b/runs/001", "b/runs/002"]


@pytest.mark.parametrize("there", [0, 1])
def test_a_trace_that_is_missing_does_not_move_the_others(copied, there):
    folder = copied()
    pushed = {"ph": "X", "cat": "exchange", "name": "push", "ts": 20, "dur": 5}
    events = [pushed | {"args": {"round": 0, "to": 1 - there}}]
    events += [{"ph": "X", "cat": "user_annotation", "name": "loss", "ts": 10, "dur": 50}]
    write_profile(folder, 2, {there: events})
    assert main(["report", str(folder)]) == 0
    page = checked(folder / "report.html")
    assert {text for text in page.drawn if ": stages" in text} == {f"rank {there}: stages"}
    assert "1 of 2 ranks" in page.said


def test_a_profile_of_very_many_ranks_is_read_by_the_traces_that_are_there(copied):
    folder = copied()
    write_profile(folder, 10**15, {})
    assert main(["report", str(folder)]) == 0
    assert f"the traces of {10**15} of {10**15} ranks are missing" in checked(folder / "report.html").said
