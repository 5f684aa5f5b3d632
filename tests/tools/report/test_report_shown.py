"""Each number and each curve of a report stands under its own label: all values of the made-up runs differ."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from tools.report.pages import Page, event, write_trace

from mgg_hpc import config
from mgg_hpc.runtime.backends.profiling import KernelStamps
from mgg_hpc.tools.report import timeline
from mgg_hpc.tools.report.page import Crossing, page
from mgg_hpc.tools.report.read import Run
from mgg_hpc.tools.report.timeline import Bar, Timeline
from mgg_hpc.training.profile.profiler import trace_name
from mgg_hpc.training.profile.trace import kernel_events

EPOCHS, LEAST = 5, [101, 102]
COLUMNS = ("loss", "train_accuracy", "val_accuracy", "test_accuracy", "epoch_ms", "val_loss", "eval_ms")
PHASES = ("aggregate", "wait for peers", "dense", "checkpoint")
COUNTS = ("rows", "local_edges", "remote_edges", "halo_rows", "least", "remote_rows")
# What the first table says of a run, by its summary.
FACTS = {
    "state": "ended",
    "model": "{model}",
    "graph": "{graph[name]}: {graph[nodes]:,} nodes, {graph[edges]:,} edges",
    "ranks": "{ranks}, {threads:,} threads each",
    "backend": "{backend}",
    "transfer": "{transfer}",
    "ps, dist, wpb": "{plan[ps]}, {plan[dist]}, {plan[wpb]}",
    "test accuracy": "{test_accuracy:.4f}",
    "validation accuracy": "{val_accuracy:.4f}",
    "best epoch": "{best_epoch} of {epochs}",
    "final loss": "{final_loss:.6f}",
    "epoch, ms": "{epoch_ms[median]:.2f} ({epoch_ms[min]:.2f} to {epoch_ms[max]:.2f})",
    "aggregation, ms": "{aggregate_ms[median]:.2f}",
    "evaluation, ms": "{eval_ms[median]:.2f}",
    "remote rows an epoch": "{remote_rows:,} ({bytes[remote]} B)",
    "seed": "{seed}",
}


def summary(at: int) -> dict:
    """A summary whose numbers all differ, and from those of another ``at``; sizes are shown to the byte."""
    number, size = itertools.count(1000 * (at + 1)), itertools.count(60 + 100 * at)
    ranks = [
        {name: next(number) + 600 * rank * (name == "remote_edges") for name in COUNTS}
        | {"host": f"host{next(number)}", "halo_rows": next(size), "least": LEAST[rank]}
        | {"bytes": {"local": next(size), "remote": next(size)}}
        | {"phases_ms": {name: float(next(number) + 200 * rank * i) for i, name in enumerate(PHASES)}}
        for rank in range(2)
    ]
    names = ("threads", "best_epoch", "epochs", "final_loss", "remote_rows", "seed")
    times = ("epoch_ms", "aggregate_ms", "eval_ms")
    halo = 2 * sum(each["halo_rows"] for each in ranks)  # each row of the halo once, of 2 bytes
    return {
        "graph": {"name": f"graph{at}", "nodes": next(number), "edges": next(number)},
        **{name: f"{name}{at}" for name in ("model", "backend", "transfer")},
        **{name: next(number) for name in names},
        **{name: {of: next(number) + 0.25 for of in ("min", "median", "max")} for name in times},
        **{f"{split}_accuracy": next(number) / 1e4 for split in ("test", "val")},
        **{name: [next(size), next(size)] for name in ("estimated_bytes", "peak_rss_bytes")},
        "plan": {name: next(number) for name in ("ps", "dist", "wpb")},
        "metric": "accuracy",
        "ranks": 2,
        "bytes": {"local": next(size), "remote": halo},
        "timed_epochs": 4,
        "per_rank": ranks,
        "bounds": [at, 1, 2],
        "exchanges": [{"layer": 1, "direction": "forward", "transfer": "halo", "row_bytes": 2}],
        "heap_bytes": next(size),
        "machine": {"cpu": f"cpu{at}", "cores": next(number), "memory_bytes": next(size), "set": "same"},
    }


def crossing(path: Path, bounds: np.ndarray) -> Crossing:
    """Rows that cross in the made-up run whose bounds begin with its number."""
    halo = [each["halo_rows"] for each in summary(int(bounds[0]))["per_rank"]]
    return Crossing(*(np.array([[0, a], [b, 0]]) for a, b in ((500, 502), halo, LEAST)))


def made(at: int) -> Run:
    rng = np.random.default_rng(at)
    steps = [
        {"knob": f"knob{i}", "setting": {"ps": 2 << i, "dist": 3, "wpb": 5}, "seconds": seconds, "epoch": i}
        for i, seconds in enumerate((0.5 + at, None, 0.25 + at, 0.375 + at))
    ]
    chosen = {"source": "measured", "steps": steps, "chosen": steps[2]["setting"], "gain": 0.5}
    exchanges = [
        {"layer": layer, "direction": direction, "transfer": f"by{n}", "hidden_share": n / 100}
        | {name: n + i / 8 for i, name in enumerate(("both_ms", "sums_ms", "transfer_ms"), 1)}
        for layer, direction, n in ((1, "forward", 10 + at), (2, "backward", 20 + at))
    ]
    return Run(
        name=f"run{at}",
        folder=Path(f"run{at}"),
        settings=config.from_tree({"graph": {"file": __file__}, "train": {"seed": 70 + at}}, "test"),
        metrics={"epoch": np.arange(1.0, EPOCHS + 1)} | {name: rng.uniform(1, 9, EPOCHS) for name in COLUMNS},
        summary=summary(at),
        profile={"ranks": 2, "exchanges": exchanges},
        traces={rank: Path(f"trace{at}{rank}") for rank in range(2)},
        tuning={"rows": [{"rows": f"rows{at}"} | chosen]},
    )


KINDS = {"aggregate": "stages", "dense": "stages", "wait for a round": "waits"}
KINDS |= {"a round is pushed here": "rows arrive"}
BARS = [
    Bar(rank, lane, kind, 10.0 * i + rank, 10.0 * i + rank + 5)
    for i, (kind, lane) in enumerate(KINDS.items())
    for rank in range(2)
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


def of_phases(ranks: list[dict]) -> list[list[str]]:
    spent = np.array([list(each["phases_ms"].values()) for each in ranks])
    rows = []
    for name, each in zip(PHASES, spent.T, strict=True):
        ms = (each.min(), each.mean(), each.max())
        shares = [f"{each.sum() / spent.sum():.1%}", f"{each.max() / each.mean():.2f}"]
        rows.append([name, *(f"{value:.1f}" for value in ms), *shares])
    return rows


def of_ranks(ranks: list[dict]) -> list[list[str]]:
    edges = np.array([each["local_edges"] + each["remote_edges"] for each in ranks])
    rows = [[f"{rank}", each["host"]] for rank, each in enumerate(ranks)]
    rows += [["all", f"imbalance {edges.max() / edges.mean():.2f}"]]
    total = {name: sum(each[name] for each in ranks) for name in COUNTS}
    total["bytes"] = {"remote": sum(each["bytes"]["remote"] for each in ranks)}
    return [
        [*row, *(f"{each[name]:,}" for name in COUNTS), f"{each['bytes']['remote']} B"]
        for row, each in zip(rows, [*ranks, total], strict=True)
    ]


def test_tables_have_each_number_under_its_label(shown):
    runs, page, _ = shown
    both, names = [run.summary for run in runs], [run.name for run in runs]
    facts, *tables, machine, job = page.tables
    assert facts == [
        ["", *names],
        *([name, *(text.format(**s) for s in both)] for name, text in FACTS.items()),
    ]
    for s, phases, balance in zip(both, tables[:2], tables[2:4], strict=True):
        head = ["phase", "min", "mean", "max", "share", "imbalance"]
        assert phases == [head, *of_phases(s["per_rank"])]
        head = ["rank", "host", "rows", "local edges", "remote edges", "each row once", "least"]
        assert balance == [[*head, "moved an epoch", "bytes an epoch"], *of_ranks(s["per_rank"])]
        moved = s["bytes"]["remote"]
        said = f"An epoch moved {moved} B, which is {moved / 406:.2f} times the least, 406 B"
        assert said in page.said
    assert tables[4][0] == ["rank", "estimate", "measured peak", "over the estimate", "symmetric memory"]
    assert tables[4][1:] == [
        [f"{name}: {rank}", f"{low} B", f"{peak} B", f"{peak / low:.2f}", f"{s['heap_bytes']} B"]
        for name, s in zip(names, both, strict=True)
        for rank, (low, peak) in enumerate(zip(s["estimated_bytes"], s["peak_rss_bytes"], strict=True))
    ]
    for at, hidden in enumerate(tables[5:]):
        assert hidden[0] == ["aggregation", "transfer", "both, ms", "sums alone", "transfer alone", "hidden"]
        assert hidden[1:] == [
            [layer, f"by{n}", f"{n}.125", f"{n}.250", f"{n}.375", f"0.{n}"]
            for layer, n in (("layer 1 forward", 10 + at), ("layer 2 backward", 20 + at))
        ]
    cores, memory = ([str(s["machine"][name]) for s in both] for name in ("cores", "memory_bytes"))
    assert machine[1:3] == [["cpu", "cpu0", "cpu1"], ["cores", *cores]]
    assert machine[3:] == [["memory", *(f"{each} B" for each in memory)], ["set", "same", "same"]]
    assert job[1] == ["train.seed", "70", "71"] and ["graph.file", __file__, __file__] in job[2:]
    assert "run1: epoch 7, as it was profiled" in page.said


def legend(figure) -> dict:
    """What each label of a figure's legend looks like."""
    (found,) = figure.legends
    return dict(zip([text.get_text() for text in found.get_texts()], found.legend_handles, strict=True))


def of_line(line) -> tuple:
    return line.get_color(), line.get_marker(), line.get_linestyle()


def of_bar(patch) -> tuple:
    return patch.get_facecolor(), patch.get_hatch()


CURVES = {
    "loss": ("loss", {"train": "loss", "validation": "val_loss"}),
    "scores": (
        "accuracy",
        {"train": "train_accuracy", "validation": "val_accuracy", "test": "test_accuracy"},
    ),
    "times": ("ms", {"training step": "epoch_ms", "evaluation": "eval_ms"}),
}


@pytest.mark.parametrize("name", CURVES)
def test_curves_are_of_their_labels(shown, name):
    runs, _, drawn = shown
    (axes,), looks, (label, columns) = drawn[name].axes, legend(drawn[name]), CURVES[name]
    assert (axes.get_ylabel(), axes.get_xlabel()) == (label, "epoch")
    assert axes.get_yscale() == ("linear" if label == "accuracy" else "log")
    lines = {of_line(line): line.get_xydata() for line in axes.lines if len(line.get_xdata())}
    assert len(lines) == len(runs) * len(columns)
    for run, (kind, column) in itertools.product(runs, columns.items()):
        found = lines[(*of_line(looks[run.name])[:2], looks[kind].get_linestyle())]
        assert np.array_equal(found.T, [np.arange(1, EPOCHS + 1), run.metrics[column]])


def test_bars_of_phases_are_of_their_labels(shown):
    runs, _, drawn = shown
    (axes,), looks = drawn["phases"].axes, legend(drawn["phases"])
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == [f"{run.name}: rank {rank}" for run in runs for rank in range(2)]
    assert list(looks) == list(PHASES) and len(set(map(of_bar, looks.values()))) == len(PHASES)
    for kind, handle in looks.items():
        bars = [bar for bar in axes.patches if of_bar(bar) == of_bar(handle)]
        wanted = [each["phases_ms"][kind] / 4 for run in runs for each in run.summary["per_rank"]]
        assert [bar.get_width() for bar in bars] == wanted
        assert [round(bar.get_y() + bar.get_height() / 2) for bar in bars] == list(range(4))


def test_the_tuners_path_is_of_its_labels(shown):
    runs, page, drawn = shown
    for at, run in enumerate(runs):
        (axes,), looks = drawn[f"tuner{at}-0"].axes, legend(drawn[f"tuner{at}-0"])
        lines = {line.get_label(): line for line in axes.lines}
        assert all(of_line(lines[label]) == of_line(handle) for label, handle in looks.items())
        first, third, last = 500 + 1000 * at, 250 + 1000 * at, 375 + 1000 * at
        np.testing.assert_array_equal(lines["measured"].get_ydata(), [first, np.nan, third, last])
        np.testing.assert_array_equal(lines["best so far"].get_ydata(), [first, first, third, third])
        assert lines["chosen"].get_xydata().tolist() == [[3, third]]
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        assert ticks == [f"knob{i}\n{2 << i}/3/5" for i in range(4)]
        said = f"rows{at}: ps 8, dist 3, wpb 5 (measured, 50% less time than by default)"
        assert f"{run.name}, {said}" in page.said


def test_lanes_have_bars_of_their_kinds(shown):
    _, _, drawn = shown
    looks, (whole, longest) = legend(drawn["lanes0"]), drawn["lanes0"].axes
    rows = dict(zip([text.get_text() for text in whole.get_yticklabels()], whole.get_yticks(), strict=True))
    assert list(rows) == [
        f"rank {rank}: {lane}" for rank in range(2) for lane in dict.fromkeys(KINDS.values())
    ]
    for axes, (first, last) in ((whole, (0, 60)), (longest, (16.5, 24))):
        assert axes.get_xlim() == (first, last)
        found, wanted = set(), set()
        for box in axes.patches:
            place = box.get_y() + box.get_height() / 2
            found.add((of_bar(box), *box.get_bbox().intervalx, round(place, 6)))
        for bar in BARS:
            if bar.end >= first and bar.begin <= last:
                ends = max(bar.begin, first), min(bar.end, last)
                wanted.add((of_bar(looks[bar.kind]), *ends, rows[f"rank {bar.rank}: {bar.lane}"]))
        assert found == wanted


def kernel(began: int, ended: int, pushed: list[list[int]], seen: int) -> KernelStamps:
    """A call of rank 0, which pushes to rank 1 and sees one chunk, by its GPU's clock in nanoseconds."""
    to, owner = np.ones(len(pushed), np.int32), np.array([1], np.int32)
    return KernelStamps(began, ended, to, np.array(pushed), owner, np.array([seen]))


def test_chunks_of_gpus_stand_where_the_trace_has_their_kernels(tmp_path):
    halo = "void mgg::aggregate_halo<float, mgg::Sum, 4, 1, false>(mgg::DeviceHaloCall<float>)"
    calls = [
        kernel(700_000, 760_000, [[701_000, 704_000], [704_500, 709_000]], 731_000),
        kernel(900_000, 930_000, [[900_500, 902_500]], 920_000),
    ]
    start = 5_000_000.0  # of the epoch, in microseconds
    epoch = event("user_annotation", "epoch 4", start, 1000.0)
    trace = [
        epoch,
        event("user_annotation", "layer 1 forward: aggregate", start + 20.0, 8.0),
        event("gpu_memcpy", "Memcpy HtoD", start + 50.0, 5.0),
        event("kernel", halo, start + 300.0, 30.0),  # not in the order of time
        event("kernel", halo, start + 100.0, 60.0),
        event("kernel", "ampere_sgemm_128x64_nn", start + 200.0, 30.0),
    ]
    paths = [tmp_path / trace_name(rank) for rank in range(2)]
    write_trace(paths[0], *trace, *kernel_events(calls, trace, 99))
    write_trace(paths[1], epoch, event("user_annotation", "loss", start + 10.0, 5.0))
    found = timeline.read(dict(enumerate(paths)), 1)
    assert sorted((*bar[:3], round(bar.begin, 6), round(bar.end, 6)) for bar in found.bars) == [
        (0, "kernels", "aggregate", 0.1, 0.16),
        (0, "kernels", "aggregate", 0.3, 0.33),
        (0, "kernels", "copy", 0.05, 0.055),
        (0, "kernels", "kernel", 0.2, 0.23),
        (0, "rows arrive", "a chunk is seen", 0.131, 0.131),
        (0, "rows arrive", "a chunk is seen", 0.32, 0.32),
        (0, "stages", "aggregate", 0.02, 0.028),
        (1, "rows arrive", "a chunk is pushed here", 0.101, 0.104),
        (1, "rows arrive", "a chunk is pushed here", 0.1045, 0.109),
        (1, "rows arrive", "a chunk is pushed here", 0.3005, 0.3025),
        (1, "stages", "loss and optimiser", 0.01, 0.015),
    ]
    assert found.views == [pytest.approx((0.0, 1.0)), pytest.approx((0.1 - 0.006, 0.16 + 0.006))]
    # Some kernels of a trace may be lost, and then it is not known which.
    for those, events in ((calls, [*trace[:3], *trace[4:]]), ([*calls, calls[0]], trace), ([], trace)):
        assert list(kernel_events(those, events, 99)) == []


def batches_of(rng, count: int) -> dict[str, dict[int, tuple[float, float]]]:
    """Spans, in ms, of random operators by name and batch: each batch is prepared, copied and trained on in turn."""
    found = {name: {} for name in ("batch by cpu", "transfer by copy", "batch by device", "train by device")}
    for number in range(count):
        ends = np.cumsum(rng.uniform(0.01, 3, 6)) + 2 * number
        if rng.random() < 0.5:
            found["batch by cpu"][number] = ends[0], ends[1]
            found["transfer by copy"][number] = ends[2], ends[3]
        else:
            found["batch by device"][number] = ends[2], ends[3]
        found["train by device"][number] = ends[4], ends[5]
    return found


def held(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """The mean number of spans that hold between two times."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans) / (end - begin)


@pytest.mark.parametrize("count", [12, 120])
def test_pools_link_and_buffers_are_as_full_as_the_operators_of_batches_had_them(tmp_path, rng, count):
    drawn, paths = [batches_of(rng, count) for _ in range(2)], {}
    for rank, spans in enumerate(drawn):
        paths[rank] = tmp_path / trace_name(rank)
        events = [
            event("batches", name, 1e3 * first, 1e3 * (last - first), args={"number": n, "overlap": n // 4})
            for name, of_name in spans.items()
            for n, (first, last) in of_name.items()
        ]
        write_trace(paths[rank], event("user_annotation", "epoch 4", 0, 1e7), *events)
    found = timeline.read(paths, 1)
    (whole, _), (overlap, _) = found.pools
    overlaps = sorted(n // 4 for spans in drawn[0].values() for n in spans)
    of_it = [n for n in range(count) if n // 4 == overlaps[len(overlaps) // 2]]
    device = [drawn[0][name][n] for name in list(drawn[0])[1:] for n in of_it if n in drawn[0][name]]
    assert whole == pytest.approx((0, max(end for s in drawn[0].values() for _, end in s.values())))
    assert overlap == pytest.approx((min(device)[0], max(end for _, end in device)))
    for view, uses in found.pools:
        seen = set()
        for use in uses:
            rank, lane = int(use.lane[5]), use.lane[8:].partition(" (")[0]
            cpu, copy, made, train = drawn[rank].values()
            begun = {n: begin for each in (copy, made) for n, (begin, _) in each.items()}
            spans = {
                ("CPU pool", "prepared by the CPU"): list(cpu.values()),
                ("CPU buffer", "batches that wait"): [(cpu[n][1], copy[n][0]) for n in cpu],
                ("link", "copied"): list(copy.values()),
                ("link", "prepared by the device"): list(made.values()),
                ("device buffer", "batches that wait"): [(begun[n], train[n][0]) for n in train],
                ("device", "prepared by the device"): list(made.values()),
                ("device", "trained on"): list(train.values()),
            }[lane, use.kind]
            most = 1
            if lane not in ("link", "device"):
                most = max(sum(first <= at < last for first, last in spans) for at, _ in spans)
                said = f"({most} at once)" if lane == "CPU pool" else f"(up to {most})"
                assert use.lane == f"rank {rank}: {lane} {said}"
            assert (
                (use.begin >= view[0] - 1e-6).all()
                and (use.end <= view[1] + 1e-6).all()
                and len(use.begin) <= 200
            )
            wanted = [held(spans, *ends) / most for ends in zip(use.begin, use.end, strict=True)]
            np.testing.assert_allclose(use.height, np.minimum(wanted, 1 - use.base), rtol=0, atol=1e-3)
            seen.add((rank, lane, use.kind))
            assert (use.base == 0).all() or use.kind in ("prepared by the device", "trained on")
        assert len(seen) == 14
