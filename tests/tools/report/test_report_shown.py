"""Each number and each curve of a report stands under its own label: all values of the made-up runs differ."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from tools.report.pages import Page

from mgg_hpc import config
from mgg_hpc.tools.report.least import Crossing
from mgg_hpc.tools.report.page import page
from mgg_hpc.tools.report.read import Run
from mgg_hpc.tools.report.timeline import Bar, Timeline

EPOCHS, RANKS = 5, 2
COLUMNS = ("loss", "train_accuracy", "val_accuracy", "test_accuracy", "epoch_ms", "val_loss", "eval_ms")
PHASES = ("aggregate", "wait for peers", "dense", "checkpoint")


def summary(at: int) -> dict:
    """A summary whose numbers all differ, and from those of another ``at``."""
    n, few = 1000 * (at + 1), 400 * at  # sizes are of less than 1 KiB, which is shown to the byte
    names = ("rows", "local_edges", "remote_edges", "halo_rows", "remote_rows")
    ranks = [
        {name: n + 10 * i + (1 + 600 * (i == 3)) * rank for i, name in enumerate(names, 1)}
        | {"host": f"host{n + rank}", "bytes": {"local": few + 60 + rank, "remote": few + 70 + rank}}
        | {"phases_ms": {name: float(n + 100 * i + 3 * rank) for i, name in enumerate(PHASES)}}
        for rank in range(RANKS)
    ]
    return {
        "graph": {"name": f"graph{n}", "nodes": n + 1, "edges": n + 2},
        **{name: f"{name}{n}" for name in ("model", "backend", "transfer")},
        "metric": "accuracy",
        "ranks": RANKS,
        "threads": n + 3,
        "plan": {"ps": n + 4, "dist": n + 5, "wpb": n + 6},
        "test_accuracy": (n + 7) / 1e4,
        "val_accuracy": (n + 8) / 1e4,
        "best_epoch": n + 9,
        "epochs": n + 11,
        "final_loss": n + 0.5,
        "epoch_ms": {"min": n + 0.01, "median": n + 0.02, "max": n + 0.03},
        "aggregate_ms": {"min": n + 0.04, "median": n + 0.05, "max": n + 0.06},
        "eval_ms": {"min": n + 0.07, "median": n + 0.08, "max": n + 0.09},
        "remote_rows": n + 12,
        "bytes": {"local": few + 13, "remote": 4 * (2 * n + 81)},  # each row of the halo once, of 4 bytes
        "seed": n + 15,
        "timed_epochs": 4,
        "per_rank": ranks,
        "bounds": [at, 1, 2],
        "exchanges": [{"layer": 1, "direction": "forward", "transfer": "halo", "row_bytes": 4}],
        "estimated_bytes": [few + 80 + rank for rank in range(RANKS)],
        "peak_rss_bytes": [few + 191 + rank for rank in range(RANKS)],
        "heap_bytes": few + 16,
        "machine": {"cpu": f"cpu{n}", "cores": n + 17, "memory_bytes": few + 18, "instruction_set": "same"},
    }


def exchange(at: int, layer: int, direction: str) -> dict:
    n = at + 10 * layer
    times = {"both_ms": n + 0.125, "sums_ms": n + 0.25, "transfer_ms": n + 0.375, "hidden_share": n / 100}
    return {"layer": layer, "direction": direction, "transfer": f"by{n}"} | times


def made(at: int) -> Run:
    rng = np.random.default_rng(at)
    steps = [
        {"knob": f"knob{i}", "setting": {"ps": 2 << i, "dist": 3, "wpb": 5}, "seconds": seconds, "epoch": i}
        for i, seconds in enumerate((0.5 + at, None, 0.25 + at, 0.375 + at))
    ]
    row = {
        "rows": f"rows{at}",
        "source": "measured",
        "steps": steps,
        "chosen": steps[2]["setting"],
        "gain": 0.5,
    }
    return Run(
        name=f"run{at}",
        folder=Path(f"run{at}"),
        settings=config.from_tree({"graph": {"file": __file__}, "train": {"seed": 70 + at}}, "test"),
        metrics={"epoch": np.arange(1.0, EPOCHS + 1)} | {name: rng.uniform(1, 9, EPOCHS) for name in COLUMNS},
        summary=summary(at),
        profile={"ranks": RANKS, "exchanges": [exchange(at, 1, "forward"), exchange(at, 2, "backward")]},
        traces={rank: Path(f"trace{at}{rank}") for rank in range(RANKS)},
        tuning={"rows": [row]},
    )


def crossing(path: Path, bounds: np.ndarray) -> Crossing:
    """Rows that cross in the made-up run whose bounds begin with its number; least 101 and 102 at its ranks."""
    n = 1000 * (bounds[0] + 1)
    return Crossing(*(np.array([[0, a], [b, 0]]) for a, b in ((500, 502), (n + 40, n + 41), (101, 102))))


KINDS = (
    ("stages", "aggregate"),
    ("stages", "dense"),
    ("waits", "wait for a round"),
    ("rows arrive", "a round is pushed here"),
)
BARS = [
    Bar(rank, lane, kind, 10.0 * i + rank, 10.0 * i + rank + 5)
    for rank in range(RANKS)
    for i, (lane, kind) in enumerate(KINDS)
]


@pytest.fixture(scope="module")
def shown():
    """Two runs, their page and its figures by name."""
    drawn, runs = {}, [made(0), made(1)]
    found, save = Timeline(7, [0, 1], BARS, [(0.0, 60.0), (16.5, 24.0)]), Figure.savefig

    def kept(figure, *arguments, **options):
        drawn[mpl.rcParams["svg.hashsalt"]] = figure
        save(figure, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", kept)
        patch.setattr("mgg_hpc.tools.report.timeline.read", lambda traces, count: found)
        patch.setattr("mgg_hpc.tools.report.page.crossing", crossing)
        return runs, Page(page(runs, least=True)), drawn


def legend(figure) -> dict:
    """What each label of a figure's legend looks like."""
    (found,) = figure.legends
    return dict(zip([text.get_text() for text in found.get_texts()], found.legend_handles, strict=True))


def test_facts_of_runs(shown):
    runs, page, _ = shown
    for at, run in enumerate(runs):
        n = 1000 * (at + 1)
        assert page.facts(run.name) == {
            "state": "ended",
            "model": f"model{n}",
            "graph": f"graph{n}: {n + 1:,} nodes, {n + 2:,} edges",
            "ranks": f"2, {n + 3:,} threads each",
            "backend": f"backend{n}",
            "transfer": f"transfer{n}",
            "ps, dist, wpb": f"{n + 4}, {n + 5}, {n + 6}",
            "test accuracy": f"{(n + 7) / 1e4:.4f}",
            "validation accuracy": f"{(n + 8) / 1e4:.4f}",
            "best epoch": f"{n + 9} of {n + 11}",
            "final loss": f"{n + 0.5:.6f}",
            "epoch, ms": f"{n + 0.02:.2f} ({n + 0.01:.2f} to {n + 0.03:.2f})",
            "aggregation, ms": f"{n + 0.05:.2f}",
            "evaluation, ms": f"{n + 0.08:.2f}",
            "remote rows an epoch": f"{n + 12:,} ({4 * (2 * n + 81) / 1024:.1f} KiB)",
            "seed": f"{n + 15}",
        }


PANELS = {
    "learning": [
        ("loss", {"train": "loss", "validation": "val_loss"}),
        ("accuracy", {"train": "train_accuracy", "validation": "val_accuracy", "test": "test_accuracy"}),
    ],
    "times": [("ms", {"training step": "epoch_ms", "evaluation": "eval_ms"})],
}


@pytest.mark.parametrize("name", PANELS)
def test_curves_are_of_their_labels(shown, name):
    runs, _, drawn = shown
    figure, looks = drawn[name], legend(drawn[name])
    for axes, (label, columns) in zip(figure.axes, PANELS[name], strict=True):
        assert (axes.get_ylabel(), axes.get_xlabel()) == (label, "epoch")
        assert axes.get_yscale() == ("linear" if label == "accuracy" else "log")
        lines = [line for line in axes.lines if len(line.get_xdata())]
        assert len(lines) == len(runs) * len(columns)
        for run, (kind, column) in itertools.product(runs, columns.items()):
            look = (looks[run.name].get_color(), looks[run.name].get_marker(), looks[kind].get_linestyle())
            (line,) = (
                line for line in lines if (line.get_color(), line.get_marker(), line.get_linestyle()) == look
            )
            assert np.array_equal(line.get_xdata(), np.arange(1, EPOCHS + 1))
            assert np.array_equal(line.get_ydata(), run.metrics[column])


def look(patch) -> tuple:
    return patch.get_facecolor(), patch.get_hatch()


def test_bars_of_phases_are_of_their_labels(shown):
    runs, page, drawn = shown
    (axes,), looks = drawn["phases"].axes, legend(drawn["phases"])
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == [f"{run.name}: rank {rank}" for run in runs for rank in range(RANKS)]
    assert list(looks) == list(PHASES) and len(set(map(look, looks.values()))) == len(PHASES)
    for kind, handle in looks.items():
        bars = [bar for bar in axes.patches if look(bar) == look(handle)]
        wanted = [each["phases_ms"][kind] / 4 for run in runs for each in run.summary["per_rank"]]
        assert [bar.get_width() for bar in bars] == wanted
        assert [round(bar.get_y() + bar.get_height() / 2) for bar in bars] == list(range(len(ticks)))
    for run, table in zip(runs, page.with_head("phase", "imbalance"), strict=True):
        total = sum(sum(each["phases_ms"].values()) for each in run.summary["per_rank"])
        assert table[0] == ["phase", "min", "mean", "max", "share", "imbalance"]
        for cells, name in zip(table[1:], PHASES, strict=True):
            low, high = (each["phases_ms"][name] for each in run.summary["per_rank"])
            numbers = [f"{value:.1f}" for value in (low, (low + high) / 2, high)]
            shares = [f"{(low + high) / total:.1%}", f"{2 * high / (low + high):.2f}"]
            assert cells == [name, *numbers, *shares]


def test_balance_has_each_count_under_its_name(shown):
    runs, page, _ = shown
    names = ("rows", "local_edges", "remote_edges", "halo_rows")
    for run, table in zip(runs, page.with_head("host", "least"), strict=True):
        ranks, least = run.summary["per_rank"], [101, 102]
        head = ["rank", "host", "rows", "local edges", "remote edges", "each row once", "least"]
        assert table[0] == [*head, "moved an epoch", "bytes an epoch"]
        for rank, each in enumerate(ranks):
            counts = [f"{each[name]:,}" for name in names] + [f"{least[rank]}", f"{each['remote_rows']:,}"]
            assert table[1 + rank] == [f"{rank}", each["host"], *counts, f"{each['bytes']['remote']} B"]
        edges = [each["local_edges"] + each["remote_edges"] for each in ranks]
        sums = [f"{sum(each[name] for each in ranks):,}" for name in names]
        moved = f"{sum(each['remote_rows'] for each in ranks):,}"
        both = f"{sum(each['bytes']['remote'] for each in ranks)} B"
        assert table[3:] == [
            ["all", f"imbalance {2 * max(edges) / sum(edges):.2f}", *sums, "203", moved, both]
        ]
        halo = sum(each["halo_rows"] for each in ranks)
        assert (
            f"An epoch moved {halo / 256:.1f} KiB, which is {halo / 203:.2f} times the least, 812 B"
            in page.said
        )


def test_memory_has_estimates_and_peaks_apart(shown):
    runs, page, _ = shown
    (table,) = page.with_head("over the estimate")
    assert table[0] == ["rank", "estimate", "measured peak", "over the estimate", "symmetric memory"]
    for row, (run, rank) in zip(table[1:], itertools.product(runs, range(RANKS)), strict=True):
        estimate, peak = run.summary["estimated_bytes"][rank], run.summary["peak_rss_bytes"][rank]
        over, heap = f"{peak / estimate:.2f}", f"{run.summary['heap_bytes']} B"
        assert row == [f"{run.name}: {rank}", f"{estimate} B", f"{peak} B", over, heap]


def test_the_tuners_path_is_of_its_labels(shown):
    runs, page, drawn = shown
    for at, run in enumerate(runs):
        (row,) = run.tuning["rows"]
        figure = drawn[f"tuner{at}-0"]
        (axes,), looks = figure.axes, legend(figure)
        lines = {line.get_label(): line for line in axes.lines}
        for label, handle in looks.items():
            mine, other = (
                (each.get_color(), each.get_marker(), each.get_linestyle()) for each in (lines[label], handle)
            )
            assert mine == other
        first, third, last = (1e3 * row["steps"][i]["seconds"] for i in (0, 2, 3))
        np.testing.assert_array_equal(lines["measured"].get_ydata(), [first, np.nan, third, last])
        np.testing.assert_array_equal(lines["best so far"].get_ydata(), [first, first, third, third])
        assert (list(lines["chosen"].get_xdata()), list(lines["chosen"].get_ydata())) == ([3], [third])
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        assert ticks == [f"knob{i}\n{2 << i}/3/5" for i in range(4)]
        said = f"rows{at}: ps 8, dist 3, wpb 5 (measured, 50% less time than by default)"
        assert f"{run.name}, {said}" in page.said


def test_lanes_have_bars_of_their_kinds_and_shares_their_times(shown):
    _, page, drawn = shown
    looks, (whole, longest) = legend(drawn["lanes0"]), drawn["lanes0"].axes
    rows = dict(zip([text.get_text() for text in whole.get_yticklabels()], whole.get_yticks(), strict=True))
    assert list(rows) == [f"rank {rank}: {lane}" for rank in range(RANKS) for lane in dict(KINDS)]
    for axes, (first, last) in ((whole, (0, 60)), (longest, (16.5, 24))):
        assert axes.get_xlim() == (first, last)
        found = {
            (
                look(box),
                box.get_x(),
                box.get_x() + box.get_width(),
                round(box.get_y() + box.get_height() / 2, 6),
            )
            for box in axes.patches
        }
        assert found == {
            (
                look(looks[bar.kind]),
                max(bar.begin, first),
                min(bar.end, last),
                rows[f"rank {bar.rank}: {bar.lane}"],
            )
            for bar in BARS
            if bar.end >= first and bar.begin <= last
        }
    for at, table in enumerate(page.with_head("hidden")):
        assert table[0] == ["aggregation", "transfer", "both, ms", "sums alone", "transfer alone", "hidden"]
        for row, layer, direction in zip(table[1:], (1, 2), ("forward", "backward"), strict=True):
            n = at + 10 * layer
            times = [f"{n + part:.3f}" for part in (0.125, 0.25, 0.375)]
            assert row == [f"layer {layer} {direction}", f"by{n}", *times, f"{n / 100:.2f}"]
    assert "run1: epoch 7, as it was profiled" in page.said


def test_machines_and_settings_are_those_of_each_run_and_differing_ones_come_first(shown):
    _, page, _ = shown
    machine, job = page.with_head("run0", "run1")[1:]
    assert machine[1:3] == [["cpu", "cpu1000", "cpu2000"], ["cores", "1017", "2017"]]
    assert machine[3:] == [["memory", "18 B", "418 B"], ["instruction set", "same", "same"]]
    assert job[1] == ["train.seed", "70", "71"] and ["graph.file", __file__, __file__] in job[2:]
