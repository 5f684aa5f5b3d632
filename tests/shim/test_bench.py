"""`mgg bench aggregate --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench import cusparse, device, device_rivals, device_stage
from mgg_hpc.tools.bench.document import Options

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stage(engine):
    """The shim as what contestants run on."""
    engine.seed(1)
    return device_stage.Stage(engine.module, engine.memory, device_stage.HostClock(), copy_bytes=1 << 16)


@pytest.fixture
def fake(shim, tmp_path, monkeypatch):
    """A libcusparse that counts on the host what it is asked."""
    library = tmp_path / "libcusparse.so"
    include = f"-I{ROOT / 'cuda' / 'include'}"
    source = HERE / "fake_cusparse.cpp"
    command = [shim.compiler, "-std=c++17", "-shared", "-fPIC", include, source, "-o", library]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    monkeypatch.setattr(cusparse, "library", lambda: loaded)
    return loaded


def options(tmp_path, **given):
    files = {name: tmp_path / f"found.{name}" for name in ("json", "table")} | {
        "plot": tmp_path / "found.png"
    }
    return Options(peers="", peers_env=None, threads=2, turns=2, pages="huge", **(files | given))


def test_a_whole_run(stage, fake, tmp_path, capsys):
    device.process_device(
        ["rmat:6:4", "uniform:5"],
        [5, 64],
        ["float32", "bfloat16"],
        ["cusparse", "torch", "cupy"],
        weighted=False,
        options=options(tmp_path),
        stage=stage,
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(c["graph"], c["dtype"], c["width"]) for c in found["cases"]] == [
        (graph, dtype, width)
        for graph in ("rmat6", "uniform5")
        for dtype in ("float32", "bfloat16")
        for width in (5, 64)
    ]
    for case in found["cases"]:
        # On a CPU torch sums no half rows; CuPy needs a GPU.
        assert set(case["ms"]) == {"mgg", "cusparse"} | ({"torch"} if case["dtype"] == "float32" else set())
        row = case["width"] * (4 if case["dtype"] == "float32" else 2)
        moved = case["edges"] * (row + 4) + case["nodes"] * (row + 8)
        assert case["compulsory"]["bytes"] == moved
        assert case["gb_per_s"] == pytest.approx(moved / case["ms"]["mgg"]["median"] / 1e6)
        assert case["of_copy"] == pytest.approx(case["gb_per_s"] / found["copy_gb_per_s"])
        assert case["sets"] == device_stage.MOST_SETS  # small graphs: as many as there may be
    assert found["device"]["name"] == "shim"
    named = {note.partition(":")[0] for note in found["notes"] if note.startswith("cupy")}
    left = {
        f"cupy is left out of {graph}, {kind}"
        for graph in ("rmat6", "uniform5")
        for kind in ("float32", "bfloat16")
    }
    assert named == left
    said = capsys.readouterr().out
    for word in ("rmat6", "bfloat16 x 64", "gather floor", "over cusparse", "copies"):
        assert word in said
    assert "| uniform5 |" in (tmp_path / "found.table").read_text()
    assert (tmp_path / "found.png").stat().st_size > 10_000


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rivals_sum_what_we_sum(rng, stage, fake, dtype, weighted):
    graph = device.subjects.read("rmat:6:4")
    weight = rng.uniform(0.1, 1, graph.edges).astype(np.float32) if weighted else None
    problem = device_stage.problem_of(stage, graph, dtype, 7, weight)
    row, notes = device.measure(problem, ["cusparse", "torch"], 1, 1.0)
    assert set(row["speedup"]) >= ({"cusparse", "torch"} if dtype == "float32" else {"cusparse"}), notes


def test_a_rival_with_other_sums_is_left_out_and_named(stage, monkeypatch):
    def wrong(problem):
        right = device_rivals.torch_(problem)
        return device_rivals.Contestant("torch", right.calls, lambda: right.result() + 1)

    monkeypatch.setitem(device_rivals.MAKERS, "torch", wrong)
    problem = device_stage.problem_of(stage, device.subjects.read("rmat:5:4"), "float32", 3, None)
    row, notes = device.measure(problem, ["torch"], 1, 1.0)
    assert not row["speedup"]
    assert notes == ["torch is left out of rmat5, float32: 96 of its 96 sums differ from ours"]


def test_a_failing_call_of_cusparse_is_named(stage, fake):
    problem = device_stage.problem_of(stage, device.subjects.read("rmat:5:4"), "float32", 3, None)
    arrays = [stage.memory.address(array) for array in device_stage.matrix(problem)]
    product = cusparse.Product(32, problem.graph.edges, arrays, ("float32", 3, 2), None)
    with pytest.raises(RuntimeError, match="cusparseCreateDnMat: status 1"):
        product.dense(0)


def test_sets_of_rows_are_more_than_the_second_cache(stage):
    graph = device.subjects.read("rmat:10:1")
    wide = device_stage.problem_of(stage, graph, "float32", 4096, None)
    cache = stage.module.limits()["l2_bytes"]
    size = graph.nodes * RowFormat(np.dtype(np.float32), 4096).row_bytes
    assert (len(wide.sources) - 1) * size < 3 * cache <= len(wide.sources) * size
    assert len({int(rows.addresses[0]) for rows in wide.sources}) == len(wide.sources)


def test_the_floor_reads_every_word_of_every_row(rng, engine):
    """What its threads have seen, all together, is the exclusive or of all words."""
    indices = rng.integers(0, 50, 203).astype(np.int32)
    rows = rng.integers(0, 2**32, (50, 12), dtype=np.uint32)
    held = engine.memory.zeros(rows.nbytes)
    held[:] = rows.view(np.uint8).reshape(-1)
    for lanes, threads, blocks in ((4, 64, 3), (8, 32, 1), (32, 96, 5)):
        engine.seed(int(rng.integers(1 << 60)))
        seen = np.zeros(threads * blocks, np.uint32)
        geometry = engine.module.Geometry(lanes, 1, blocks, threads)
        engine.module.gather_floor(
            indices.ctypes.data, len(indices), held.ctypes.data, 48, seen.ctypes.data, geometry
        )
        assert np.bitwise_xor.reduce(seen) == np.bitwise_xor.reduce(rows[indices].reshape(-1))
