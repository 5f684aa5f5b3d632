"""`mgg bench aggregate --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import sparse

from mgg_hpc.cli.bench import bench as verbs
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.transfers.halo import Halo
from mgg_hpc.tools.bench.aggregate import cusparse, gpu_alone, gpu_baselines, summary
from mgg_hpc.tools.bench.aggregate import gpu as aggregate_gpu
from mgg_hpc.tools.bench.harness import gpu, graphs, sums

pytestmark = pytest.mark.long

SHIM, ROOT = Path(__file__).parents[1], Path(__file__).parents[3]


def problem_of(device, graph, dtype, width, weight=None):
    return gpu.problem_of(device, graph, dtype, width, weight, gpu.edges_of(graph))


@pytest.fixture
def fake(shim, tmp_path, monkeypatch):
    """A libcusparse that counts on the host what it is asked."""
    library = tmp_path / "libcusparse.so"
    include = f"-I{ROOT / 'cuda' / 'include'}"
    source = SHIM / "src" / "fake_cusparse.cpp"
    command = [shim.compiler, "-std=c++17", "-shared", "-fPIC", include, source, "-o", library]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    monkeypatch.setattr(cusparse, "library", lambda: loaded)
    return loaded


def measured(device, problems, baselines=(), transfers=("direct",), turns=1):
    """Rows and notes of problems that take turns."""
    contest = aggregate_gpu.Comparison({"copy_gb_per_s": 1.0}, device, baselines, transfers, turns)
    return contest.measure_types(problems)


@pytest.fixture
def problem(device):
    """A small graph, and rows of 3 values."""
    return problem_of(device, graphs.read("rmat:5:4"), "float32", 3)


def test_a_whole_run(bench, fake, tmp_path):
    types = ("--widths=5,64", "--dtypes=float32,bfloat16")
    found = bench("aggregate", "rmat:6:4", "uniform:5", *types, "--peers=cusparse,torch,cupy", "--turns=2")
    assert [(c["graph"], c["dtype"], c["width"]) for c in found["cases"]] == [
        (graph, dtype, width)
        for graph in ("rmat6", "uniform5")
        for dtype in ("float32", "bfloat16")
        for width in (5, 64)
    ]
    for case in found["cases"]:
        # On a CPU torch sums no half rows; CuPy needs a GPU.
        ours = {"mgg", "mgg-get", "mgg-halo"}
        assert set(case["ms"]) == ours | {"cusparse"} | ({"torch"} if case["dtype"] == "float32" else set())
        assert set(case["over_direct"]) == ours - {"mgg"}
        for name, ratio in case["over_direct"].items():
            low, high = (case["ms"][name][end] / case["ms"]["mgg"][end] for end in ("min", "max"))
            assert ratio["min"] <= max(low, high)
            assert ratio["max"] >= min(low, high)
        row = case["width"] * (4 if case["dtype"] == "float32" else 2)
        moved = case["edges"] * (row + 4) + case["nodes"] * (row + 8)
        assert case["compulsory"]["bytes"] == moved
        assert case["gb_per_s"] == pytest.approx(moved / case["ms"]["mgg"]["median"] / 1e6)
        assert case["of_copy"] == pytest.approx(case["gb_per_s"] / found["copy_gb_per_s"])
        assert case["sets"] == gpu.MOST_SETS  # small graphs: as many as there may be
    assert found["device"]["name"] == "shim"
    named = {note.partition(":")[0] for note in found["notes"] if note.startswith("cupy")}
    left = {
        f"cupy is left out of {graph}, {kind}"
        for graph in ("rmat6", "uniform5")
        for kind in ("float32", "bfloat16")
    }
    assert named == left
    over = {case["over_floor"]["median"]: case for case in found["cases"]}
    worst = found["summary"]["over_floor"]["worst"]
    assert worst["times"] == max(over)
    assert all(over[max(over)][key] == worst[key] for key in ("graph", "dtype", "width"))
    assert found["speedup"] == {name: of["mean"] for name, of in found["summary"]["speedup"].items()}
    for word in ("rmat6", "bfloat16 x 64", "gather floor", "over cusparse", "copies", "mgg-halo over mgg"):
        assert word in found["printed"]
    assert "| uniform5 |" in found["markdown"]
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_types_of_rows_take_turns(device, monkeypatch):
    """And each is compared with float32 of its own turn, not by medians."""
    graph, asked = graphs.read("rmat:5:4"), []
    problems = [problem_of(device, graph, dtype, 3) for dtype in ("bfloat16", "float32", "float16")]
    times = iter([8.0, 2.0, 1.0, 4.0, 6.0, 2.0, 6.0, 6.0, 6.0])

    def entry(self, problem):
        def one(name):
            return gpu_baselines.Baseline(name, [(name, problem.format.dtype.name)], lambda: np.zeros(1))

        return [one("mgg"), one("floor 128")], []

    def ms(self, calls):
        ((name, dtype),) = calls
        asked.append((name, dtype))
        return next(times) if name == "mgg" else 1.0

    monkeypatch.setattr(aggregate_gpu.Comparison, "entry_of", entry)
    monkeypatch.setattr(type(device.clock), "ms", ms)
    rows, _ = measured(device, problems, turns=3)
    turn = [(name, dtype) for dtype in ("bfloat16", "float32", "float16") for name in ("mgg", "floor 128")]
    assert asked == 3 * turn
    half, whole, other = rows
    # bfloat16 8, 4, 6; float32 2, 6, 6; float16 1, 2, 6
    assert half["over_float32"]["median"] == 1.0 and other["over_float32"]["median"] == 2.0
    assert "over_float32" not in whole
    named = [{"graph": "rmat5", "order": "none", "weighted": False} | row for row in rows]
    assert summary.summarise(named)["half"][0]["times"] == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_baselines_sum_what_we_sum(rng, device, fake, dtype, weighted):
    graph = graphs.read("rmat:6:4")
    weight = rng.uniform(0.1, 1, graph.edges).astype(np.float32) if weighted else None
    problem = problem_of(device, graph, dtype, 7, weight)
    (row,), notes = measured(device, [problem], ["cusparse", "torch"])
    assert set(row["speedup"]) >= ({"cusparse", "torch"} if dtype == "float32" else {"cusparse"}), notes


def test_a_baseline_with_other_sums_is_left_out_and_named(device, problem, monkeypatch):
    def wrong(problem):
        right = gpu_baselines.torch_(problem)
        return gpu_baselines.Baseline("torch", right.calls, lambda: right.result() + 1)

    monkeypatch.setitem(gpu_baselines.MAKERS, "torch", wrong)
    (row,), notes = measured(device, [problem], ["torch"])
    assert not row["speedup"]
    assert notes == ["torch is left out of rmat5, float32: 96 of its 96 sums differ from ours"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [7, 130])
def test_the_other_kernels_sum_the_same_where_nothing_is_remote(rng, device, monkeypatch, dtype, width):
    """Each by its own kernel; with hubs and weights; and what they sum is what SciPy does."""
    ran = []

    def recorded(owner, name):
        made = getattr(owner, name)

        def call(self, *given, **more):
            ran.append(name)
            return made(self, *given, **more)

        monkeypatch.setattr(owner, name, call)

    recorded(DeviceBackend, "get")
    recorded(Halo, "aggregate")
    graph = graphs.read("rmat:6:64")
    weight = rng.uniform(0.1, 1, graph.edges).astype(np.float32)
    problem = problem_of(device, graph, dtype, width, weight)
    geometry = gpu_alone.geometry_of(device, "get", problem.format)
    assert np.diff(graph.indptr).max() > 2 * geometry.ps * geometry.dist
    runs, expected = aggregate_gpu.own_runs(problem, ["halo", "direct", "get"])
    assert [one.name for one in runs] == ["mgg", "mgg-halo", "mgg-get"]
    sets = len(problem.sources)
    assert ran == ["aggregate"] * sets + ["get"] * sets
    matrix = sparse.csr_matrix((weight.astype(float), graph.indices, graph.indptr), (graph.nodes,) * 2)
    apart = np.abs(matrix @ problem.x.astype(float) - expected.numpy())
    assert (apart <= sums.allowed(graph, problem.x, weight)).all()


def test_other_kernels_that_sum_nothing_are_an_error(device, problem, monkeypatch):
    monkeypatch.setattr(gpu_alone.AloneBackend, "aggregate", lambda *given, **more: None)
    for transfer in ("get", "halo"):
        with pytest.raises(AssertionError, match=f"mgg-{transfer}: 96 sums differ from those of direct"):
            measured(device, [problem], transfers=["direct", transfer])


class EdgeIndex:
    """PyG's, as far as it is used here: from destinations and sources, sorted by destination."""

    def __init__(self, data, *, sparse_size, sort_order):
        assert sort_order == "row"
        assert data.is_contiguous()
        assert (data[0].diff() >= 0).all()
        self.data, self.size, self.filled = data, sparse_size, False

    def fill_cache_(self, no_transpose=False):
        assert no_transpose
        self.filled = True

    def to_sparse_csr(self, value):
        return torch.sparse_coo_tensor(self.data, value, self.size)

    def matmul(self, other, input_value):
        assert self.filled
        return self.to_sparse_csr(input_value).to_dense().to(other.dtype) @ other


class SimpleConv:
    """PyG's: messages of edges [2, E] go from the first row's nodes to the second's."""

    def __init__(self, aggr):
        assert aggr == "sum"

    def __call__(self, x, edge_index, edge_weight=None):
        assert edge_index.dtype == torch.int64
        source, destination = edge_index
        messages = x[source] if edge_weight is None else edge_weight[:, None] * x[source]
        return torch.zeros_like(x).index_add_(0, destination, messages)


@pytest.mark.parametrize("weighted", [False, True])
def test_pyg_both_ways(rng, device, monkeypatch, weighted):
    package, layers = ModuleType("torch_geometric"), ModuleType("torch_geometric.nn")
    package.EdgeIndex, layers.SimpleConv = EdgeIndex, SimpleConv
    monkeypatch.setitem(sys.modules, "torch_geometric", package)
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", layers)
    graph = graphs.read("rmat:6:4")
    weight = rng.uniform(0.1, 1, graph.edges).astype(np.float32) if weighted else None
    problem = problem_of(device, graph, "float32", 7, weight)
    (row,), notes = measured(device, [problem], ["pyg", "pyg-csr"])
    assert set(row["speedup"]) == {"pyg", "pyg-csr"}, notes


def test_baselines_that_are_not_there_or_take_too_much(device, problem, monkeypatch):
    def hungry(problem):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40 GiB")

    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    monkeypatch.setitem(gpu_baselines.MAKERS, "pyg-csr", hungry)
    (row,), notes = measured(device, [problem], ["pyg", "pyg-csr"])
    assert set(row["ms"]) == {"mgg"}
    assert notes[0].startswith("pyg is left out of rmat5, float32: import of torch_geometric")
    assert notes[1] == "pyg-csr is left out of rmat5, float32: CUDA out of memory. Tried to allocate 40 GiB"


def test_a_summary(rng):
    """Worst cells, means, and the gain of half rows follow from drawn times."""

    def spread(value):
        return {"min": value / 2, "median": value, "max": value * 2}

    cases = []
    for graph in ("a", "b"):
        for dtype in ("float32", "bfloat16"):
            for width in (16, 64):
                ours, over, get, baseline = rng.uniform(0.5, 5, 4).tolist()
                case = {"graph": graph, "order": "none", "weighted": False, "dtype": dtype, "width": width}
                case |= {"ms": {"mgg": spread(ours)}, "over_floor": spread(over)}
                case |= {"over_direct": {"mgg-get": spread(get)}, "speedup": {"torch": spread(baseline)}}
                if dtype == "bfloat16":
                    case["speedup"] = {}
                cases.append(case)
    found = summary.summarise(cases)

    def medians(of):
        return np.array([of(case)["median"] for case in cases])

    over, get = medians(lambda case: case["over_floor"]), medians(lambda case: case["over_direct"]["mgg-get"])
    baselines = np.array([case["speedup"]["torch"]["median"] for case in cases if case["speedup"]])
    for of, ratios, worst in (
        (found["over_floor"], over, over.max()),
        (found["over_direct"]["mgg-get"], get, get.max()),
        (found["speedup"]["torch"], baselines, baselines.min()),
    ):
        assert of["mean"] == pytest.approx(np.prod(ratios) ** (1 / len(ratios)))
        assert of["worst"]["times"] == worst
    worst = cases[int(over.argmax())]
    assert {key: worst[key] for key in summary.KEYS} == {
        key: found["over_floor"]["worst"][key] for key in summary.KEYS
    }
    ms = {(case["graph"], case["dtype"], case["width"]): case["ms"]["mgg"]["median"] for case in cases}
    assert {(cell["graph"], cell["width"]): cell["times"] for cell in found["half"]} == {
        (graph, width): ms[graph, "float32", width] / ms[graph, "bfloat16", width]
        for graph in "ab"
        for width in (16, 64)
    }
    lines, halves = summary.sheets(found)
    assert [row[0] for row in lines.rows] == [
        "time relative to the gather floor",
        "mgg-get over mgg",
        "times as fast as torch",
    ]
    assert halves.columns == ["graph", "rows", "x 16", "x 64"]
    assert [row[:2] for row in halves.rows] == [["a", "bfloat16"], ["b", "bfloat16"]]


def test_what_was_measured_stays_where_the_rest_fails(device, monkeypatch, tmp_path):
    right, widths = aggregate_gpu.Comparison.measure_types, []

    def measure(self, problems):
        widths.append(problems[0].format.dim)
        if len(widths) == 2:
            raise RuntimeError("the GPU is gone")
        return right(self, problems)

    monkeypatch.setattr(aggregate_gpu.Comparison, "measure_types", measure)
    written = tmp_path / "found.json"
    words = ("rmat:5:4", "--device=cuda", "--widths=9,3", "--peers=none", "--turns=1", f"--json={written}")
    with pytest.raises(RuntimeError, match="is gone"):
        verbs.main(["aggregate", *words], standalone_mode=False)
    assert [case["width"] for case in json.loads(written.read_text())["cases"]] == [9]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_of_rows_is_compared(device, monkeypatch, weighted):
    monkeypatch.setattr(sums, "SAMPLE", 7)
    graph = graphs.read("rmat:7:4")
    weight = graphs.weights(graph) if weighted else None
    problem = problem_of(device, graph, "float32", 3, weight)
    picked = sums.sample(graph.indptr)
    assert int(np.diff(graph.indptr).argmax()) in picked and len(picked) <= 8
    limit = sums.allowed(graph, problem.x, weight)
    assert (sums.allowed(graph, problem.x, weight, picked) == limit[picked]).all()
    torch_ = gpu_baselines.MAKERS["torch"]

    def off_at(row):
        def made(problem):
            baseline = torch_(problem)
            right = baseline.result
            baseline.result = lambda: right().index_add(0, torch.tensor([row]), torch.ones(1, 3))
            return baseline

        return made

    monkeypatch.setitem(gpu_baselines.MAKERS, "torch", off_at(int(picked[-1])))
    assert "3 of its" in measured(device, [problem], ["torch"])[1][0]
    other = next(row for row in range(graph.nodes) if row not in picked)
    monkeypatch.setitem(gpu_baselines.MAKERS, "torch", off_at(other))
    assert measured(device, [problem], ["torch"])[1] == []


def test_drawn_graphs_are_kept(tmp_path, monkeypatch):
    right = graphs.read("uniform:5:3")
    monkeypatch.setenv("MGG_BENCH_GRAPHS", str(tmp_path / "graphs"))
    graphs.read("uniform:5:3")
    monkeypatch.setattr(graphs.generate, "rmat", lambda *given, **more: pytest.fail("is drawn again"))
    again = graphs.read("uniform:5:3")
    assert (again.indptr == right.indptr).all() and (again.indices == right.indices).all()
    assert (again.name, again.directed, again.edges) == (right.name, right.directed, right.edges)


def test_a_failing_call_of_cusparse_is_named(device, problem, fake):
    arrays = [device.arrays.address(array) for array in gpu.matrix(problem)]
    product = cusparse.Product(32, problem.graph.edges, arrays, ("float32", 3, 2), None)
    with pytest.raises(RuntimeError, match="cusparseCreateDnMat: status 1"):
        product.dense(0)


def test_sets_of_rows_are_more_than_the_second_cache(device):
    graph = graphs.read("rmat:10:1")
    wide = problem_of(device, graph, "float32", 4096)
    cache = device.module.limits()["l2_bytes"]
    size = graph.nodes * RowFormat(np.dtype(np.float32), 4096).row_bytes
    assert (len(wide.sources) - 1) * size < 3 * cache <= len(wide.sources) * size
    assert len({int(rows.addresses[0]) for rows in wide.sources}) == len(wide.sources)


def test_the_floor_reads_every_word_of_every_row(rng, engine):
    """What its threads have seen, all together, is the exclusive or of all words."""
    indices = rng.integers(0, 50, 203).astype(np.int32)
    rows = rng.integers(0, 2**32, (50, 12), dtype=np.uint32)
    held = engine.arrays.zeros(rows.nbytes)
    held[:] = rows.view(np.uint8).reshape(-1)
    for lanes, threads, blocks in ((4, 64, 3), (8, 32, 1), (32, 96, 5)):
        engine.seed(int(rng.integers(1 << 60)))
        seen = np.zeros(threads * blocks, np.uint32)
        geometry = engine.module.LaunchShape(lanes, 1, blocks, threads)
        engine.module.gather_floor(
            indices.ctypes.data, len(indices), held.ctypes.data, 48, seen.ctypes.data, geometry
        )
        assert np.bitwise_xor.reduce(seen) == np.bitwise_xor.reduce(rows[indices].reshape(-1))
