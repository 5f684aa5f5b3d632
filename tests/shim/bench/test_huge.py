"""`mgg bench huge --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from command import refused

from mgg_hpc import reference
from mgg_hpc.errors import InputError
from mgg_hpc.plan import workload
from mgg_hpc.tools.bench.huge import gpu as huge_gpu
from mgg_hpc.tools.bench.huge import random_graph
from mgg_hpc.tools.bench.huge.gpu import Layer, Size

pytestmark = pytest.mark.long

MASK = (1 << 64) - 1


@pytest.mark.parametrize("distribution", ["uniform", "skewed"])
@pytest.mark.parametrize("width", [5, 16])
def test_a_whole_run(bench, device, rng, monkeypatch, distribution, width):
    monkeypatch.setattr(huge_gpu, "MULTIPLIED", 128)  # rows at once, and not all
    layers = []
    monkeypatch.setattr(huge_gpu, "Layer", lambda *given: layers.append(Layer(*given)) or layers[0])
    size = (
        "--rows=300",
        "--edges=6000",
        "--features=12",
        f"--width={width}",
        f"--seed={rng.integers(1 << 62)}",
    )
    said = bench("huge", *size, f"--distribution={distribution}", "--turns=2", plot=False)
    (layer,) = layers
    x, weight = layer.x.numpy(), layer.weight.numpy()
    rows = device.tensor(layer.rows.local).numpy()
    limit = np.abs(x).astype(np.float64) @ np.abs(weight) * 12**0.5 * np.finfo(np.float32).eps
    assert (np.abs(rows - x.astype(np.float64) @ weight) <= limit).all()
    indices = layer.graph.indices.numpy()
    source, destination = reference.edge_list(layer.graph.indptr, indices)
    assert len(source) == 6000 and source.min() >= 0 and source.max() < 300
    expected = reference.aggregate(source, destination, 300, rows)
    found = device.tensor(layer.out).numpy()
    assert (np.abs(found - expected) <= reference.error_bound(source, destination, 300, rows)).all()

    assert said["device"]["name"] == "shim" and said["distribution"] == distribution
    cases = {case["name"]: case for case in said["cases"]}
    assert [*cases] == ["transform", "sums", "both", "gather floor"]
    assert cases["transform"]["bytes"] == 300 * (12 + width) * 4
    assert cases["sums"]["bytes"] == 6000 * (4 * width + 4) + 300 * (4 * width + 8)
    assert cases["both"]["bytes"] == cases["transform"]["bytes"] + cases["sums"]["bytes"]
    for case in cases.values():
        rate = case["bytes"] / case["ms"]["median"] / 1e6
        assert case["gb_per_s"] == pytest.approx(rate)
        assert case["copy_ms"] == pytest.approx(case["bytes"] / said["copy_gb_per_s"] / 1e6)
    stride = -(-width // 4) * 4
    assert said["bytes"]["features"] == x.nbytes
    assert said["bytes"]["rows"] == 2 * 300 * stride * 4
    assert said["bytes"]["indices"] == indices.nbytes
    assert said["checked"]["most_edges"] == np.diff(layer.graph.indptr).max()
    for word in ("gather floor", "of copying", "6,000 edges", "features"):
        assert word in said["printed"]
    assert "| sums |" in said["markdown"]


def mixed(number: int) -> int:
    """One step of SplitMix64 from this state."""
    z = number + 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def test_the_hash_is_splitmix64(rng):
    assert mixed(0) == 0xE220A8397B1DCDAF  # as its authors publish it
    numbers = rng.integers(-(1 << 63), 1 << 63, 200, dtype=np.int64)
    found = random_graph.hashed(torch.from_numpy(numbers)).numpy().view(np.uint64)
    assert found.tolist() == [mixed(int(number) & MASK) for number in numbers]


@pytest.mark.parametrize("distribution", ["uniform", "skewed"])
def test_a_graph_is_of_its_seed_and_not_of_its_blocks(device, monkeypatch, rng, distribution):
    seed = int(rng.integers(1 << 40))
    graph = random_graph.draw(device, 97, 1003, distribution, seed)
    monkeypatch.setattr(random_graph, "BLOCK", 13)
    again = random_graph.draw(device, 97, 1003, distribution, seed)
    assert (graph.indptr == again.indptr).all() and (graph.indices == again.indices).all()
    other = random_graph.draw(device, 97, 1003, distribution, seed + 1)
    assert (graph.indices != other.indices).sum() > 500
    assert again.pieces(4) == sum(max(1, -(-int(edges) // 4)) for edges in np.diff(graph.indptr))
    for edge in (0, 12, 13, 1002):
        part = (mixed(edge ^ mixed(seed)) >> 11) / 2**53
        rank = int(part ** (1 / random_graph.EXPONENTS[distribution]) * 97)
        assert int(graph.indices[edge]) * random_graph.STRIDE % 97 == rank


def test_distributions(device):
    rows, edges = 1 << 12, 1 << 18
    even = random_graph.draw(device, rows, edges, "uniform", 3)
    assert (np.diff(even.indptr) == edges // rows).all()
    counts = np.bincount(even.indices.numpy(), minlength=rows)
    assert abs(counts - 64).max() < 64  # eight deviations
    skewed = random_graph.draw(device, rows, edges, "skewed", 3)
    degree, used = np.diff(skewed.indptr), np.bincount(skewed.indices.numpy(), minlength=rows)
    assert degree.sum() == used.sum() == edges
    rank = np.arange(rows) * random_graph.STRIDE % rows
    for counts, off in ((degree, 1e-3), (used, 1e-2)):
        by_rank = np.empty(rows, np.int64)
        by_rank[rank] = counts
        for halvings in range(1, 8):  # as rmat's: 0.57 + 0.19 in the lower half, and so on
            share = by_rank[: rows >> halvings].sum() / edges
            assert share == pytest.approx(0.76**halvings, abs=off)
    assert abs(int(np.argmax(degree)) - int(np.argsort(-degree)[1])) > 1  # ranks are strangers in memory


def test_a_plan_of_offsets_is_that_of_segments(engine, rng):
    """The same tasks and parts of hubs, whatever the edges of a row; and sums over it are the same bits."""
    degree = rng.choice([0, 1, 3, 4, 5, 8, 9, 40], 60)
    indptr = workload.prefix_sum(degree.astype(np.int64))
    indices = rng.integers(0, 60, int(indptr[-1])).astype(np.int32)
    one = workload.build(0, np.array([0, 60]), indptr, indices)
    arrays = (one.chunks.view(np.uint8), one.segments.view(np.uint8), one.indices)
    far = 1 << 33  # edges that a longer array would have before these
    plans = [
        engine.module.Plan(*arrays, 60, 4, 0),
        engine.module.Plan.of_csr(indptr, indices.ctypes.data, 60, 4),
        engine.module.Plan.of_csr(indptr + far, indices.ctypes.data - 4 * far, 60, 4),
    ]
    hubs = degree[degree > 4]
    assert {plan.tasks for plan in plans} == {60 - len(hubs) + int((-(-hubs // 4)).sum())}
    assert {plan.slots for plan in plans} == {int((-(-hubs // 4)).sum())}
    x = rng.standard_normal((60, 8), dtype=np.float32)
    results = []
    for plan in plans:
        held = engine.arrays.zeros(x.nbytes)
        held[:] = x.view(np.uint8).reshape(-1)
        out = np.full((60, 8), np.nan, np.float32)
        total = engine.module.Sum("sum", 0, out.ctypes.data, 0, 0, False)
        rows = engine.module.Rows(np.array([held.ctypes.data], np.uint64), 8)
        plan.aggregate_float32(rows, total, engine.module.LaunchShape(4, 1, 3, 64))
        results.append(out)
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()
    source, destination = reference.edge_list(indptr, indices)
    expected = reference.aggregate(source, destination, 60, x)
    assert (np.abs(results[1] - expected) <= reference.error_bound(source, destination, 60, x)).all()


def test_offsets_that_descend_are_refused(engine):
    indices = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="row 1 has -1 edges"):
        engine.module.Plan.of_csr(np.array([0, 3, 2, 4]), indices.ctypes.data, 3, 4)
    with pytest.raises(ValueError, match="no offsets"):
        engine.module.Plan.of_csr(np.zeros(0, np.int64), 0, 3, 4)


@pytest.mark.parametrize("what", ["sum", "transform"])
def test_values_that_are_wrong_are_an_error(device, what, monkeypatch):
    """A sample of rows is checked, and in any case the row with most edges."""
    monkeypatch.setattr(huge_gpu, "SAMPLE", 0)
    layer = Layer(device, Size(50, 400, 4, 4, "skewed", 1))
    for step in layer.steps():
        for call in step.calls:
            call()
    layer.check()
    busiest = int(np.diff(layer.graph.indptr).argmax())
    rows = layer.out if what == "sum" else layer.rows.local
    rows[busiest, 2] = float("nan")
    said = f"sum of row {busiest}: 1 of 4" if what == "sum" else f"row {busiest}, transformed: 1 of 4"
    with pytest.raises(AssertionError, match=said):
        layer.check()


def test_rows_are_as_many_as_fit():
    asked = {"features": 128, "width": 16, "distribution": "uniform", "seed": 0}
    for free in (20 << 30, 79 << 30):
        size = huge_gpu.fitting(free, 1 << 40, rows=None, edges=None, **asked)
        taken = sum(size.needed.values())
        assert 0.85 * free < taken <= 0.9 * free
        assert size.edges / size.rows == pytest.approx(1_615_685_872 / 111_059_956, rel=1e-6)
    whole = huge_gpu.fitting(1 << 40, 1 << 40, rows=None, edges=None, **asked)
    assert (whole.rows, whole.edges) == (111_059_956, 1_615_685_872)
    assert huge_gpu.fitting(5, 5, rows=7, edges=9, **asked).rows == 7  # as they are asked for


def test_too_little_memory_is_refused_with_both_numbers(device, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = Size(1 << 20, 1 << 20, 300, 16, "uniform", 0)
    needed = sum(size.needed.values())
    free = device.module.limits()["memory_bytes"]
    asked = ("--rows=1048576", "--edges=1048576", "--features=300")
    said = f"take {needed:,} bytes of the GPU's memory, where {free:,} are free"
    assert said in refused(capsys, "bench", "huge", "--device=cuda", *asked)
    with pytest.raises(InputError, match=r"of the host's memory, where 5 are free; give fewer --rows"):
        huge_gpu.check_memory(size, needed, 5)


def test_papers100m_fits_an_h200():
    size = Size(111_059_956, 1_615_685_872, 128, 16, "uniform", 0)
    assert 78e9 < sum(size.needed.values()) < 95e9
    assert size.sum_bytes == 1_615_685_872 * 68 + 111_059_956 * 72
