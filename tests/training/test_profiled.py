"""`mgg train --profile`: which epochs, what is written and said, and that the run itself is the same."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from jobs import blocks, files, python, run, write_job
from tiers import long_except

from mgg_hpc.__main__ import main
from mgg_hpc.training.profile import profiler

SPANS = {"step", "evaluate", "layer 1 forward: aggregate", "layer 2 backward: aggregate", "loss", "optimiser"}


def losses(folder):
    with (folder / "metrics.csv").open() as file:
        return [(row["epoch"], row["loss"], row["val_loss"]) for row in csv.DictReader(file)]


def traced(path):
    """The names of the spans of a trace, and the events."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "user_annotation"}, events


@pytest.mark.long
@pytest.mark.parametrize("transfer", long_except(["direct", "halo"], "halo"))
def test_two_ranks_write_their_traces_and_train_as_ever(tmp_path, monkeypatch, transfer):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    write_job(tmp_path, blocks(600), train={"epochs": 8}, plan={"transfer": transfer}, run={"folder": "runs"})
    said = {}
    for more in ([], ["--profile"], ["--profile", "--dry-run"]):
        done = run("launch", "-n", "2", "train", "job.toml", *more, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        said[" ".join(more)] = done.stdout
    plain, profiled = tmp_path / "runs" / "001", tmp_path / "runs" / "002"
    assert losses(profiled) == losses(plain) and len(losses(plain)) == 8
    assert not (tmp_path / "runs" / "003").exists()
    assert {path.name for path in plain.iterdir()} == {path.name for path in profiled.iterdir()} - {"profile"}
    folder = profiled / "profile"
    assert {path.name for path in folder.iterdir()} == {"rank-0.json.gz", "rank-1.json.gz", "summary.json"}
    assert files(tmp_path / "tmp") == {}

    processes = set()
    for rank in range(2):
        names, events = traced(folder / f"rank-{rank}.json.gz")
        assert {name for name in names if name.startswith("epoch")} == {"epoch 4", "epoch 5", "epoch 6"}
        assert names >= SPANS
        processes |= {event["pid"] for event in events if event.get("cat") == "user_annotation"}
    assert len(processes) == 2

    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["format"], summary["version"], summary["epochs"]) == ("mgg-profile", 1, [4, 5, 6])
    assert (summary["ranks"], summary["backend"], summary["waits"]) == (2, "shm", [])
    assert {row["span"][-1] for row in summary["spans"]} >= SPANS
    assert all(row["calls"] == 1 and row["host_ms"] > 0 == row["gpu_ms"] for row in summary["spans"])
    # 12 features to 16 hidden: the first layer aggregates its input, and nothing backward.
    exchanges = [(row["layer"], row["direction"], row["width"]) for row in summary["exchanges"]]
    assert exchanges == [(1, "forward", 12), (2, "forward", 4), (2, "backward", 4)]
    for row in summary["exchanges"]:
        sums, moves, both = row["sums_ms"], row["transfer_ms"], row["both_ms"]
        assert row["transfer"] == transfer and min(sums, moves, both) > 0
        assert row["hidden_share"] == pytest.approx((sums + moves - both) / min(sums, moves))
    text = said["--profile"]
    assert "mean of epochs 4 to 6, slowest of 2 ranks" in text and "layer 2 backward: aggregate" in text
    assert "what is hidden of the transfer" in text and "GPU ms" not in text
    assert "\ntraces and their summary: runs/002/profile\n" in text
    assert "profile" not in said[""]


SMALL = {"epochs": 50, "learning_rate": 1e-30}
SHORT = {
    "one": ({"epochs": 1}, [1], "epoch 1 of a short run also finds memory"),
    "two": ({"epochs": 2}, [2], "epoch 2 of a short run also finds memory"),
    "four": ({"epochs": 4}, [4], ""),
    "ten": ({"epochs": 10}, [4, 5, 6], ""),
    # Steps too small to change a float32 weight: epoch 1 stays the best.
    "patience": (SMALL | {"patience": 2}, [], "patience ended the run before epoch 4: no epoch was profiled"),
    "patience within": (SMALL | {"patience": 4}, [4, 5], ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SHORT)
def test_which_epochs_of_a_run(tmp_path, capsys, case):
    train, epochs, note = SHORT[case]
    job = write_job(tmp_path, blocks(), train=train)
    assert main(["train", str(job), "--profile"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and note in out and ("short run" in out) == ("short run" in note)
    folder = tmp_path / "runs" / "001" / "profile"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epochs"] == epochs
    assert bool(summary["spans"]) == bool(epochs)
    assert all(row["unknown"] == "no row is remote" for row in summary["exchanges"])
    assert " hidden ┃" not in out
    if epochs:
        names, _ = traced(folder / "rank-0.json.gz")
        assert {name for name in names if name.startswith("epoch")} == {f"epoch {each}" for each in epochs}


FAILS = """
import sys
from mgg_hpc.__main__ import main
from mgg_hpc.training.trainer import Trainer
Trainer.loss = lambda self: float("nan" if self.job.model.draws.epoch == 5 else 1)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_run_that_fails_while_it_is_profiled_ends_as_ever(tmp_path):
    """A process that ended with the profiler at work would crash."""
    job = write_job(tmp_path, blocks(), train={"epochs": 8})
    done = python("-c", FAILS, "train", job, "--profile")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("mgg: error: the loss of epoch 5 is nan")
    assert not (tmp_path / "runs" / "001" / "profile").exists()


LOSS = "rank 1 waits within epoch / step / loss: cudaStreamSynchronize, 2 an epoch"


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([["epoch", "read the loss"]], "no rank's host waits for its GPU within the training step"),
        ([["epoch", "step", "loss"], ["epoch", "read the loss"]], LOSS),
    ],
)
def test_waits_are_said(spans, said):
    found = [{"rank": 1, "span": span, "call": "cudaStreamSynchronize", "calls": 2.0} for span in spans]
    assert profiler.said_of_waits({"waits": found}) == [said]
