"""`mgg report`: a page that stands alone, of whole, unfinished, damaged and old runs, and refusals in one line."""

from __future__ import annotations

import gzip
import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import reference
from jobs import blocks, directed_weighted, run, write_job
from PIL import Image
from tools.report.pages import (
    EPOCHS,
    change,
    checked,
    event,
    lines_of,
    summary_of,
    write_profile,
    write_tuning,
)

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.tools.report.page import crossing

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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert main(["train", str(write_job(folder, blocks(), train={"epochs": EPOCHS, "seed": 5}))]) == 0
    return folder / "runs" / "001"


@pytest.fixture
def copied(trained, tmp_path):
    """Return a copy of a run on one rank by name, to be changed."""
    return lambda name="001": Path(shutil.copytree(trained, tmp_path / "runs" / name))


@pytest.fixture
def report(tmp_path):
    """Report on runs, and return the page."""

    def report(*folders):
        out = folders[0] / "report.html" if len(folders) == 1 else tmp_path / "page.html"
        more = [] if len(folders) == 1 else ["-o", str(out)]
        assert main(["report", *map(str, folders), *more]) == 0
        return checked(out)

    return report


def test_a_run_s_page_shows_what_its_files_say(copied, report, capsys):
    folder = copied()
    capsys.readouterr()
    page, summary, lines = report(folder), summary_of(folder), lines_of(folder)
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    facts = page.facts("runs/001")
    assert facts["test accuracy"] == f"{summary['test_accuracy']:.4f}"
    assert facts["final loss"] == f"{float(lines[-1]['loss']):.6f}"
    assert facts["best epoch"] == f"{summary['best_epoch']} of {EPOCHS}"
    assert facts["epoch, ms"].split()[0] == f"{np.median([float(line['epoch_ms']) for line in lines]):.2f}"
    spent = summary["per_rank"][0]["phases_ms"]
    assert {row["phase"]: row["mean"] for row in page.table("phase")} == {
        name: f"{ms:.1f}" for name, ms in spent.items() if ms > 0
    }
    titles = [
        "Loss over epochs",
        "Scores over epochs",
        "Time of each epoch",
        "Mean time of an epoch by phase",
    ]
    assert page.labels == titles
    assert folder.joinpath("report.html").stat().st_mode & 0o777 == 0o600


def test_a_run_that_has_not_ended_shows_its_epochs_so_far_and_one_of_an_earlier_version_what_it_has(
    copied, report
):
    folder, old = copied(), copied("002")
    (folder / "summary.json").unlink()
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text()[:-9])  # within the last line
    facts, line = report(folder).facts("runs/001"), lines_of(folder)[-2]
    assert facts["state"] == f"has not ended: {EPOCHS - 1} of at most {EPOCHS} epochs"
    assert float(facts["loss"]) == pytest.approx(float(line["loss"]), rel=1e-5)
    assert float(facts["validation"]) == pytest.approx(float(line["val_accuracy"]), rel=1e-5)
    metrics.write_text("")
    summary = summary_of(old)
    for name in ("per_rank", "bounds", "exchanges", "machine", "timed_epochs", "estimated_bytes"):
        del summary[name]
    (old / "summary.json").write_text(json.dumps(summary))
    assert "has not ended: 0 of" in report(folder, old).said


@pytest.mark.long
def test_a_page_stays_small(copied, report, rng):
    """Of eight runs of many epochs, ranks and traced events."""
    folders, ranks = [copied(f"00{i}") for i in range(8)], 600
    stages = [event("user_annotation", "layer 1 forward: aggregate", 0.2 * i, 0.1) for i in range(5000)]
    header, summary = (folders[0] / "metrics.csv").read_text().partition("\n")[0], summary_of(folders[0])
    many = {name: summary[name] * ranks for name in ("per_rank", "estimated_bytes", "peak_rss_bytes")}
    for folder in folders:
        rows = rng.uniform(0.1, 1, (5000, header.count(",") + 1))
        rows[:, 0] = np.arange(1, 5001)
        np.savetxt(folder / "metrics.csv", rows, "%.9g", ",", header=header, comments="")
        change(folder, ranks=ranks, bounds=[0] * ranks + [150], **many)
        write_profile(folder, 4, dict.fromkeys(range(4), stages))
    page = report(*folders)
    assert "only where there are at most 256 ranks" in page.said and f"{ranks - 64} more" in page.said
    assert "epoch 4, as it was profiled" in page.said


@pytest.mark.slow
def test_names_are_shown_and_not_obeyed(copied, report):
    run, rows = 'x"y<b>$_$', 'a" onload="alert(1)" x="'
    folders = [copied(run), copied()]
    name = "<script>alert(1)</script><b onload='x'>&amp;{{ 7 * 7 }}\ud800"
    graph, machine = summary_of(folders[0])["graph"] | {"name": name}, {"<i>": "<u>"}
    change(folders[0], graph=graph, machine=machine, backend=name, model=name)
    write_tuning(folders[0], rows, rows, rows)
    page = report(*folders)
    facts, shown = page.facts(f"runs/{run}"), name.replace("\ud800", "?")
    assert not {"script", "b", "i", "u"} & page.tags
    assert facts["graph"].startswith(shown) and facts["backend"] == facts["model"] == shown
    assert f"Settings that runs/{run} has tried for {rows}" in page.labels
    assert f"runs/{run}" in page.drawn and rows in page.drawn


def test_rows_whose_settings_were_not_searched_have_no_path(copied, report):
    """As after a short run that tunes."""
    folder = copied()
    write_tuning(folder, source="default")
    path = folder / "tuning.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"rows": [kept["rows"][0] | {"steps": []}]}))
    page = report(folder)
    assert "layer 1: ps 16, dist auto, wpb 2 (not searched)" in page.said.replace("(\n", "(")
    assert not any("has tried" in label for label in page.labels)


def test_runs_of_one_name_are_told_apart(copied, report):
    folders = [copied("a/runs/001"), copied("b/runs/001"), copied("b/runs/002")]
    change(folders[1], test_accuracy=0.4321)
    page = report(*folders)
    assert page.facts("b/runs/001")["test accuracy"] == "0.4321" != page.facts("a/runs/001")["test accuracy"]
    assert page.tables[0][0] == ["", "a/runs/001", "b/runs/001", "b/runs/002"]


@pytest.mark.parametrize(("ranks", "there"), [(2, 0), (2, 1), (10**15, None)])
def test_a_trace_that_is_missing_does_not_move_the_others(copied, report, ranks, there):
    folder = copied()
    pushed = event("exchange", "push", 20, 5, args={"round": 0, "to": 1 - (there or 0)})
    traced = {} if there is None else {there: [pushed, event("user_annotation", "loss", 10, 50)]}
    write_profile(folder, ranks, traced)
    page = report(folder)
    stages = {text for text in page.drawn if ": stages" in text}
    assert stages == {f"rank {rank}: stages" for rank in traced}
    assert f"the traces of {ranks - len(traced)} of {ranks} ranks are missing" in page.said


@pytest.mark.long
def test_two_ranks_have_their_balance_and_a_timeline_and_a_browser_opens_the_page(tmp_path, report, require):
    """In the browser, without a network, all sections are there, and all figures, of which none is blank."""
    write_job(tmp_path, blocks(600), train={"epochs": 6}, plan={"transfer": "halo"}, run={"folder": "runs"})
    assert run("launch", "-n", "2", "train", "job.toml", "--profile", folder=tmp_path).returncode == 0
    folder = tmp_path / "runs" / "001"
    write_tuning(folder)
    page, summary = report(folder), summary_of(folder)
    found = crossing(tmp_path / "g.h5", np.array(summary["bounds"]))
    for rank, each in enumerate(summary["per_rank"]):
        row = page.table("least")[rank]
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
    dom, _ = (
        subprocess.run([*words, more, opened.as_uri()], capture_output=True, check=True, text=True).stdout
        for more in ("--dump-dom", f"--screenshot={tmp_path / 'page.png'}")
    )
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom)[1]))
    assert seen["headings"] == HEADINGS and seen["loaded"] == 0 and seen["wide"] <= 1200
    assert len(seen["figures"]) == len(page.labels) == 6 and min(seen["letters"]) >= 7
    with Image.open(tmp_path / "page.png") as picture:
        pixels = np.asarray(picture.convert("L"), int)
    for box in seen["figures"]:
        top, left = round(box["top"]), round(box["left"])
        assert box["width"] > 450 and box["height"] > 60
        part = pixels[top : top + round(box["height"]), left : left + round(box["width"])]
        assert np.count_nonzero(part != np.median(part)) > 0.01 * part.size

    writer.write(tmp_path / "g.h5", blocks(600, seed=4), force=True)
    assert "has other rows, or in another order" in report(folder).said
    (tmp_path / "g.h5").unlink()
    assert "does not exist" in report(folder).said
    trace = folder / "profile" / "rank-1.json.gz"
    unlike = gzip.compress(b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}')
    for damaged in (b"no gzip", unlike, trace.read_bytes()[:-9]):
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


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_least_is_a_minimum_vertex_cover(tmp_path, rng, ranks):
    """By networkx's matching (Koenig's theorem), of a graph with parallel edges."""
    graph = directed_weighted(int(rng.choice([12, 90])), seed=int(rng.integers(1000)))
    writer.write(tmp_path / "g.h5", graph)
    bounds = np.concatenate([[0], np.sort(rng.integers(0, graph.nodes + 1, ranks - 1)), [graph.nodes]])
    found = crossing(tmp_path / "g.h5", bounds)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    assert not any(np.diagonal(each).any() for each in found)
    for p, q in itertools.permutations(range(ranks), 2):
        here = (destination >= bounds[p]) & (destination < bounds[p + 1])
        there = (source >= bounds[q]) & (source < bounds[q + 1])
        edges = list(zip(source[here & there].tolist(), destination[here & there].tolist(), strict=True))
        assert (found.edges[p, q], found.halo[p, q]) == (len(edges), len({u for u, _ in edges}))
        pairs = nx.Graph([(("u", u), ("v", v)) for u, v in edges])
        tops = [node for node in pairs if node[0] == "u"]
        matching = nx.bipartite.eppstein_matching(pairs, tops) if edges else {}
        assert found.least[p, q] == len(matching) // 2
