"""benchmarks/epoch.py: libraries train as we do from the same weights, and one that does not is left out and named."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import workers

from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.tools.bench.epoch import MODELS, Shape, labelled

pytestmark = pytest.mark.long


@pytest.mark.filterwarnings("ignore")  # sparse CSR is in beta, and PyG asks for torch.jit
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["pyg", "pyg-csr"])
def test_pyg_trains_as_we_do_from_the_same_weights(tmp_path, monkeypatch, rng, model, name):
    import epoch
    import peers

    one, other, loops = rng.integers(50, size=150), rng.integers(50, 55, size=150), np.arange(5)
    both = np.concatenate([one, other, loops]), np.concatenate([other, one, loops])  # edges come twice, too
    graph = Graph("drawn", *csr_from_edges(*both, 60)[:2], directed=False)
    monkeypatch.setattr(peers, "THREADS", torch.get_num_threads())
    shape = Shape.of(model, features=12, hidden=6, classes=4, dropout=0.0)
    inputs = epoch.inputs_of(labelled(graph, shape), shape, tmp_path)
    mine = importlib.import_module("peers.mgg").epoch(**inputs)
    monkeypatch.setattr(peers, "NAME", name)
    theirs = importlib.import_module("peers.pyg").epoch(**inputs)
    for _ in range(4):  # before training, and of three epochs
        assert theirs[name]() == pytest.approx(mine["mgg"](), rel=1e-5)


def test_a_row_for_each_model_and_library(measured):
    words = "uniform:6:4 --features=8 --classes=4 --models=gcn,sage --peers=dgl,pyg --turns=2"
    found = measured("epoch", *words.split(), f"--peers-env={sys.prefix}")
    cases = [(row["model"], row["variant"]) for row in found["rows"] if row["variant"] != "dgl"]
    assert cases == [(m, v) for m in ("GCN 8 -> 16 -> 4", "SAGE 8 -> 128 -> 4") for v in ("mgg", "pyg")]
    for row in found["rows"]:
        assert row["loss"] == pytest.approx(math.log(4), rel=0.5) and row["peak_mb"] > 50


def test_losses_decide_who_takes_part():
    import epoch

    worker = SimpleNamespace(name="pyg", ask=lambda *_, **__: {}, result=lambda *_: np.array(1.01))
    said = "with the same weights its loss is 1.01, and mgg's 1"
    assert epoch.accepted({"mgg": 1.0}, Path(), worker, "pyg") == said
    assert epoch.accepted({"mgg": 1.01}, Path(), worker, "pyg") == ""
    workers.check_losses({"mgg": 1.0, "dgl": 1.009}, 0.01)
    with pytest.raises(AssertionError, match=r"pyg's loss is 1\.02, and mgg's 1"):
        workers.check_losses({"mgg": 1.0, "pyg": 1.02}, 0.01)
