"""Tables of `mgg model` and `mgg train --profile`: each number stands under its label."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from command import tables

from mgg_hpc.tools import estimate
from mgg_hpc.training.profile import profiler


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    return partial(tables, capsys)


def test_predictions(printed):
    def transfer(at: int) -> dict:
        sizes = {"rows": at + 1, "bytes": at + 2, "most_bytes": at + 3, "messages": at + 4}
        return sizes | {"aggregation_ms": [at, 0.25], "epoch_ms": at + 0.75}

    def job(ranks: int, chosen: list[str]) -> dict:
        transfers = {name: transfer(at + ranks) for name, at in (("direct", 10), ("halo", 20))}
        edges = {"max": 3 * ranks, "mean": 2 * ranks}
        return {"ranks": ranks, "edges": edges, "transfers": transfers, "chosen": chosen, "epoch_ms": 99.5}

    document = {
        "graph": {"name": "g", "nodes": 1234, "edges": 5678},
        "model": {"name": "gcn", "layers": 4, "hidden": 32},
        "system": "s",
        "jobs": [job(2, ["halo", "halo"]), job(300, ["direct", "halo"])],
        "basis": ["a basis"],
    }
    estimate.show(document)
    rows, lines = printed()
    assert rows == [
        ["ranks", "balance", "transfer", "rows", "bytes", "most", "messages", "sums ms", "epoch ms"],
        ["2", "1.50", "direct", "13", "14 B", "15 B", "16", "12.25", "12.75"],
        ["", "", "halo*", "23", "24 B", "25 B", "26", "22.25", "22.75"],
        ["300", "1.50", "direct", "311", "312 B", "313 B", "314", "310.25", "310.75"],
        ["", "", "halo", "321", "322 B", "323 B", "324", "320.25", "320.75"],
        ["", "", "direct, halo*", "", "", "", "", "", "99.50"],
    ]
    about = "gcn (4 layers, 32 hidden) on g (1,234 nodes, 5,678 edges), s: one training epoch"
    assert about in " ".join(lines) and lines[-1] == "a basis"


def test_a_profile(printed):
    times = {"both_ms": 8.5, "sums_ms": 9.5, "transfer_ms": 10.5, "hidden_share": 0.11}
    summary = {
        "epochs": [4, 5, 6],
        "ranks": 2,
        "without_graphs": False,
        "spans": [
            {"span": ["epoch"], "calls": 1.0, "host_ms": 2.5, "gpu_ms": 3.5},
            {"span": ["epoch", "step"], "calls": 4.0, "host_ms": 5.5, "gpu_ms": 6.5},
        ],
        "exchanges": [
            {"layer": 1, "direction": "forward", "transfer": "halo", "width": 7} | times,
            {"layer": 2, "direction": "backward", "transfer": "get", "width": 12}
            | {"unknown": "no row is remote"},
        ],
        "waits": [{"rank": 13, "span": ["epoch", "step", "here"], "call": "cudaX", "calls": 14.0}],
    }
    profiler.print_summary(summary, Path("run/profile/summary.json"), on_gpus=True)
    rows, lines = printed()
    assert rows == [
        ["span", "calls", "host ms", "GPU ms"],
        ["epoch", "1", "2.500", "3.500"],
        ["step", "4", "5.500", "6.500"],
        ["aggregation", "transfer", "width", "both", "sums alone", "transfer alone", "hidden"],
        ["layer 1 forward", "halo", "7", "8.500", "9.500", "10.500", "0.11"],
        ["layer 2 backward", "get", "12", "-", "-", "-", "not known"],
    ]
    said = " ".join(lines)
    assert "an epoch: mean of epochs 4 to 6 slowest of 2 ranks" in said  # a comma ends the first line
    assert "layer 2 backward: not known, no row is remote" in said
    assert "rank 13 waits within epoch / step / here: cudaX, 14 an epoch" in said
    assert "traces and their summary: run/profile" in said
