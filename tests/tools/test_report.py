"""`mgg report`: a page that stands alone, whose numbers are the run's; the least that must cross; what is refused."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from jobs import blocks, run, write_job

from mgg_hpc import reference
from mgg_hpc.__main__ import main
from mgg_hpc.data import store
from mgg_hpc.tools.report.least import crossing

EPOCHS = 9
LARGEST = 3_000_000  # bytes of a page
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page taken apart: tables as lists of rows of cells, and everything that could reach outside of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.paths: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self._cell = False
        self.said = ""
        self.feed(text)
        self.close()
        assert not self._open and not self.wrong

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] += 1
        self.wrong += [name for name in found if name.startswith("on")]
        self.references += [
            value
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "action", "poster")
        ]
        self.references += [each for _, value in attrs for each in re.findall(r"url\(([^)]*)\)", value or "")]
        self.ids += [found["id"]] if "id" in found else []
        if tag == "path" and "id" not in found:
            self.paths.append((found["d"], found.get("style", "")))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        self.said += data
        if self._cell:
            self.tables[-1][-1][-1] += data

    def table(self, heading: str) -> list[dict[str, str]]:
        """The rows of the first table with this heading."""
        rows = next(rows for rows in self.tables if heading in rows[0])
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    def facts(self, run: str) -> dict[str, str]:
        """The first table's column of a run."""
        return {row[""]: row[run] for row in self.table(run)}


def checked(path: Path) -> Page:
    """Take a page apart, after checking that it stands alone."""
    text = path.read_text()
    assert len(text.encode()) < LARGEST
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", text)
    assert not set(page.tags) & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
        "foreignobject",
    }
    assert page.references and all(each.startswith("#") for each in page.references)
    assert {each[1:] for each in page.references} <= set(page.ids) and len(set(page.ids)) == len(page.ids)
    return page


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def lines_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on one rank; tests take copies."""
    folder = tmp_path_factory.mktemp("trained")
    job = write_job(folder, blocks(), train={"epochs": EPOCHS, "seed": 5})
    assert main(["train", str(job)]) == 0
    return folder / "runs" / "001"


@pytest.fixture
def copied(trained, tmp_path):
    """Returns a copy of the run by name, to be changed."""
    return lambda name="001": Path(shutil.copytree(trained, tmp_path / "runs" / name))


def curves_of(page: Page, points: int) -> list[np.ndarray]:
    """The heights of all curves with so many points, downwards."""
    found = []
    for path, style in page.paths:
        places = np.array([each.split() for each in re.findall(r"[ML] ([-\d.]+ [-\d.]+)", path)], float)
        if len(places) == points and "fill: none" in style and np.all(np.diff(places[:, 0]) > 0):
            found.append(places[:, 1])
    return found


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
    assert "there are more than 256 ranks" in page.said and f"{ranks - 64} more" in page.said
    assert "epoch 4, as it was profiled" in page.said


def test_names_are_shown_and_not_obeyed(copied):
    folder = copied()
    name = "<script>alert(1)</script><b onload='x'>&amp;"
    summary = summary_of(folder)
    summary["graph"]["name"] = name
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert "<script" not in text and "<b " not in text
    assert Page(text).facts("runs/001")["graph"].startswith(name)


# ---- the least that must cross


def covered_by(edges: set[tuple[int, int]], size: int, sources: list[int], destinations: list[int]) -> bool:
    """Whether so many ends cover all edges."""
    ends = [("u", u) for u in sources] + [("v", v) for v in destinations]
    return any(
        all(("u", u) in chosen or ("v", v) in chosen for u, v in edges)
        for chosen in map(set, itertools.combinations(ends, size))
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_least_is_a_minimum_vertex_cover(tmp_path, rng, ranks):
    graph = blocks(90, seed=int(rng.integers(1000)))
    store.write(tmp_path / "g.h5", graph)
    bounds = np.concatenate([[0], np.sort(rng.integers(0, graph.nodes + 1, ranks - 1)), [graph.nodes]])
    found = crossing(tmp_path / "g.h5", bounds)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    for p, q in itertools.product(range(ranks), repeat=2):
        if p == q:
            assert found.edges[p, q] == found.halo[p, q] == found.least[p, q] == 0
            continue
        here = (destination >= bounds[p]) & (destination < bounds[p + 1])
        there = (source >= bounds[q]) & (source < bounds[q + 1])
        edges = list(zip(source[here & there].tolist(), destination[here & there].tolist(), strict=True))
        assert (found.edges[p, q], found.halo[p, q]) == (len(edges), len({u for u, _ in edges}))
        pairs = nx.Graph([(("u", u), ("v", v)) for u, v in edges])
        tops = [node for node in pairs if node[0] == "u"]
        matching = nx.bipartite.eppstein_matching(pairs, tops) if edges else {}
        assert found.least[p, q] == len(matching) // 2


def test_no_smaller_cover_is_there(tmp_path, rng):
    """By trying all of them, on a graph of a few nodes."""
    graph = blocks(14, seed=int(rng.integers(1000)))
    store.write(tmp_path / "g.h5", graph)
    bounds = np.array([0, 7, 14])
    found = crossing(tmp_path / "g.h5", bounds)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    edges = {(u, v) for u, v in zip(source.tolist(), destination.tolist(), strict=True) if u >= 7 > v}
    least = int(found.least[0, 1])
    sources, destinations = sorted({u for u, _ in edges}), sorted({v for _, v in edges})
    assert covered_by(edges, least, sources, destinations)
    assert least == 0 or not covered_by(edges, least - 1, sources, destinations)


@pytest.mark.slow
def test_two_ranks_have_their_balance_and_a_timeline(tmp_path):
    write_job(tmp_path, blocks(600), train={"epochs": 6}, plan={"transfer": "halo"}, run={"folder": "runs"})
    done = run("launch", "-n", "2", "train", "job.toml", "--profile", folder=tmp_path)
    assert done.returncode == 0
    folder = tmp_path / "runs" / "001"
    done = run("report", folder, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page, summary = checked(folder / "report.html"), summary_of(folder)
    found = crossing(tmp_path / "g.h5", np.array(summary["bounds"]))
    rows = page.table("least")
    for rank, (row, each) in enumerate(zip(rows, summary["per_rank"], strict=False)):
        assert row["remote edges"] == f"{each['remote_edges']:,}" == f"{found.edges[rank].sum():,}"
        assert row["each row once"] == f"{each['halo_rows']:,}" == f"{found.halo[rank].sum():,}"
        assert row["least"] == f"{found.least[rank].sum():,}"
        assert row["moved an epoch"] == f"{each['remote_rows']:,}"
    assert rows[2]["least"] == f"{found.least.sum():,}"
    assert f"which is {found.halo.sum() / found.least.sum():.2f} times the least" in page.said
    assert "epoch 6, as it was profiled" in page.said and "a round is pushed here" in page.said
    assert len(page.table("hidden")) == sum("hidden_share" in each for each in profile(folder)["exchanges"])

    # Exchanges lie within aggregations, and a round is waited for in its turn.
    for rank in range(2):
        trace = json.loads(gzip.decompress((folder / "profile" / f"rank-{rank}.json.gz").read_bytes()))
        events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
        sums = [
            (each["ts"], each["ts"] + each["dur"]) for each in events if each["name"].endswith(": aggregate")
        ]
        rounds = [each for each in events if each.get("cat") == "exchange"]
        calls = {each["args"]["call"] for each in rounds}
        assert (
            calls == set(range(len(sums))) and len(sums) == 3 * 5
        )  # of an epoch three in the step, two after it
        for each in rounds:
            assert each["dur"] >= 0
            assert any(
                first - 50 < each["ts"] and each["ts"] + each["dur"] < last + 50 for first, last in sums
            )
        waits = [each["ts"] for each in rounds if "wait" in each["name"]]
        assert waits == sorted(waits)

    store.write(tmp_path / "g.h5", blocks(600, seed=4), force=True)
    assert main(["report", str(folder)]) == 0
    assert "has other rows, or in another order" in (folder / "report.html").read_text()
    (tmp_path / "g.h5").unlink()
    assert main(["report", str(folder)]) == 0
    assert "The least that must cross is not known" in (folder / "report.html").read_text()
    (folder / "profile" / "rank-1.json.gz").write_bytes(b"no gzip")
    assert main(["report", str(folder)]) == 2


def profile(folder: Path) -> dict:
    return json.loads((folder / "profile" / "summary.json").read_text())


# ---- what is refused


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
