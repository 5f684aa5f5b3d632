"""Each number that is printed stands under its own label: all values of made-up jobs and summaries differ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.config import Settings
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry
from mgg_hpc.training import memory, report
from mgg_hpc.training.profile.phases import breakdown
from mgg_hpc.training.tuning import offline
from mgg_hpc.training.tuning import tuner as tuning


class Alone:
    """A rank whose table has a second rank's line, ``other``."""

    rank, size = 0, 2

    def __init__(self, other=None):
        self.other = other

    def gather(self, mine, root=0):
        return [mine, self.other or mine]


@pytest.fixture
def printed(capsys):
    """What was printed: lines of cells of tables, and other lines."""

    def printed() -> tuple[list[list[str]], list[str]]:
        lines = capsys.readouterr().out.splitlines()
        rows = [
            [cell.strip() for cell in line[1:-1].split(line[0])]
            for line in lines
            if line[:1] in "│┃" and line
        ]
        return rows, [line for line in lines if line and not set(line) & set("│┃━─")]

    return printed


def summary(**more):
    rank = {"phases_ms": {"aggregate": 100.0, "dense": 50.0, "other": 0.0}}
    other = {"phases_ms": {"aggregate": 300.0, "dense": 70.0, "other": 0.0}}
    return {
        "model": "gcn",
        "metric": "f1",
        "graph": {"name": "g"},
        "ranks": 2,
        "timed_epochs": 6,
        "per_rank": [rank, other],
        "test_accuracy": 0.1111,
        "test_macro_f1": 0.2222,
        "val_accuracy": 0.3333,
        "best_epoch": 44,
        "epochs": 55,
        "final_loss": 0.666666,
        "epoch_ms": {"min": 7.07, "median": 8.08, "max": 9.09},
        "aggregate_ms": {"min": 1.0, "median": 10.10, "max": 11.0},
        "eval_ms": {"min": 2.0, "median": 12.12, "max": 13.0},
        "remote_rows": 1414,
        "bytes": {"local": 15, "remote": 16},
        "peak_rss_bytes": [17, 18],
        "heap_bytes": 19,
        "estimated_bytes": [20, 21],
        "batches": 3,
    } | more


RESULT = {
    "test micro F1": "0.1111, macro F1 0.2222",
    "validation": "0.3333 in epoch 44 of 55",
    "final loss": "0.666666",
    "epoch": "8.08 ms (min 7.07, max 9.09); aggregation 10.10 ms",
    "evaluation": "12.12 ms",
    "rows moved": "1,414 remote rows an epoch (16 B); local 15 B",
    "memory per rank": "17 B, 18 B; heap 19 B",
    "as predicted": "20 B, 21 B",
    "summary": "here/summary.json",
    "run folder": "here",
}
SAMPLED = {"sampled": {"edges": 2222, "rows": 2323}}
STREAMED = {"streamed": {"loaded_bytes": 24, "moved_bytes": 25, "spilled_bytes": 26, "load_ms": 27.2}}
MORE = {
    "whole": ({}, {}),
    "sampled": (
        SAMPLED,
        {"epoch": "8.08 ms (min 7.07, max 9.09); 3 batches, of 2,222 edges and 2,323 rows together"},
    ),
    "streamed": (
        STREAMED,
        {
            "streamed": "24 B of rows were loaded in an epoch, in 27 ms; "
            "26 B of activations left memory; 25 B were moved with its evaluation"
        },
    ),
}


@pytest.mark.parametrize("kind", MORE)
def test_the_result_of_a_run(printed, kind):
    given, wanted = MORE[kind]
    report.print_result(summary(**given), Path("here/summary.json"), Path("here"))
    rows, (title,) = printed()
    found, last = {}, ""
    for name, text in rows:  # a long text goes on in the next line
        last = name or last
        found[last] = f"{found[last]} {text}" if last in found else text
    assert title.strip() == "gcn on g, 2 ranks"
    assert found == RESULT | wanted


def test_times_by_phase(printed):
    report.print_phases(summary())
    rows, (title,) = printed()
    assert title.strip() == "6 epochs by phase: ms over ranks"
    assert rows == [
        ["phase", "min", "mean", "max", "share", "imbalance"],
        ["aggregate", "100.0", "200.0", "300.0", f"{400 / 520:.1%}", "1.50"],
        ["dense", "50.0", "60.0", "70.0", f"{120 / 520:.1%}", f"{70 / 60:.2f}"],
    ]
    report.print_phases(summary(ranks=1, per_rank=summary()["per_rank"][:1]))
    assert printed()[0] == [
        ["phase", "ms", "share"],
        ["aggregate", "100.0", "66.7%"],
        ["dense", "50.0", "33.3%"],
    ]
    assert breakdown([{"a": 0.0}, {"a": 0.0}])[0] | {"phase": ""} == {
        "phase": "", "min": 0.0, "mean": 0.0, "max": 0.0, "share": 0.0, "imbalance": 1.0
    }  # fmt: skip


def job_of(comm, **more):
    plan = SimpleNamespace(
        destinations=1011,
        local_edges=2022,
        remote_edges=3033,
        halo=range(4044),
        partitions=lambda ps: [ps, 5055],
    )
    options = SimpleNamespace(geometry=Geometry(16, BY_WIDTH, 17), threads=18)
    backend = SimpleNamespace(
        options=options,
        capabilities=SimpleNamespace(device="cpu", name="shm"),
        memory=SimpleNamespace(free=lambda: None),
    )
    part = SimpleNamespace(
        name="g", nodes=1234, edges=5678, features=90, classes=12, bounds_source="file", path=Path("g.h5")
    )
    given = {
        "comm": comm,
        "backend": backend,
        "part": part,
        "layers": [SimpleNamespace(forward=plan)],
        "streamed": None,
        "sampled": None,
        "settings": Settings(),
        "backend_reason": "as told",
        "transfer": type("T", (str,), {"why": "by choice"})("halo"),
        "x": None,
        "select": "best",
        "plans": SimpleNamespace(notes=["a note"]),
    }
    return SimpleNamespace(**given | more)


def test_the_plan_and_the_memory_of_each_rank(printed):
    report.print_plan(job_of(Alone()))
    rows, (title,) = printed()
    assert title.strip() == "plan"
    head = ["rank", "rows", "local edges", "remote edges", "halo rows", "partitions"]
    cells = ["1,011", "2,022", "3,033", "4,044", "5,071"]
    assert rows == [head, ["0", *cells], ["1", *cells]]
    need = memory.Estimate(in_use=1, plan=20, heap=300, activations=4, model=50, before=6)
    report.print_memory(job_of(Alone()), need)
    assert printed()[0][:2] == [
        ["rank", "in use", "plan", "heap", "activations", "model", "peak"],
        ["0", "1 B", "20 B", "300 B", "4 B", "50 B", "375 B"],
    ]
    assert memory.Estimate(1, 2, 3, 4, 5, before=600).peak == 600
    assert report.told([4, 3, 2, 1]) == "4 B, 3 B, 2 B, 1 B" and report.told([3, 5, 1, 4, 2]) == "1 B to 5 B"
    report.print_memory(job_of(Alone()), need, measured=777)
    assert [row[-2:] for row in printed()[0]] == [["peak", "measured"], *[["375 B", "777 B"]] * 2]


def test_the_start_of_a_run(printed):
    how = SimpleNamespace(batch_size=321, fanouts=(4, -1))
    streamed = SimpleNamespace(streaming=SimpleNamespace(memory=999))
    report.print_start(job_of(Alone(), sampled=SimpleNamespace(how=how, steps=7), streamed=streamed))
    assert printed()[1] == [
        "g: 1,234 nodes, 5,678 edges, 90 features, 12 classes",
        "2 ranks, 18 threads each; ps 16, dist auto, wpb 17",
        "backend shm (as told); transfer halo (by choice)",
        "sampled: 7 batches an epoch of 321 rows, fanouts 4, all",
        "streamed: rows lie in the host's memory, and pass through 999 B a rank",
        "a note",
    ]


def found(layer, direction, row_bytes, default, ms, points, geometry):
    return offline.Found([(layer, direction)], row_bytes, default, ms, points, geometry)


def test_what_a_search_before_training_found(printed):
    """The transfer for the job file is, for each layer, the one whose aggregations take least together."""
    each = {
        "direct": [
            found(1, "forward", 16, 4.0, 3.0, 5, Geometry(1, 2, 3)),
            found(2, "forward", 32, 9.0, 8.0, 6, Geometry(4, 5, 6)),
        ],
        "halo": [
            found(1, "forward", 48, 7.0, 5.0, 7, Geometry(7, 8, 9)),
            found(2, "backward", 64, 2.5, 1.5, 8, Geometry(10, BY_WIDTH, 12)),
        ],
    }
    offline._print(Settings(), 2, each)
    rows, lines = printed()
    assert rows == [
        ["transfer", "layers", "row bytes", "default", "found", "gain", "points", "setting"],
        ["direct", "1 forward", "16", "4.00", "3.00", "25%", "5", "ps 1, dist 2, wpb 3"],
        ["direct", "2 forward", "32", "9.00", "8.00", "11%", "6", "ps 4, dist 5, wpb 6"],
        ["halo", "1 forward", "48", "7.00", "5.00", "29%", "7", "ps 7, dist 8, wpb 9"],
        ["halo", "2 backward", "64", "2.50", "1.50", "40%", "8", "ps 10, dist auto, wpb 12"],
    ]
    assert [line.strip(' ",') for line in lines if line.strip(' ",') in ("direct", "halo")] == [
        "direct",
        "halo",
    ]
    # A search of several layers shares its time among them.
    shared = offline.Found(
        [(1, "forward"), (2, "forward"), (2, "backward")], 4, 9.0, 6.0, 1, Geometry(1, 1, 1)
    )
    assert offline._by_layer([shared, found(1, "backward", 4, 1.0, 0.5, 1, Geometry(1, 1, 1))], 2) == [
        2.5,
        4.0,
    ]


def test_what_a_search_while_training_found(printed):
    def target(source, gain, wpb, searched=True):
        plan = SimpleNamespace(transfer="get")
        made = tuning.Target(
            plan, RowFormat(np.dtype(np.float32), 4 * wpb), [(wpb, "forward")], {}, [], Geometry(2, 3, wpb)
        )
        made.source, made.gain, made.epochs = source, gain, list(range(wpb))
        made.search = SimpleNamespace() if searched else None
        return made

    targets = [
        target("table", 0.25, 4),
        target("measured", 0.5, 8),
        target("measured", 0.0, 12),
        target("default", 0.0, 16),
    ]
    left = SimpleNamespace(targets=[*targets, target("default", 0.0, 20, searched=False)], ignored=["a word"])
    told = tuning.report_found(left, shown_here=True)
    ends = {
        4: "ps 2, dist 3, wpb 4; 25% less time than by default, known from an earlier run",
        8: f"ps 2, dist 3, wpb 8; 50% less time than by default, found in {tuning.WARM_UP + 8} epochs",
        12: f"ps 2, dist 3, wpb 12; the default is the fastest, found in {tuning.WARM_UP + 12} epochs",
        16: "the search for ps, dist and wpb had not ended",
    }
    of_targets = [f"layer {n} forward (get, rows of {16 * n} bytes): {end}" for n, end in ends.items()]
    assert printed()[1] == ["a word", *of_targets]
    assert [(each["rows"], each["wpb"], each["gain"]) for each in told] == [
        (each.label, each.geometry.wpb, each.gain) for each in targets[:3]
    ]
