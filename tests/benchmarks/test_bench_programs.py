"""The benchmark of programs: its matrices, what it compares, its tables, and a run of all parts on a small graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import clean_environment
from ngra import density, fused
from ngra.parts import PARTS

from mgg_hpc.data import generate, writer
from mgg_hpc.tools.bench.baselines.programs import ours
from mgg_hpc.tools.bench.harness import graphs, libraries

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_edges(case: fused.Case) -> dict[str, np.ndarray]:
    """What a step of a case returns: float64 NumPy, edge by edge."""
    graph, of = case.graph, case.inputs
    x, g = (np.load(of[name]).astype(np.float64) for name in ("x", "gradient"))
    weights = {name: value.astype(np.float64) for name, value in np.load(of["weights"]).items()}
    u, v = graph.indices, np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    out, of_x = np.zeros_like(x), np.zeros_like(x)
    if case.program == "typed":
        matrix = weights["matrix"][np.load(of["types"])]
        np.add.at(out, v, np.einsum("eij,ej->ei", matrix, x[u]))
        np.add.at(of_x, u, np.einsum("eij,ei->ej", matrix, g[v]))
        of_matrix = np.zeros_like(weights["matrix"])
        np.add.at(of_matrix, np.load(of["types"]), np.einsum("ei,ej->eij", g[v], x[u]))
        return {"outputs": out.ravel(), "rows": of_x.ravel(), "weights": of_matrix.ravel()}
    far, near = weights["far"], weights["near"]
    gate = sigmoid(x[u] @ far.T + x[v] @ near.T)
    message, of_message = gate * x[u], g[v]
    if case.program == "gated":
        np.add.at(out, v, message)
    else:
        out[:] = -np.inf
        np.maximum.at(out, v, message)
        out[np.diff(graph.indptr) == 0] = 0
        of_message = of_message * (message == out[v])
    of_sum = of_message * x[u] * gate * (1 - gate)
    np.add.at(of_x, u, of_message * gate + of_sum @ far)
    np.add.at(of_x, v, of_sum @ near)
    of_weights = [of_sum.T @ x[u], of_sum.T @ x[v]]
    return {"outputs": out.ravel(), "rows": of_x.ravel(), "weights": np.concatenate(of_weights).ravel()}


@pytest.mark.parametrize("program", fused.PROGRAMS)
def test_a_step_returns_outputs_and_gradients_of_the_formula(program, tmp_path):
    case = fused.case_of(generate.rmat(5, 4, seed=3), program, 5, tmp_path)
    expected = by_edges(case)
    ours.set_threads(1)
    runs = ours.propagate(**case.inputs)
    assert list(runs) == [fused.FUSED, fused.TENSORS]
    for run in runs.values():
        for _ in range(2):  # gradients of a step are not added to those of the last one
            seconds, values = run()
        assert seconds > 0
        assert fused.differences(expected, case.parts(values().numpy())) < 1e-5


@pytest.mark.parametrize(("nodes", "percent"), [(1000, 0.01), (300, 3), (40, 100)])
def test_a_matrix_has_its_density_and_no_cell_twice(nodes, percent):
    graph = density.drawn(nodes, percent)
    expected = nodes * nodes * percent / 100
    assert abs(graph.edges - expected) <= 5 * np.sqrt(expected * (1 - percent / 100))
    targets = np.repeat(np.arange(nodes), np.diff(graph.indptr))
    assert len(np.unique(targets * nodes + graph.indices)) == graph.edges
    assert graph.indices.max() < nodes and graph.weight is graph.edge["w"]


def test_a_product_is_the_matrix_times_the_rows(tmp_path):
    graph = density.drawn(60, 10)
    x = np.random.default_rng(2).standard_normal((60, 3)).astype(np.float32)
    writer.write(tmp_path / "g.h5", graph)
    ours.set_threads(1)
    run = ours.product(file=str(tmp_path / "g.h5"), x=graphs.save(tmp_path / "x.npy", x))["mgg"]
    dense = np.zeros((60, 60))
    dense[np.repeat(np.arange(60), np.diff(graph.indptr)), graph.indices] = graph.weight
    np.testing.assert_allclose(run().numpy(), dense @ x, rtol=1e-4, atol=1e-5)


def test_each_library_takes_part_by_its_fastest_run():
    mgg, dgl = SimpleNamespace(name="mgg"), SimpleNamespace(name="dgl")
    runs = {"mgg": mgg, "dgl 0": dgl, "dgl 2": dgl}
    assert list(libraries.fastest(runs, {"mgg": 5.0, "dgl 0": 9.0, "dgl 2": 7.0})) == ["mgg", "dgl 2"]
    assert list(libraries.fastest(runs, {"mgg": 5.0, "dgl 0": 6.0, "dgl 2": 7.0})) == ["mgg", "dgl 0"]


def test_results_that_are_others_are_refused():
    ours_were = {"outputs": np.array([3.0, 4.0]), "rows": np.array([1.0])}
    apart = fused.differences(ours_were, {"outputs": np.array([3.0, 4.5]), "rows": np.array([1.05])})
    assert apart == pytest.approx(0.1)
    fused.check({"dgl": apart}, 0.2)
    for found in (apart, np.nan):
        with pytest.raises(RuntimeError, match="pyg's results differ from ours"):
            fused.check({"dgl": 0.0, "pyg": found}, 0.05)


def test_the_tables_have_times_and_memory_over_ours():
    spread = {
        name: dict.fromkeys(("min", "median", "max"), ms) for name, ms in (("mgg", 2.0), ("dgl int32", 9.0))
    }
    times = {"ms": spread, "speedup": {"dgl int32": dict.fromkeys(("min", "median", "max"), 4.5)}}
    row = {"graph": "g", "nodes": 3, "edges": 1000, "program": "gated", "width": 10, **times}
    row |= {"edge_tensor_bytes": 40_000, "peak_bytes": {"mgg": 10_000, "dgl int32": 120_000}}
    _, peer = fused.sheet([row]).rows
    assert peer == ["g, gated, dgl int32", "9.0 (9.0 .. 9.0)", "4.50", "0", "3.00", "12.0"]
    (first, _) = density.sheet([row | {"percent": 0.3}]).rows
    assert first[0] == "0.3 %, mgg" and first[3:] == ["2000.00", "0.0"]
    assert density.gflops(row, "mgg") == pytest.approx(1000 * 10 * 2 / 2e-3 / 1e9)


def test_all_parts_run(tmp_path):
    output = tmp_path / "programs.json"
    words = ["--parts", ",".join(PARTS), "--graphs=rmat:8:4", "--programs=gated", "--width=16"]
    words += ["--nodes=100", "--ranks=2", "--turns=1", "--peers=torch"]
    words += ["--json", output, "--plot", tmp_path / "p.svg"]
    command = [sys.executable, ROOT / "benchmarks" / "programs.py", *words]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(output.read_text())
    (row,) = found["fused"]
    assert row["ms"].keys() == row["peak_bytes"].keys() == {fused.FUSED, fused.TENSORS}
    assert row["edge_tensor_bytes"] == row["edges"] * 16 * 4 and min(row["peak_bytes"].values()) > 0
    assert [each["percent"] for each in found["density"]] == list(density.PERCENTS)
    assert all(each["ms"].keys() == {"mgg", "torch"} for each in found["density"])
    ways = [(row["program"], list(row["ms"])) for row in found["schedules"]]
    assert ways == [(program, ["accumulator", "stage", "destination"]) for program in ("gcn", "gated-gcn")]
    for row in found["schedules"]:  # one chunk holds all sources
        assert [row["moved"][way]["sums"] > 0 for way in row["ms"]] == [False, True, False]
    assert [list(row["ms"]) for row in found["overlap"]] == [["ahead", "when wanted"]] * 2
    (row,) = found["ring"]
    assert row["ranks"] == 2 and row["loaded"]["each for itself"] == 2 * row["loaded"]["chains"]
    assert all("</svg>" in (tmp_path / f"p-{part}.svg").read_text() for part in PARTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--graphs karate", "karate/karate.npz: no such graph; name the folder of graphs in MGG_DATA"),
        ("--parts fused,ring-road", "--parts fused,ring-road: 'ring-road' is not one of fused, density"),
        ("--peers numpy", "--peers numpy: 'numpy' is not one of none, dgl"),
        ("--ranks 2;3", "--ranks 2;3: '2;3'; expected numbers of 1 .. 65536"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, said):
    command = [sys.executable, ROOT / "benchmarks" / "programs.py", *words.split()]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("programs: error: ")
    assert said in done.stderr and done.stderr.count("\n") == 1
