"""`mgg report`: a page that stands alone, of whole, unfinished, damaged and old runs, and refusals in one line."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess

import numpy as np
import pytest
from jobs import blocks, run, write_job
from PIL import Image
from tools.report.pages import EPOCHS, Page, change, checked, lines_of, summary_of, write_profile

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.tools.report.least import crossing

# Chromium as distributions name it, and Google's builds of it.
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
HEADINGS = ["Runs", "Loss and scores", "Time", "What crosses, and balance", "Memory", "The tuner's path"]
HEADINGS += ["Timeline of an epoch", "Machine", "Job"]


def write_tuning(folder, rows="layer 1", knob="ps", source="measured"):
    setting = {"ps": 16, "dist": -1, "wpb": 2}
    step = {"knob": knob, "setting": setting, "seconds": 0.01, "epoch": 1}
    row = {"rows": rows, "source": source, "steps": [step], "chosen": setting, "gain": 0.5}
    (folder / "tuning.json").write_text(json.dumps({"format": "mgg-tuning", "version": 1, "rows": [row]}))


def test_a_run_s_page_shows_what_its_files_say(copied, capsys):
    folder = copied()
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    page, summary, lines = checked(folder / "report.html"), summary_of(folder), lines_of(folder)
    facts = page.facts("runs/001")
    assert facts["test accuracy"] == f"{summary['test_accuracy']:.4f}"
    assert facts["final loss"] == f"{float(lines[-1]['loss']):.6f}"
    assert facts["best epoch"] == f"{summary['best_epoch']} of {EPOCHS}"
    assert facts["epoch, ms"].split()[0] == f"{np.median([float(line['epoch_ms']) for line in lines]):.2f}"
    spent = summary["per_rank"][0]["phases_ms"]
    assert {row["phase"]: row["mean"] for row in page.table("phase")} == {
        name: f"{ms:.1f}" for name, ms in spent.items() if ms > 0
    }
    assert page.labels == [
        "Loss and scores over epochs",
        "Time of each epoch",
        "Mean time of an epoch by phase",
    ]
    assert folder.joinpath("report.html").stat().st_mode & 0o777 == 0o600


def test_a_run_that_has_not_ended_shows_its_epochs_so_far(copied):
    folder = copied()
    (folder / "summary.json").unlink()
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text()[:-9])  # within the last line
    assert main(["report", str(folder)]) == 0
    facts, line = checked(folder / "report.html").facts("runs/001"), lines_of(folder)[-2]
    assert facts["state"] == f"has not ended: {EPOCHS - 1} of at most {EPOCHS} epochs"
    assert float(facts["loss"]) == pytest.approx(float(line["loss"]), rel=1e-5)
    assert float(facts["validation"]) == pytest.approx(float(line["val_accuracy"]), rel=1e-5)
    metrics.write_text("")
    assert main(["report", str(folder)]) == 0
    assert "has not ended: 0 of" in (folder / "report.html").read_text()


def test_a_run_of_an_earlier_version_has_a_page(copied):
    folder = copied()
    summary = summary_of(folder)
    for name in ("per_rank", "bounds", "exchanges", "machine", "timed_epochs", "estimated_bytes"):
        del summary[name]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["report", str(folder)]) == 0
    checked(folder / "report.html")


@pytest.mark.long
def test_a_page_stays_small(copied, tmp_path, rng):
    """Eight runs of many epochs, ranks and traced events."""
    folders, ranks = [copied(f"00{i}") for i in range(8)], 600
    stage = {"ph": "X", "cat": "user_annotation", "name": "layer 1 forward: aggregate", "dur": 0.1}
    for folder in folders:
        header = (folder / "metrics.csv").read_text().partition("\n")[0]
        rows = rng.uniform(0.1, 1, (5000, header.count(",") + 1))
        lines = (",".join([f"{i}", *(f"{x:.9g}" for x in row[1:])]) for i, row in enumerate(rows, 1))
        (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
        summary = summary_of(folder)
        many = {name: summary[name] * ranks for name in ("per_rank", "estimated_bytes", "peak_rss_bytes")}
        change(folder, ranks=ranks, bounds=[0] * ranks + [150], **many)
        write_profile(folder, 4, {rank: [stage | {"ts": 0.2 * i} for i in range(5000)] for rank in range(4)})
    assert main(["report", *map(str, folders), "-o", str(tmp_path / "page.html")]) == 0
    page = checked(tmp_path / "page.html")
    assert "only where there are at most 256 ranks" in page.said and f"{ranks - 64} more" in page.said
    assert "epoch 4, as it was profiled" in page.said


@pytest.mark.slow
def test_names_are_shown_and_not_obeyed(copied, tmp_path):
    run, rows = 'x"y<b>$_$', 'a" onload="alert(1)" x="'
    folders = [copied(run), copied()]
    name = "<script>alert(1)</script><b onload='x'>&amp;{{ 7 * 7 }}\ud800"
    graph, machine = summary_of(folders[0])["graph"] | {"name": name}, {"<i>": "<u>"}
    change(folders[0], graph=graph, machine=machine, backend=name, model=name)
    write_tuning(folders[0], rows, rows, rows)
    out = tmp_path / "page.html"
    assert main(["report", *map(str, folders), "-o", str(out)]) == 0
    page, text = checked(out), out.read_text()
    assert not {"script", "b", "i", "u"} & page.tags and "49" not in page.facts(f"runs/{run}")["backend"]
    shown = name.replace("\ud800", "?")
    assert (
        page.facts(f"runs/{run}")["graph"].startswith(shown) and shown in page.facts(f"runs/{run}")["backend"]
    )
    assert f"Settings that runs/{run} has tried for {rows}" in page.labels
    assert f"runs/{run}" in page.drawn and rows in page.drawn and "<script" not in text


def test_runs_of_one_name_are_told_apart(copied, tmp_path):
    folders = [copied("a/runs/001"), copied("b/runs/001"), copied("b/runs/002")]
    change(folders[1], test_accuracy=0.4321)
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


@pytest.mark.long
def test_two_ranks_have_their_balance_and_a_timeline_and_a_browser_opens_the_page(tmp_path, require):
    """In the browser, without a network, all sections are there, and all figures, of which none is blank."""
    write_job(tmp_path, blocks(600), train={"epochs": 6}, plan={"transfer": "halo"}, run={"folder": "runs"})
    assert run("launch", "-n", "2", "train", "job.toml", "--profile", folder=tmp_path).returncode == 0
    folder = tmp_path / "runs" / "001"
    write_tuning(folder)
    done = run("report", folder, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page, summary = checked(folder / "report.html"), summary_of(folder)
    found = crossing(tmp_path / "g.h5", np.array(summary["bounds"]))
    rows = page.table("least")
    for rank, (row, each) in enumerate(zip(rows, summary["per_rank"], strict=False)):
        assert row["remote edges"] == f"{each['remote_edges']:,}" == f"{found.edges[rank].sum():,}"
        assert row["each row once"] == f"{each['halo_rows']:,}" == f"{found.halo[rank].sum():,}"
        assert row["least"] == f"{found.least[rank].sum():,}"
    assert f"which is {found.halo.sum() / found.least.sum():.2f} times the least" in page.said
    assert "epoch 6, as it was profiled" in page.said and "a round is pushed here" in page.drawn
    assert len(page.table("hidden")) == 3

    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    require(browser is not None, "no headless browser", f"apt install {BROWSERS[0]}")
    look = """<script>addEventListener("load", () => { document.title = JSON.stringify({
      headings: [...document.querySelectorAll("h2")].map((each) => each.textContent),
      figures: [...document.querySelectorAll("figure svg")].map((each) => each.getBoundingClientRect()),
      letters: [...document.querySelectorAll("svg text")].map((each) => each.getBoundingClientRect().height),
      wide: document.documentElement.scrollWidth, loaded: performance.getEntriesByType("resource").length
    }) })</script>"""
    opened = tmp_path / "opened.html"
    opened.write_text((folder / "report.html").read_text().replace("</body>", f"{look}</body>"))
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'home'}"]
    words += ["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", "--window-size=1200,6000"]
    for more in (["--dump-dom"], [f"--screenshot={tmp_path / 'page.png'}"]):
        done = subprocess.run([*words, *more, opened.as_uri()], capture_output=True, check=True, text=True)
        if more == ["--dump-dom"]:
            seen = json.loads(Page(done.stdout).title)
    assert seen["headings"] == HEADINGS and seen["loaded"] == 0 and seen["wide"] <= 1200
    assert len(seen["figures"]) == len(page.labels) == 5 and min(seen["letters"]) >= 7
    with Image.open(tmp_path / "page.png") as picture:
        pixels = np.asarray(picture.convert("L"), int)
    for box in seen["figures"]:
        top, left = round(box["top"]), round(box["left"])
        assert box["width"] > 900 and box["height"] > 60
        part = pixels[top : top + round(box["height"]), left : left + round(box["width"])]
        assert np.count_nonzero(part != np.median(part)) > 0.01 * part.size

    for graph, said in (
        (blocks(600, seed=4), "has other rows, or in another order"),
        (None, "does not exist"),
    ):
        (tmp_path / "g.h5").unlink()
        if graph is not None:
            writer.write(tmp_path / "g.h5", graph)
        assert main(["report", str(folder)]) == 0
        assert said in checked(folder / "report.html").said
    trace = folder / "profile" / "rank-1.json.gz"
    for damaged in (
        b"no gzip",
        gzip.compress(b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}'),
        trace.read_bytes()[:-9],
    ):
        trace.write_bytes(damaged)
        assert main(["report", str(folder)]) == 2


def swapped(name, old, new):
    """A text of a file exchanged once."""

    def edit(folder):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new, 1))
        assert old in text

    return edit


DAMAGED, WORDS = "metrics.csv: is damaged", "lacks what a run writes"
REFUSED = {
    "no run": (lambda folder: (folder / "job.toml").unlink(), "holds no run (job.toml is missing)"),
    "no metrics": (lambda folder: (folder / "metrics.csv").unlink(), "metrics.csv: is missing"),
    "a short line": (swapped("metrics.csv", "\n4,", "\n4\n4,"), DAMAGED),
    "a line twice": (swapped("metrics.csv", "\n4,", "\n5,"), "must be of epochs 1, 2"),
    "words": (swapped("metrics.csv", "\n4,", "\n4,x"), DAMAGED),
    "another header": (swapped("metrics.csv", "epoch", "xepoch"), "its first line must name each column"),
    "one name more": (swapped("metrics.csv", "\n", ",z\n"), "must name each column"),
    "no text": (lambda folder: (folder / "metrics.csv").write_bytes(b"\xff\xfe"), DAMAGED),
    "half a summary": (swapped("summary.json", '"model"', "\0"), "summary.json: is damaged"),
    "another's": (swapped("summary.json", "mgg-summary", "mgg-bench"), "is no mgg-summary of version 1"),
    "a list": (lambda folder: (folder / "summary.json").write_text("[]"), "is no mgg-summary of version 1"),
    "a key less": (lambda folder: change(folder, bytes={}), WORDS),
    "a text for ranks": (lambda folder: change(folder, per_rank=["x"]), WORDS),
    "a text for a number": (lambda folder: change(folder, remote_rows="inf"), WORDS),
    "a number for the machine": (lambda folder: change(folder, machine=3), WORDS),
    "the tuner's": (lambda folder: (folder / "tuning.json").write_text("{"), "tuning.json: is damaged"),
    "nested": (lambda folder: (folder / "tuning.json").write_text("[" * 10**5), "tuning.json: is damaged"),
    "ranks in words": (lambda folder: write_profile(folder, "two", {0: []}), "ranks must be a whole number"),
    "no rank": (lambda folder: write_profile(folder, 0, {}), "profile/summary.json: ranks must be"),
    "a damaged job": (lambda folder: (folder / "job.toml").write_text("[x]\ny = 1\n"), "unknown section [x]"),
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
    folder, there = copied(), tmp_path / "there.html"
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
