"""`train` and `predict` as commands over 1, 2 and 4 ranks: what they write, what they refuse, and how."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
from jobs import blocks, dense_features, directed_weighted, files, renumbered, with_sparse_features, write_job

from mgg_hpc import config, reference
from mgg_hpc.__main__ import main
from mgg_hpc.data.graph import Graph
from mgg_hpc.plan.ranges import edge_balanced

pytestmark = pytest.mark.mpi

# The keys that readers of summary.json rely on.
SUMMARY = {
    "format", "version", "graph", "model", "ranks", "backend", "transfer", "plan", "epochs", "best_epoch",
    "val_accuracy", "test_accuracy", "final_loss", "epoch_ms", "eval_ms", "aggregate_ms", "bytes",
    "peak_rss_bytes", "heap_bytes", "seed",
}  # fmt: skip


@dataclasses.dataclass
class Outcome:
    """Exit codes and texts of all ranks."""

    codes: set[int]
    out: list[str]
    err: list[str]


@pytest.fixture
def folder(comm, tmp_path_factory) -> Path:
    """A new folder that all ranks see; the ranks leave it together."""
    yield Path(comm.bcast(str(tmp_path_factory.mktemp("job")) if comm.rank == 0 else None))
    comm.Barrier()


@pytest.fixture
def first(comm):
    """Do something on rank 0 only, before any rank goes on."""

    def first(action: Callable[[], object]) -> None:
        if comm.rank == 0:
            action()
        comm.Barrier()

    return first


@pytest.fixture
def mgg(comm, capsys):
    """Run a command on all ranks."""

    def mgg(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        comm.Barrier()
        out, err = capsys.readouterr()
        return Outcome(set(comm.allgather(code)), comm.allgather(out), comm.allgather(err))

    return mgg


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
    assert names == {"job.toml", "metrics.csv", "summary.json", "checkpoints/model.safetensors"}
    written, given = config.load(run / "job.toml"), config.load(folder / "job.toml")
    taken = written.plan.transfer  # by "auto": one for all layers, or one for each
    taken = [taken] * 2 if isinstance(taken, str) else taken
    assert len(taken) == 2 and {*taken} <= {"direct", "get", "halo"}
    assert written == config.with_transfer(given, taken)

    summary, lines = trained(run)
    assert set(summary) >= SUMMARY
    assert (summary["format"], summary["version"]) == ("mgg-summary", 1)
    facts = {"name": "sbm", "nodes": graph.nodes, "edges": graph.edges, "features": 12, "classes": 4}
    assert summary["graph"].items() >= facts.items()
    assert set(summary["plan"]) == {"ps", "dist", "wpb"}
    assert (summary["model"], summary["ranks"], summary["epochs"], summary["seed"]) == (
        "gcn",
        comm.size,
        5,
        7,
    )
    assert summary["backend"] == ("serial" if comm.size == 1 else "shm")
    for name in ("epoch_ms", "eval_ms", "aggregate_ms"):
        times = summary[name]
        assert 0 < times["min"] <= times["median"] <= times["max"]
    assert len(summary["peak_rss_bytes"]) == comm.size
    assert all(50e6 < peak < 2e9 for peak in summary["peak_rss_bytes"])

    header = (run / "metrics.csv").read_text().partition("\n")[0]
    assert header.startswith("epoch,loss,train_accuracy,val_accuracy,test_accuracy,epoch_ms,")
    assert [line["epoch"] for line in lines] == ["1", "2", "3", "4", "5"]
    for line in lines:
        assert all(0 <= float(line[f"{split}_accuracy"]) <= 1 for split in ("train", "val", "test"))
        assert all(len(value.lstrip("0.").replace(".", "").partition("e")[0]) <= 9 for value in line.values())
    assert float(lines[-1]["loss"]) == pytest.approx(summary["final_loss"], rel=1e-8)


TRANSFERS = ["direct", "get", "halo", "auto", '["halo", "direct"]', '["get", "halo"]', '["halo", "halo"]']


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
    owner = np.searchsorted(bounds, np.arange(graph.nodes), side="right")
    across = owner[source] != owner[destination]
    remote = int(across.sum())
    halo = {(int(r), int(u)) for r, u in zip(owner[destination][across], source[across], strict=True)}
    # 12 features to 8 hidden: the first layer aggregates its 12 inputs, and nothing of it backward; then 4 classes.
    first_rows, second_rows = (len(halo) if each == "halo" else remote for each in used)
    assert summary["bytes"]["remote"] == (first_rows * 12 + second_rows * (4 + 4)) * 4
    assert summary["remote_rows"] == first_rows + 2 * second_rows
    assert summary["bytes"]["local"] == (graph.edges - remote + graph.nodes) * (12 + 4 + 4) * 4
    heap = summary["heap_bytes"]
    if {*used} != {"halo"}:  # peers read some layer's rows, in two buffers
        heap -= 2 * max(np.diff(bounds)) * 12 * 4
    if "halo" in used:
        largest = max(sum(r == rank for r, _ in halo) for rank in range(1, comm.size + 1))
        heap -= 2 * largest * 12 * 4
        assert 0 < heap <= 16 * 8 * comm.size  # signals
    else:
        assert heap == 0


def test_the_best_validation_epoch_is_kept(folder, first, mgg):
    first(lambda: write_job(folder, blocks(300), train={"epochs": 40, "learning_rate": 0.5}))
    mgg("train", folder / "job.toml")
    summary, lines = trained(folder / "runs" / "001")
    best = max(lines, key=lambda line: (float(line["val_accuracy"]), -float(line["val_loss"])))
    assert summary["best_epoch"] == int(best["epoch"]) < 40
    for split in ("val", "test"):
        assert summary[f"{split}_accuracy"] == pytest.approx(float(best[f"{split}_accuracy"]), rel=1e-8)


LAST = {"select": "last", "patience": 1}


def test_select_last_keeps_the_last_epoch_and_knows_no_patience(folder, first, mgg):
    first(lambda: write_job(folder, blocks(300), train={"epochs": 40, "learning_rate": 0.5} | LAST))
    mgg("train", folder / "job.toml")
    summary, lines = trained(folder / "runs" / "001")
    assert (summary["best_epoch"], summary["epochs"], len(lines)) == (40, 40, 40)
    assert summary["test_accuracy"] == pytest.approx(float(lines[-1]["test_accuracy"]), rel=1e-8)


def test_patience_stops_a_run_that_learns_nothing(folder, first, mgg):
    # Steps too small to change a float32 weight: epoch 1 stays the best.
    first(lambda: write_job(folder, blocks(), train={"epochs": 50, "patience": 3, "learning_rate": 1e-30}))
    mgg("train", folder / "job.toml")
    summary, lines = trained(folder / "runs" / "001")
    assert (summary["epochs"], len(lines), summary["best_epoch"]) == (4, 4, 1)


def test_overrides_reach_the_run(folder, first, mgg):
    first(lambda: write_job(folder, blocks()))
    assert mgg("train", folder / "job.toml", "--set", "train.epochs=2", "--set", "train.seed=5").codes == {0}
    summary, _ = trained(folder / "runs" / "001")
    assert (summary["epochs"], summary["seed"]) == (2, 5)


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


def one_way(folder: Path) -> None:
    """A graph that says it is undirected and has edges without their reverse."""
    write_job(folder, directed_weighted())
    with h5py.File(folder / "g.h5", "r+") as file:
        file.attrs["directed"] = False


def truncated(folder: Path) -> None:
    write_job(folder, blocks())
    content = (folder / "g.h5").read_bytes()
    (folder / "g.h5").write_bytes(content[: len(content) // 2])


def changed(**fields: object) -> Callable[[Path], None]:
    return lambda folder: write_job(folder, dataclasses.replace(blocks(), **fields))


def job(stored: bool = True, **sections: dict) -> Callable[[Path], None]:
    return lambda folder: write_job(folder, blocks() if stored else None, **sections)


NO_SPLIT = {"train": None, "val": None, "test": None}
REFUSED = {
    "unknown key": (job(train={"epoch": 3}), "job.toml: unknown key train.epoch; did you mean train.epochs?"),
    "wrong type": (job(train={"epochs": "3"}), "job.toml: train.epochs is '3'; it must be a whole number"),
    "nan": (job(train={"weight_decay": float("nan")}), "job.toml: train.weight_decay is nan; it must be"),
    "no graph": (job(stored=False), "g.h5"),
    "truncated graph": (truncated, "g.h5"),
    "graph is text": (job(graph={"file": "job.toml"}), "job.toml"),
    "no features": (changed(x=None), "g.h5: has no node features (/node/x)"),
    "no labels": (changed(y=None, classes=0, **NO_SPLIT), "g.h5: has no labels (/node/y)"),
    "no split": (changed(**NO_SPLIT), "g.h5: has no training rows (/node/train)"),
    "no training rows": (changed(train=np.zeros(150, bool)), "g.h5: has no training rows (/node/train)"),
    "several labels a node": (
        changed(y=np.ones((150, 3), np.float32), classes=3, **NO_SPLIT),
        "g.h5: has several labels a node",
    ),
    "one-way edges": (one_way, "g.h5: says directed=false, but some edge has no equal one"),
    "run folder below a file": (job(run={"folder": __file__ + "/runs"}), "run.folder: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_gets_one_line_and_nothing_is_written(comm, folder, first, mgg, case):
    make, message = REFUSED[case]
    first(lambda: make(folder))
    before = files(folder)
    outcome = mgg("train", folder / "job.toml")
    assert outcome.codes == {2}
    assert outcome.err[1:] == [""] * (comm.size - 1)
    assert outcome.err[0].count("\n") == 1
    assert outcome.err[0].startswith("mgg: error: ")
    assert message in outcome.err[0]
    assert "No such file or directory (" not in outcome.err[0]
    assert files(folder) == before
    assert not (folder / "runs").exists()


def test_a_missing_job_file_is_named(folder, mgg):
    outcome = mgg("train", folder / "absent.toml")
    assert outcome.codes == {2}
    assert "".join(outcome.err) == (
        f"mgg: error: {folder / 'absent.toml'}: no such job file; inputs/ holds examples\n"
    )


def test_a_loss_that_is_no_number_says_what_to_change(folder, first, mgg):
    graph = blocks()
    first(lambda: write_job(folder, dataclasses.replace(graph, x=graph.x * np.float32(3e37))))
    outcome = mgg("train", folder / "job.toml")
    assert outcome.codes == {2}
    text = "".join(outcome.err)
    assert text.count("\n") == 1
    assert "lower train.learning_rate (it is 0.01) or scale the features (train.normalize_features)" in text


# ---- predict --------------------------------------------------------------------------------------------


def by_hand(graph: Graph, run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Hidden rows and logits of a 2-layer GCN from its saved weights: float64, from the formulas."""
    weights = safetensors.numpy.load_file(run / "checkpoints" / "model.safetensors")
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    first = reference.gcn_layer(
        source, destination, dense_features(graph), w["convs.0.lin.weight"], w["convs.0.bias"], graph.weight
    )
    hidden = np.maximum(first, 0)
    logits = reference.gcn_layer(
        source, destination, hidden, w["convs.1.lin.weight"], w["convs.1.bias"], graph.weight
    )
    return hidden, logits


KINDS = {
    "dense": blocks,
    "sparse": lambda: with_sparse_features(blocks(features=40)),
    "directed-weighted": directed_weighted,
}


@pytest.mark.parametrize("order", ["as it is", "renumbered"])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_equal_a_forward_pass_by_hand(folder, first, mgg, kind, order):
    """In the user's numbering, whatever the order of rows in the file."""
    graph = KINDS[kind]()
    rows = np.random.default_rng(4).permutation(graph.nodes)
    stored = renumbered(graph, rows) if order == "renumbered" else graph
    train = {"epochs": 30, "dtype": "float64", "learning_rate": 0.05}
    first(lambda: write_job(folder, stored, train=train, model={"hidden": 8}))
    mgg("train", folder / "job.toml")
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {0}
    assert str(folder / "out.h5") in outcome.out[0]
    hidden, logits = by_hand(graph, folder / "runs" / "001")
    with h5py.File(folder / "out.h5") as file:
        found = {name: file[name][:] for name in file}
        facts = dict(file.attrs)
    assert found["class"].dtype == np.int64
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["embedding"], hidden, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found["probability"], chance, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(found["class"], logits.argmax(axis=1))
    assert (facts["format"], facts["version"], facts["run"]) == ("mgg-prediction", 1, "001")
    summary, _ = trained(folder / "runs" / "001")
    right = (found["class"] == graph.y)[graph.test].mean()
    assert summary["test_accuracy"] == pytest.approx(right, rel=1e-12)
    assert facts["graph_uuid"] == summary["graph"]["uuid"]
    assert {path.name for path in folder.iterdir()} == {"g.h5", "job.toml", "out.h5", "runs"}


def test_predict_replaces_a_file_only_if_told_to(comm, folder, first, mgg):
    first(lambda: write_job(folder, blocks()))
    mgg("train", folder / "job.toml")
    first(lambda: (folder / "out.h5").write_bytes(b"precious"))
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert outcome.err[1:] == [""] * (comm.size - 1)
    assert outcome.err[0].count("\n") == 1
    assert "out.h5 exists" in outcome.err[0]
    assert "--force" in outcome.err[0]
    assert (folder / "out.h5").read_bytes() == b"precious"
    comm.Barrier()
    assert mgg("predict", folder / "runs", "-o", folder / "out.h5", "--force").codes == {0}
    with h5py.File(folder / "out.h5") as file:
        assert len(file["class"]) == 150


@pytest.mark.parametrize("output", ["absent/out.h5", "g.h5/out.h5", "runs"])
def test_predict_refuses_what_it_cannot_write(folder, first, mgg, output):
    first(lambda: write_job(folder, blocks()))
    mgg("train", folder / "job.toml")
    before = files(folder)
    outcome = mgg("predict", folder / "runs", "-o", folder / output, "--force")
    assert outcome.codes == {2}
    assert "".join(outcome.err).count("\n") == 1
    assert files(folder) == before


def test_predict_refuses_a_run_without_weights_and_a_folder_without_a_run(folder, first, mgg):
    first(lambda: write_job(folder, blocks()))
    outcome = mgg("predict", folder, "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert "holds no run (job.toml is missing)" not in "".join(outcome.err[1:])
    mgg("train", folder / "job.toml")
    first((folder / "runs" / "001" / "checkpoints" / "model.safetensors").unlink)
    outcome = mgg("predict", folder / "runs", "-o", folder / "out.h5")
    assert outcome.codes == {2}
    assert "no weights; the run did not finish" in outcome.err[0]
    assert not (folder / "out.h5").exists()
