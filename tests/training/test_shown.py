"""Each number that is printed stands under its own label: all values of made-up jobs and summaries differ."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command import tables

from mgg_hpc.config import ModelSettings, PlanSettings, Settings, TrainSettings
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry
from mgg_hpc.training import memory, report
from mgg_hpc.training.tuning import offline


@pytest.fixture
def printed(capsys):
    return partial(tables, capsys)


SUMMARY = {
    "model": "gcn",
    "metric": "f1",
    "graph": {"name": "g"},
    "ranks": 2,
    "timed_epochs": 6,
    "per_rank": [
        {"phases_ms": {"aggregate": 100.0, "dense": 50.0, "other": 0.0}},
        {"phases_ms": {"aggregate": 300.0, "dense": 70.0, "other": 0.0}},
    ],
    "splits": {"train": 1, "val": 2, "test": 3},
    "train_accuracy": 0.4444,
    "test_accuracy": 0.1111,
    "test_macro_f1": 0.2222,
    "val_accuracy": 0.3333,
    "best_epoch": 44,
    "epochs": 55,
    "final_loss": 0.666666,
    "seconds": 65.2,
    "epoch_ms": {"min": 7.07, "median": 8.08, "max": 9.09},
    "aggregate_ms": {"min": 1.0, "median": 10.10, "max": 11.0},
    "eval_ms": {"min": 2.0, "median": 12.12, "max": 13.0},
    "remote_rows": 1414,
    "bytes": {"local": 15, "remote": 16},
    "peak_rss_bytes": [17, 18],
    "heap_bytes": 19,
    "estimated_bytes": [20, 21],
    "batches": 3,
    "cuda_graph_failure": "",
}
RESULT = """\
test micro F1        0.1111, macro F1 0.2222
validation micro F1  0.3333, in epoch 44 of 55
training micro F1    0.4444
time                 1 min 05 s; an epoch takes 8.08 ms, its evaluation 12.12 ms

next:
  mgg predict 'a run/003' -o predictions.csv
  mgg report 'a run/003'
"""


def test_the_result_of_a_run(capsys, monkeypatch):
    monkeypatch.delenv("MGG_RANKS", raising=False)
    report.print_result(SUMMARY, Path("a run/003"))
    assert capsys.readouterr().out == RESULT
    monkeypatch.setenv("MGG_RANKS", "2")
    report.print_result(SUMMARY | {"splits": {"train": 1, "val": 0, "test": 3}}, Path("a run/003"))
    wanted = RESULT.replace("mgg predict", "mgg launch -n 2 predict").splitlines()
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert found == [line.split() for line in wanted if "0.3333" not in line]


DETAILS = {
    "final loss": "0.666666",
    "epoch": "8.08 ms (min 7.07, max 9.09); aggregation 10.10 ms",
    "evaluation": "12.12 ms",
    "rows moved": "1,414 remote rows an epoch (16 B); local 15 B",
    "memory of each rank": "17 B, 18 B, predicted 20 B, 21 B; heap 19 B",
}
SAMPLED = "8.08 ms (min 7.07, max 9.09); 3 batches, of 2,222 edges and 2,323 nodes together"
LOADED = "24 B of rows were loaded in an epoch, in 27 ms; 26 B of activations left memory; "
STREAMED = {"loaded_bytes": 24, "moved_bytes": 25, "spilled_bytes": 26, "load_ms": 27.2}
MORE = {
    "whole": ({}, {}),
    "sampled": ({"sampled": {"edges": 2222, "rows": 2323}}, {"epoch": SAMPLED}),
    "streamed": ({"streamed": STREAMED}, {"streamed": f"{LOADED}25 B were moved with its evaluation"}),
}


@pytest.mark.parametrize("kind", MORE)
def test_the_details_of_a_run(capsys, kind):
    given, wanted = MORE[kind]
    report.print_details(SUMMARY | given)
    lines = capsys.readouterr().out.splitlines()
    assert {line[:19].strip(): line[19:].strip() for line in lines if line} == DETAILS | wanted
    report.print_details(SUMMARY | given | {"ranks": 1, "cuda_graph_failure": "a reason"})
    out = capsys.readouterr().out
    assert "remote" not in out and "not recorded as a CUDA graph: a reason\n" in out


JOB = """\
graph     g: 1,234 nodes, 5,678 edges, 9 features, 10 classes
model     gat, 3 layers, 7 heads of 11 hidden units, dropout 0.25, 106 parameters
splits    12 training, 14 test nodes
epochs    20; the last one's weights are kept, as there are no validation nodes
batches   15 an epoch, of 16 nodes, fanouts 17, all
streamed  from files in there, through 18 B a rank
device    2 ranks on CPU, 19 threads each
memory    21 B at the peak, of 22 B free
"""


def test_the_start_of_a_run(capsys):
    """All that a job may have, at once."""
    settings = Settings(
        model=ModelSettings(name="gat", layers=3, heads=7, hidden=11, dropout=0.25),
        train=TrainSettings(epochs=20, patience=13),
        plan=PlanSettings(scratch="there"),
    )
    job = SimpleNamespace(
        part=SimpleNamespace(name="g", nodes=1234, edges=5678, features=9, classes=10, multilabel=False),
        settings=settings,
        comm=SimpleNamespace(size=2),
        backend=SimpleNamespace(
            capabilities=SimpleNamespace(device="cpu"),
            options=SimpleNamespace(threads=19),
            memory=SimpleNamespace(free=lambda: None),
            sampling=None,
        ),
        model=torch.nn.Linear(9, 10),
        labels=SimpleNamespace(totals={"train": 12, "val": 0, "test": 14}),
        metric=SimpleNamespace(name="accuracy"),
        sampled=SimpleNamespace(steps=15, how=SimpleNamespace(batch_size=16, fanouts=(17, -1))),
        streamed=SimpleNamespace(streaming=SimpleNamespace(memory=18)),
        learned=None,
        select="last",
        x=None,
    )
    job.model.bias = torch.nn.Parameter(torch.zeros(16))
    report.print_start(job, (21, 22))
    assert capsys.readouterr().out == JOB
    job.select, job.sampled, job.streamed, job.comm.size = "best", None, None, 1
    job.part.multilabel = True
    report.print_start(job, (21, 22))
    out = capsys.readouterr().out
    assert (
        "\nepochs    20, fewer if 13 in a row are no better; the weights of the best validation accuracy are kept\n"
        in out
    )
    assert ", 10 classes, several a node\n" in out
    assert "\ndevice    CPU, 19 threads\n" in out and "batches" not in out and "streamed" not in out


def test_times_by_phase(printed):
    report.print_phases(SUMMARY)
    assert printed()[0] == [
        ["phase", "min", "mean", "max", "share", "imbalance"],
        ["aggregate", "100.0", "200.0", "300.0", f"{400 / 520:.1%}", "1.50"],
        ["dense", "50.0", "60.0", "70.0", f"{120 / 520:.1%}", f"{70 / 60:.2f}"],
    ]
    alone = [
        {"phases_ms": SUMMARY["per_rank"][0]["phases_ms"] | {"wait for peers": 0.006, "sum gradients": 0.002}}
    ]
    report.print_phases(SUMMARY | {"ranks": 1, "per_rank": alone})
    assert printed() == (
        [["phase", "ms", "share"], ["aggregate", "100.0", "66.7%"], ["dense", "50.0", "33.3%"]],
        ["6 epochs by phase: ms"],
    )


def test_the_plan_and_the_memory_of_each_rank(printed):
    plan = SimpleNamespace(
        destinations=1011,
        local_edges=2022,
        remote_edges=3033,
        halo=range(4044),
        partitions=lambda ps: [ps, 5055],
    )
    job = SimpleNamespace(
        comm=SimpleNamespace(size=2, gather=lambda mine, root: [mine, mine]),
        backend=SimpleNamespace(
            options=SimpleNamespace(geometry=Geometry(16, BY_WIDTH, 17)),
            capabilities=SimpleNamespace(device="cpu"),
        ),
        layers=[SimpleNamespace(forward=plan)],
        streamed=None,
    )
    report.print_plan(job)
    head = ["rank", "nodes", "local edges", "remote edges", "halo nodes", "partitions"]
    cells = ["1,011", "2,022", "3,033", "4,044", "5,071"]
    assert printed()[0] == [head, ["0", *cells], ["1", *cells]]
    need = memory.Estimate(in_use=1, plan=20, heap=300, activations=4, model=50, before=6)
    report.print_memory(job, need, measured=777)
    head = ["rank", "in use", "plan", "heap", "activations", "model", "peak", "measured"]
    cells = ["1 B", "20 B", "300 B", "4 B", "50 B", "375 B", "777 B"]
    assert printed()[0] == [head, ["0", *cells], ["1", *cells]]
    assert memory.Estimate(1, 2, 3, 4, 5, before=600).peak == 600
    assert (
        report.of_ranks([4, 3, 2, 1]) == "4 B, 3 B, 2 B, 1 B"
        and report.of_ranks([3, 5, 1, 4, 2]) == "1 B to 5 B"
    )


def test_what_a_search_before_training_found(printed):
    """The transfer for the job file is, for each layer, the one whose aggregations take least together."""

    def found(layers, row_bytes, default, ms, points, *geometry):
        return offline.Found(layers, row_bytes, default, ms, points, Geometry(*geometry))

    one, two, two_back = (1, "forward"), (2, "forward"), (2, "backward")
    each = {
        "direct": [found([one], 16, 4.0, 3.0, 5, 1, 2, 3), found([two], 32, 9.0, 8.0, 6, 4, 5, 6)],
        "halo": [
            found([one], 48, 7.0, 5.0, 7, 7, 8, 9),
            found([two_back], 64, 2.5, 1.5, 8, 10, BY_WIDTH, 12),
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
    assert [line for line in lines if line in each] == ["direct", "halo"]
    # A search of several layers shares its time among them.
    shared = [
        found([one, two, two_back], 4, 9.0, 6.0, 1, 1, 1, 1),
        found([(1, "backward")], 4, 1, 0.5, 1, 1, 1, 1),
    ]
    assert offline._by_layer(shared, 2) == [2.5, 4.0]
