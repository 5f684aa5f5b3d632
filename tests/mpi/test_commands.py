"""`train` and `predict` as commands over several ranks: what they write, what they refuse, and how."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import reference
from jobs import blocks, directed_weighted, files, write_job

from mgg_hpc import config
from mgg_hpc.data.graph import Graph
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY

pytestmark = pytest.mark.mpi

# The keys that readers of summary.json rely on.
SUMMARY = {
    "format", "version", "graph", "model", "ranks", "backend", "transfer", "plan", "epochs", "best_epoch",
    "val_accuracy", "test_accuracy", "final_loss", "epoch_ms", "eval_ms", "aggregate_ms", "bytes",
    "peak_rss_bytes", "heap_bytes", "seed", "per_rank", "bounds", "exchanges", "machine", "timed_epochs", "tuned",
}  # fmt: skip


def trained(folder: Path) -> tuple[dict, list[dict]]:
    """summary.json, and the lines of metrics.csv."""
    with (folder / "metrics.csv").open(newline="") as file:
        return json.loads((folder / "summary.json").read_text()), list(csv.DictReader(file))


# ---- what a run writes ----------------------------------------------------------------------------------


def test_a_run_writes_its_folder(comm, folder, first, mgg):
    graph = blocks()
    first(lambda: write_job(folder, graph, train={"epochs": 5, "seed": 7}, model={"hidden": 9}))
    for _ in range(2):
        assert mgg("train", folder / "job.toml").codes == {0}
    assert (folder / "runs" / "latest").readlink() == Path("002")
    run = folder / "runs" / "002"
    names = {str(path.relative_to(run)) for path in files(run)}
    last = {
        f"checkpoints/epoch-0000005/{name}" for name in ("manifest.json", "state.json", "state.safetensors")
    }
    assert names == {"job.toml", "metrics.csv", "summary.json", "checkpoints/model.safetensors"} | last
    written, given = config.load(run / "job.toml"), config.load(folder / "job.toml")
    taken = written.plan.transfer  # by "auto": one for all layers, or one for each
    taken = [taken] * 2 if isinstance(taken, str) else taken
    assert len(taken) == 2 and {*taken} <= {"direct", "get", "halo"}
    assert written == config.with_plan(given, taken, {"ps": written.plan.ps, "wpb": written.plan.wpb})
    assert {written.plan.ps, written.plan.wpb} == {DEFAULT_GEOMETRY.ps, DEFAULT_GEOMETRY.wpb}

    summary, lines = trained(run)
    assert set(summary) >= SUMMARY
    assert (summary["format"], summary["version"]) == ("mgg-summary", 1)
    facts = {"name": "sbm", "nodes": graph.nodes, "edges": graph.edges, "features": 12, "classes": 4}
    assert summary["graph"].items() >= facts.items()
    assert set(summary["plan"]) == {"ps", "dist", "wpb"}
    assert (summary["model"], summary["ranks"]) == ("gcn", comm.size)
    assert (summary["epochs"], summary["seed"]) == (5, 7)
    assert summary["backend"] == ("serial" if comm.size == 1 else "shm")
    for name in ("epoch_ms", "eval_ms", "aggregate_ms"):
        times = summary[name]
        assert 0 < times["min"] <= times["median"] <= times["max"]
    assert len(summary["peak_rss_bytes"]) == comm.size
    assert all(50e6 < peak < 2e9 for peak in summary["peak_rss_bytes"])

    assert len(summary["per_rank"]) == comm.size
    assert [each["rows"] for each in summary["per_rank"]] == np.diff(summary["bounds"]).tolist()
    edges = sum(each["local_edges"] + each["remote_edges"] for each in summary["per_rank"])
    assert edges == graph.edges + graph.nodes  # with a self loop each
    for each in summary["per_rank"]:
        spent = each["phases_ms"]
        assert min(spent.values()) >= 0 and spent["aggregate"] > 0
        # Steps and evaluations of all epochs are in them, and little else.
        assert sum(spent.values()) > 5 * (summary["epoch_ms"]["min"] + summary["eval_ms"]["min"])
    assert summary["timed_epochs"] == 5

    header = (run / "metrics.csv").read_text().partition("\n")[0]
    assert header.startswith("epoch,loss,train_accuracy,val_accuracy,test_accuracy,epoch_ms,")
    assert [line["epoch"] for line in lines] == ["1", "2", "3", "4", "5"]
    for line in lines:
        assert all(0 <= float(line[f"{split}_accuracy"]) <= 1 for split in ("train", "val", "test"))
        assert all(len(value.lstrip("0.").replace(".", "").partition("e")[0]) <= 9 for value in line.values())
    assert float(lines[-1]["loss"]) == pytest.approx(summary["final_loss"], rel=1e-8)


TRANSFERS = ["direct", "get", "halo", "auto", '["halo", "direct"]', '["get", "halo"]', '["halo", "halo"]']


@pytest.mark.sampled(0)
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_bytes_and_heap_are_what_the_partition_says(comm, folder, first, mgg, transfer):
    """Forward and backward of both layers, each edge and self loop reads a row once an epoch; with a halo, each
    distinct remote row crosses once."""
    graph = blocks(features=12)
    first(lambda: write_job(folder, graph, model={"hidden": 8}))
    mgg("train", folder / "job.toml", f"--set=plan.transfer={transfer}")
    summary, _ = trained(folder / "runs" / "001")
    used = summary["transfer"].split(", ")
    used = used * 2 if len(used) == 1 else used
    assert len(used) == 2 and {*used} <= {"direct", "get", "halo"}
    if transfer != "auto":
        assert used == (json.loads(transfer) if "[" in transfer else [transfer] * 2)
    bounds = edge_balanced(graph.indptr, comm.size)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    owner = np.searchsorted(bounds, np.arange(graph.nodes), side="right") - 1
    across = owner[source] != owner[destination]
    remote = int(across.sum())
    pairs = np.unique(np.stack([owner[destination], source])[:, across], axis=1)
    halo = np.bincount(pairs[0], minlength=comm.size)
    # 12 features to 8 hidden: the first layer aggregates its 12 inputs, and nothing of it backward; then 4 classes.
    first_rows, second_rows = (int(halo.sum()) if each == "halo" else remote for each in used)
    assert summary["bytes"]["remote"] == (first_rows * 12 + second_rows * (4 + 4)) * 4
    assert summary["remote_rows"] == first_rows + 2 * second_rows
    ranks = summary["per_rank"]
    assert sum(each["bytes"]["remote"] for each in ranks) == summary["bytes"]["remote"]
    assert sum(each["remote_edges"] for each in ranks) == remote
    assert [each["halo_rows"] for each in ranks] == halo.tolist()
    rows = {"direct": remote, "get": remote, "halo": int(halo.sum())}
    moved = sum(rows[each["transfer"]] * each["row_bytes"] for each in summary["exchanges"])
    assert moved == summary["bytes"]["remote"]
    assert summary["bytes"]["local"] == (graph.edges - remote + graph.nodes) * (12 + 4 + 4) * 4
    heap = summary["heap_bytes"]
    buffers = 2 if comm.size > 1 else 1  # rows are written while peers still read those before
    if {*used} != {"halo"}:  # peers read some layer's rows
        heap -= buffers * max(np.diff(bounds)) * 12 * 4
    if "halo" in used:
        heap -= 2 * int(halo.max()) * 12 * 4
        assert 0 < heap <= 16 * 8 * comm.size  # signals
    else:
        assert heap == 0


@pytest.mark.parametrize("select", ["best", "last"])
def test_the_chosen_epoch_is_kept(folder, first, mgg, select):
    """The best of all, or the last whatever the patience."""
    more = {"patience": 1} if select == "last" else {}
    train = {"epochs": 40, "learning_rate": 0.5, "select": select} | more
    first(lambda: write_job(folder, blocks(300), train=train))
    mgg("train", folder / "job.toml")
    summary, lines = trained(folder / "runs" / "001")
    best = max(lines, key=lambda line: (float(line["val_accuracy"]), -float(line["val_loss"])))
    assert best is not lines[-1]
    kept = best if select == "best" else lines[-1]
    assert (summary["best_epoch"], summary["epochs"], len(lines)) == (int(kept["epoch"]), 40, 40)
    for split in ("val", "test"):
        assert summary[f"{split}_accuracy"] == pytest.approx(float(kept[f"{split}_accuracy"]), rel=1e-8)


def test_dry_run_prints_the_plan_of_each_rank_and_writes_nothing(comm, folder, first, mgg):
    graph = blocks()
    first(lambda: write_job(folder, graph))
    before = files(folder)
    outcome = mgg("train", folder / "job.toml", "--dry-run")
    assert outcome.codes == {0}
    assert outcome.out[1:] == [""] * (comm.size - 1)
    assert "".join(outcome.err) == ""
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in outcome.out[0].splitlines()]
    plans = [[int(cell.replace(",", "")) for cell in line] for line in lines if len(line) == 6]
    assert [row[0] for row in plans] == list(range(comm.size))
    assert sum(row[1] for row in plans) == graph.nodes
    assert sum(row[2] + row[3] for row in plans) == graph.edges + graph.nodes  # with a self loop each
    assert (sum(row[4] for row in plans) > 0) == (comm.size > 1)
    memories = [line for line in lines if len(line) == 7]
    assert [row[0] for row in memories] == [str(rank) for rank in range(comm.size)]
    assert all(re.fullmatch(r"\d+(\.\d)? (B|KiB|MiB)", cell) for row in memories for cell in row[1:])
    assert files(folder) == before
    assert not (folder / "runs").exists()


# ---- what is refused ------------------------------------------------------------------------------------


def job(**sections: dict) -> Callable[[Path], object]:
    return lambda folder: write_job(folder, blocks(), **sections)


def changed(**fields: object) -> Callable[[Path], object]:
    return lambda folder: write_job(folder, dataclasses.replace(blocks(), **fields))


def saying(graph: Graph, **attributes: object) -> Callable[[Path], None]:
    """A file that says something else of itself than its content does."""

    def make(folder: Path) -> None:
        write_job(folder, graph)
        with h5py.File(folder / "g.h5", "r+") as file:
            file.attrs.update(attributes)

    return make


def truncated(folder: Path) -> None:
    write_job(folder, blocks())
    os.truncate(folder / "g.h5", (folder / "g.h5").stat().st_size // 2)


def damaged(folder: Path) -> None:
    """A value of the last rank's rows is changed and the digests are not."""
    write_job(folder, blocks())
    with h5py.File(folder / "g.h5", "r+") as file:
        file["node/x"][149, 0] += 1


def several_labels(folder: Path) -> None:
    graph = dataclasses.replace(blocks(), y=np.ones((150, 3), np.float32), classes=3)
    write_job(folder, graph, train={"metric": "accuracy"})


NO_SPLIT = {"train": None, "val": None, "test": None}
REFUSED = {
    "unknown key": (job(train={"epoch": 3}), "job.toml: unknown key train.epoch; did you mean train.epochs?"),
    "no graph": (write_job, "g.h5"),
    "truncated graph": (truncated, "g.h5"),
    "damaged features": (damaged, "g.h5: /node/x is damaged: the digest of block 0 (entries 0 .. 149)"),
    "graph is text": (job(graph={"file": "job.toml"}), "job.toml"),
    "no features": (changed(x=None), "g.h5: has no node features (/node/x)"),
    "no labels": (changed(y=None, classes=0, **NO_SPLIT), "g.h5: has no labels (/node/y)"),
    "no split": (changed(**NO_SPLIT), "g.h5: has no training nodes (/node/train)"),
    "no training rows": (changed(train=np.zeros(150, bool)), "g.h5: has no training nodes (/node/train)"),
    "accuracy of several labels": (several_labels, "g.h5: has several labels a node, and train.metric"),
    "roc auc of four classes": (job(train={"metric": "roc_auc"}), "g.h5: has 4 classes; train.metric"),
    "more classes in the labels": (saying(blocks(), classes=3), "g.h5: /node/y has label 3 in row "),
    "one-way edges": (
        saying(directed_weighted(), directed=False),
        "g.h5: says directed=false, but some edge has no equal one",
    ),
    "run folder below a file": (job(run={"folder": __file__ + "/runs"}), "run.folder: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_gets_one_line_and_nothing_is_written(folder, first, mgg, case):
    make, message = REFUSED[case]
    first(lambda: make(folder))
    before = files(folder)
    line = mgg("train", folder / "job.toml").refused()
    assert message in line
    assert "No such file or directory (" not in line
    assert files(folder) == before
    assert not (folder / "runs").exists()
