"""benchmarks/ beside other libraries: they compute what we compute, and one that does not is left out and named."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import aggregate
import epoch
import numpy as np
import peers
import pytest
import reference
import torch
import traversal
from harness import graphs, workers
from harness.shapes import MODELS, Shape, labelled
from peers import nets, programs, pyg

from mgg_hpc.data import generate
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.runtime.sampler import Sampler

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
]  # sparse CSR is in beta; PyG asks for torch.jit
HARNESS = Path(workers.__file__).parent


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(peers, "THREADS", torch.get_num_threads())


# ---- sums


def test_libraries_take_turns_and_orders_and_types_are_rows(measured):
    words = ("rmat:6:4", "--widths=5,16", "--orders=none,degree", "--dtypes=float32,bfloat16", "--weighted")
    words += ("--peers=torch,pyg,scipy", f"--peers-env={sys.prefix}", "--turns=2")
    found = measured("aggregate", *words)
    cases: dict[tuple, list[dict]] = {}
    for row in found["rows"]:
        cases.setdefault((row["order"], row["dtype"], row["width"]), []).append(row)
    assert set(cases) == {
        (o, d, w) for o in ("none", "degree") for d in ("float32", "bfloat16") for w in (5, 16)
    }
    for (_, dtype, _), rows in cases.items():
        names = [row["variant"] for row in rows]
        assert names[:2] == ["gather floor", "mgg"] and set(names[2:]) <= {"torch", "pyg", "scipy"}
        assert dtype != "float32" or "scipy" in names
        assert rows[1]["mgg_speedup"] == 1 and rows[0]["relative_time"] == 1
    assert "bfloat16: scipy is left out: TypeError: float32 rows only" in found["printed"]


def test_the_last_lines_say_what_all_cases_say():
    cases = {("none", "float32"): (6, 3), ("degree", "float32"): (8, 2), ("none", "bfloat16"): (8, 2)}
    rows = []
    for (order, dtype), (theirs, ours) in cases.items():
        case = {"graph": "g", "order": order, "dtype": dtype, "width": 8}
        rows.append({**case, "variant": "dgl", "median_ms": theirs, "mgg_speedup": theirs / ours})
        rows.append({**case, "variant": "mgg", "median_ms": ours, "mgg_speedup": 1.0})
    assert aggregate.summary([row for row in rows if row["dtype"] == "float32"]) == [
        "mgg, times as fast as dgl: geometric mean 2.83, 2.00 to 4.00",
        "mgg in its fastest order, as dgl on nodes as they were: geometric mean 3.00, 3.00 to 3.00",
        "mgg in its fastest order, as mgg on nodes as they were: geometric mean 1.50, 1.50 to 1.50",
    ]
    *_, last = aggregate.summary([row for row in rows if row["order"] == "none"])
    assert last == "bfloat16 rows, times as fast as float32: geometric mean 1.50, 1.50 to 1.50"


FAKE = """
import numpy as np
ABOUT = "fake"
def aggregate(indptr, indices, weight, x, dtype):
    x = np.load(x)
    def made(x):
        {body}
    return {{"dgl": made(x)}}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return lambda: x + 1", "sums differ"),
        ("raise ValueError('no kernel')", "dgl is left out: ValueError: no kernel"),
        ("import os; os._exit(3)", "dgl ended with exit code 3 while it was asked to prepare"),
    ],
)
def test_a_library_that_errs_is_named(ran, tmp_path, body, said):
    """An environment whose Python runs another module in DGL's place."""
    binary = tmp_path / "env" / "bin" / "python"
    binary.parent.mkdir(parents=True)
    (binary.parent / "fake.py").write_text(FAKE.format(body=body))
    binary.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = [{str(HARNESS)!r}, {str(binary.parent)!r}]\n"
        "import worker, fake\nsys.modules['peers.dgl'] = fake\nworker.main(*sys.argv[2:])\n"
    )
    binary.chmod(0o755)
    words = ("rmat:5:4", "--widths=4", "--peers=dgl", "--peers-env=env", "--turns=2", "-o", "s.csv")
    done = ran("aggregate", *words)
    assert said in " ".join((done.stdout + done.stderr).split())
    assert done.returncode == (2 if "exit code" in said else 0)
    if done.returncode == 0:
        lines = (tmp_path / "s.csv").read_text().splitlines()
        assert len(lines) == 3 and not any(",dgl," in line for line in lines)


# ---- epochs


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["pyg", "pyg-csr"])
def test_pyg_trains_as_we_do_from_the_same_weights(tmp_path, monkeypatch, rng, model, name):
    one, other, loops = rng.integers(50, size=150), rng.integers(50, 55, size=150), np.arange(5)
    both = np.concatenate([one, other, loops]), np.concatenate([other, one, loops])  # edges come twice, too
    graph = Graph("drawn", *csr_from_edges(*both, 60)[:2], directed=False)
    shape = Shape.of(model, features=12, hidden=6, classes=4, dropout=0.0)
    inputs = epoch.inputs_of(labelled(graph, shape), shape, tmp_path)
    mine = importlib.import_module("peers.mgg").epoch(**inputs)
    monkeypatch.setattr(peers, "NAME", name)
    theirs = pyg.epoch(**inputs)
    for _ in range(4):  # before training, and of three epochs
        assert theirs[name]() == pytest.approx(mine["mgg"](), rel=1e-5)


def test_losses_decide_who_takes_part():
    worker = SimpleNamespace(name="pyg", ask=lambda *_, **__: {}, result=lambda *_: np.array(1.01))
    said = "with the same weights its loss is 1.01, and mgg's 1"
    assert epoch.accepted({"mgg": 1.0}, Path(), worker, "pyg") == said
    assert epoch.accepted({"mgg": 1.01}, Path(), worker, "pyg") == ""
    workers.check_losses({"mgg": 1.0, "dgl": 1.009}, 0.01)
    with pytest.raises(AssertionError, match=r"pyg's loss is 1\.02, and mgg's 1"):
        workers.check_losses({"mgg": 1.0, "pyg": 1.02}, 0.01)


# ---- sampled batches


def test_all_parts_count_all_edges(measured):
    words = "rmat:8:4 --fanouts=5000,5000 --batch-size=256 --batches=1 --turns=1 --peers=none"
    rows = measured("sampling", *words.split())["rows"]
    names = {"sampler": ["mgg", "mgg loader"], "train": ["mgg"]}
    assert [(row["part"], row["variant"]) for row in rows] == [(p, v) for p in names for v in names[p]]
    graph = graphs.read("rmat:8:4")
    for row in rows:
        assert row["batch_edges"] == 2 * graph.edges
        assert row["edge_ns"] == pytest.approx(row["median_ms"] * 1e6 / row["batch_edges"], rel=0.01)
        if row["part"] == "train":
            assert 2 < row["loss"] < 5  # 32 classes, little trained
        else:
            assert row["batch_rows"] == graph.nodes


@pytest.mark.parametrize("layer", [pyg.over_edge_list, pyg.over_csr])
def test_layers_of_pyg_are_those_of_the_whole_graph(rng, layer):
    """With all edges of a batch, in the order in which PyG draws them: those of a hop are of rows that are met anew."""
    graph, seeds = graphs.read("rmat:6:4"), np.arange(0, 64, 8)
    drawn = Sampler(graph.indptr, graph.indices).sample(seeds, [-1, -1], seed=0, step=0)
    first, second = drawn.hops
    met = [len(seeds), len(second.indptr) - 1, len(drawn.nodes)]
    batch = SimpleNamespace(
        num_sampled_nodes=np.diff(met, prepend=0).tolist(),
        num_sampled_edges=[len(first.indices), len(second.indices) - len(first.indices)],
        edge_index=torch.from_numpy(np.stack(reference.edge_list(second.indptr, second.indices))),
    )
    one, two = pyg.SAGEConv(5, 4), pyg.SAGEConv(4, 3)
    x = torch.from_numpy(rng.standard_normal((graph.nodes, 5), dtype=np.float32))
    edges = torch.from_numpy(np.stack(reference.edge_list(graph.indptr, graph.indices)))
    net = nets.Net([one, two], layer, lambda h, i, _: h.relu() if i else h)
    torch.testing.assert_close(net(x[drawn.nodes], batch), two(one(x, edges).relu(), edges)[seeds])


# ---- programs


@pytest.mark.parametrize("program", ["gated", "gated-max", "typed"])
@pytest.mark.parametrize(("library", "forms"), [("mgg", 2), ("pyg", 3)])
def test_a_step_is_the_formula(library, forms, program, tmp_path):
    graph = generate.rmat(5, 4, seed=3)
    script = runpy.run_path(str(HARNESS.parent / "programs.py"))  # tests/ has a module of this name
    files = script["write_operands"](graph, program, 5, tmp_path)
    x, weights = programs.Task(program, **files).leaves()
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
    runs = importlib.import_module(f"peers.{library}").propagate(program=program, **files)
    assert len(runs) == forms
    for run in [*runs.values()] * 2:  # gradients of a step are not added to those of the last one
        torch.testing.assert_close(run()[1]().double().view(-1, 5), expected, rtol=1e-3, atol=1e-4)


# ---- traversals


def test_results_that_differ_are_named():
    ours = np.array([0.0, 1.0, -1.0])
    for part, theirs, apart in (
        ("bfs", 0, 0),
        ("bfs", 1, 1),
        ("pagerank", 1e-4, 0),
        ("pagerank", 3e-3, 0.003),
    ):
        said = f"its result differs from ours, by {apart:g} in all" if apart else ""
        assert traversal.differing(part, ours, ours + theirs * np.eye(3)[2]) == said


def test_all_traversals_run(measured, tmp_path):
    """Beside SciPy, whose results are ours, and programs with the names of GAPBS's."""
    printed = "\n".join(f"Trial Time:     {seconds}" for seconds in (0.003, 0.001, 0.002))
    for name in ("bfs", "sssp", "cc", "pr"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$0 $*" >>"{tmp_path}/asked"\necho "{printed}"\n')
        (tmp_path / name).chmod(0o755)
    words = ["rmat:7:8", "rmat:6", "--sources=3", "--turns=1", "--peers=scipy,gapbs"]
    found = measured("traversal", *words, f"--peers-env={sys.prefix}", MGG_GAPBS=str(tmp_path))
    for graph in ("rmat7", "rmat6"):
        for part in traversal.PARTS:
            here = [row for row in found["rows"] if (row["graph"], row["part"]) == (graph, part)]
            rows = {row["variant"]: row for row in here}
            assert rows.keys() == {"mgg", "gapbs"} | ({"scipy"} if part != "pagerank" else set())
            assert rows["gapbs"]["median_ms"] == 2  # of its own clock, for each source
            assert rows["mgg"]["relative_time"] == 1 and rows["mgg"]["min_ms"] > 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert any("/sssp -n 3 -f " in line and line.endswith(("-d 1", "-d 64")) for line in asked)
    assert any("/pr -n 3 -f " in line and line.endswith(".sg -i 1000 -t 0.0001") for line in asked)
