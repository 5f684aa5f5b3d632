"""benchmarks/programs.py: libraries compute the formulas of programs, and each case has its rows."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import peers
import pytest
import torch
from jobs import clean_environment
from peers.programs import Task

from mgg_hpc.data import generate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "programs.py"

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Sparse")]


@pytest.mark.parametrize("program", ["gated", "gated-max", "typed"])
@pytest.mark.parametrize(("library", "forms"), [("mgg", 2), ("pyg", 3)])
def test_a_step_is_the_formula(library, forms, program, tmp_path, monkeypatch):
    module = importlib.import_module(f"peers.programs_{library}")
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
    assert len(runs) == forms + (library == "pyg" and program == "typed")
    for run in [*runs.values()] * 2:  # gradients of a step are not added to those of the last one
        torch.testing.assert_close(run()[1]().double().view(-1, 5), expected, rtol=1e-3, atol=1e-4)


REFUSED = "programs.py: error: --peers numpy: 'numpy' is not one of dgl, pyg\n"


@pytest.mark.parametrize(
    ("words", "variants", "said"),
    [
        ("rmat:6:4 --programs=gated --width=16 --peers=none", ["mgg", "mgg edge tensors"], ""),
        ("--density=100 --width=4 --peers=torch", ["mgg", "torch"] * 7, ""),
        ("--peers=numpy", [], REFUSED),
    ],
)
def test_each_case_has_its_rows_and_bad_input_is_one_line(tmp_path, words, variants, said):
    words = f"{words} --turns=1 --threads=1 --peers-env={sys.prefix} -o {tmp_path}/p.json -o {tmp_path}/p.svg"
    command = [sys.executable, SCRIPT, *words.split()]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2 if said else 0, said)
    rows = json.loads((tmp_path / "p.json").read_text())["rows"] if variants else []
    assert [row["variant"] for row in rows] == variants
    assert all(row["median_ms"] > 0 and row.get("memory_mb", 0) >= 0 for row in rows)
