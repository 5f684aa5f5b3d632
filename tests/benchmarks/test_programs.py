"""benchmarks/programs.py: libraries compute the formulas of programs, and each case has its rows."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

import numpy as np
import peers
import pytest
import torch
from peers.programs import Task

from mgg_hpc.data import generate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "programs.py"

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Sparse")]


@pytest.mark.parametrize("program", ["gated", "gated-max", "typed"])
@pytest.mark.parametrize(("library", "forms"), [("mgg", 2), ("pyg", 3)])
def test_a_step_is_the_formula(library, forms, program, tmp_path, monkeypatch):
    module = importlib.import_module(f"peers.{library}")
    monkeypatch.setattr(peers, "THREADS", 1)
    graph = generate.rmat(5, 4, seed=3)
    files = runpy.run_path(str(SCRIPT))["write_operands"](graph, program, 5, tmp_path)
    x, weights = Task(program, **files).leaves()
    x, *w = (leaf.detach().double().requires_grad_() for leaf in (x, *weights.values()))
    u, v = graph.indices, np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    if program == "typed":
        message = torch.einsum("eij,ej->ei", w[0][np.load(files["types"])], x[u])
    else:
        message = torch.sigmoid(x[u] @ w[0].T + x[v] @ w[1].T) * x[u]
    of_rows = [message[v == row] for row in range(graph.nodes)]
    sums = [each.amax(0) if program == "gated-max" and len(each) else each.sum(0) for each in of_rows]
    torch.stack(sums).backward(torch.from_numpy(np.load(files["gradient"])).double())
    expected = torch.cat([torch.stack(sums).detach(), x.grad, *(leaf.grad.view(-1, 5) for leaf in w)])
    runs = module.propagate(program=program, **files)
    assert len(runs) == forms
    for run in [*runs.values()] * 2:  # gradients of a step are not added to those of the last one
        torch.testing.assert_close(run()[1]().double().view(-1, 5), expected, rtol=1e-3, atol=1e-4)


def test_each_case_has_its_rows(measured):
    words = "rmat:6:4 --programs=gated --width=16 --peers=none --turns=1 --threads=1"
    rows = measured("programs", *words.split())["rows"]
    assert [row["variant"] for row in rows] == ["mgg", "mgg edge tensors"]
    assert all(row["median_ms"] > 0 and row["memory_mb"] >= 0 for row in rows)
