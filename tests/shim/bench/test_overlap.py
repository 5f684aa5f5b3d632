"""`mgg bench overlap --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench.harness import graphs
from mgg_hpc.tools.bench.overlap import gpu as overlap_gpu
from mgg_hpc.tools.bench.overlap import gpu_transfers

pytestmark = pytest.mark.long

FLOAT = np.dtype(np.float32)


def test_a_whole_run(bench, tmp_path):
    ways = ",".join(overlap_gpu.ABLATIONS)
    words = ("--width=33", "--shares=0,0.1,0.5", "--turns=2")
    found = bench("overlap", "uniform:6:4", *words, "--ways", ways)
    cases = {case["share"]: case for case in found["cases"]}
    assert {*cases} >= {0.0, 0.1, 0.5}  # and perhaps where a transfer takes as long as the sums
    for share, case in cases.items():
        parts = {f"{name} {part}" for name in overlap_gpu.HIDES for part in ("moves", "near")}
        assert set(case["ms"]) == {"sum", *overlap_gpu.ABLATIONS} | (parts if share else set())
        median = {name: spread["median"] for name, spread in case["ms"].items()}
        assert set(case["hidden_share"]) == (set(overlap_gpu.HIDES) if share else set())
        for name, hidden in case["hidden_share"].items():
            summed, moved = median["sum"], median[f"{name} moves"]
            assert hidden == pytest.approx((summed + moved - median[name]) / min(summed, moved))
            assert case["balance"][name] == pytest.approx(moved / summed)
        for name, ratio in case["over_direct"].items():
            assert ratio == pytest.approx(median[name] / median["direct"])
    for name, kept in found["balance"].items():
        nearest = min(abs(np.log(case["balance"][name])) for case in cases.values() if case["balance"])
        assert abs(np.log(kept["ratio"])) == pytest.approx(nearest)
        assert kept["hidden"] == cases[kept["share"]]["hidden_share"][name]
    taken = found["timeline"]
    pushes, arrivals, blocks = (np.array(taken[name]) for name in ("pushes", "arrivals", "blocks"))
    assert len(pushes) == len(arrivals) >= 1
    assert (pushes[:, 0] < pushes[:, 1]).all()
    assert (pushes[:, 1] <= arrivals).all()
    assert (np.diff(blocks, axis=1) >= 0).all()
    assert min(pushes.min(), blocks.min()) == 0
    assert arrivals.max() <= blocks[:, 2].max()
    for word in ("remote share", "halo", "hides", "is hidden", "uniform6"):
        assert word in found["printed"]
    assert "| 0.5 |" in found["markdown"]
    assert (tmp_path / "found.png").stat().st_size > 20_000


@pytest.mark.parametrize("share", [0.05, 0.4, 0.95])
def test_what_moves_alone_moves_as_much(device, engine, share):
    """And nothing else: neither sums nor outputs of the whole way are there, but all its bytes."""
    graph = graphs.read("rmat:6:4")
    subject = overlap_gpu.Subject(device, graph, share, RowFormat(FLOAT, 8))
    own = subject.plans[0].destinations
    remote = graph.indices[: graph.indptr[own]]
    remote = remote[remote >= own]
    for name, rows in (("halo", len(np.unique(remote))), ("get", len(remote))):
        for way in (subject.way(name), subject.transfer_only(name)):
            engine.module.shim_counts()
            way.call()
            assert engine.module.shim_counts()["crossed"] == rows * 32, name
    assert subject.transfer_only("halo").plans[0].destinations == 0
    alone = subject.transfer_only("get").plans[0]
    assert alone.local_edges == 0
    assert (alone.segments["chunk"] == 1).all()
    assert alone.destinations == len(np.unique(alone.segments["destination"]))


def test_ways_that_sum_something_else_are_an_error(device, monkeypatch):
    def wrong(self, name, *rest, made=overlap_gpu.Subject.way, **more):
        way = made(self, name, *rest, **more)
        way.rows[0].local[:] += 1
        return way

    monkeypatch.setattr(overlap_gpu.Subject, "way", wrong)
    graph = graphs.read("uniform:5:4")
    with pytest.raises(AssertionError, match=r"halo: \d+ sums differ"):
        overlap_gpu.measure(device, graph, 0.3, RowFormat(FLOAT, 4), ["halo"], 1)


def test_ways_that_sum_nothing_are_an_error(device, monkeypatch):
    """Whatever another way has left in the outputs."""
    monkeypatch.setattr(gpu_transfers.Way, "call", lambda self: None)
    graph = graphs.read("uniform:5:4")
    with pytest.raises(AssertionError, match=r"direct: \d+ sums differ"):
        overlap_gpu.measure(device, graph, 0.3, RowFormat(FLOAT, 4), ["direct"], 1)


def test_ways_that_split_hubs_or_do_not_are_compared_with_their_like(device):
    """The largest destination has more edges than a worker takes."""
    graph = graphs.read("rmat:8:32")
    subject = overlap_gpu.Subject(device, graph, 0.6, RowFormat(FLOAT, 64))
    geometry, own = subject.geometry, subject.plans[0].destinations
    assert np.diff(graph.indptr[: own + 1]).max() > 2 * geometry.ps * geometry.dist
    ways = ["halo", "get", "get-whole", "get-plain", "ring"]
    found = overlap_gpu.measure(device, graph, 0.6, RowFormat(FLOAT, 64), ways, 1)
    assert set(ways) <= set(found["ms"])


def test_where_a_transfer_should_take_as_long_as_the_sums():
    cases = [
        {"share": share, "balance": {"halo": 10 * share} if share else {}} for share in (0.0, 0.01, 0.05, 0.2)
    ]
    assert overlap_gpu.balanced(cases, "halo") == pytest.approx(0.1)
    assert overlap_gpu.balanced(cases[:3], "halo") is None
    assert overlap_gpu.balanced(cases, "get") is None


def test_a_picture_without_anything_hidden(bench, tmp_path):
    bench("overlap", "uniform:5:4", "--width=4", "--shares=0.2", "--ways=bulk", "--turns=1")
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_shares():
    assert overlap_gpu.shares_of("0.25, 0.1, 0") == [0.0, 0.1, 0.25]
    assert overlap_gpu.shares_of(None) == list(overlap_gpu.SHARES)
    for text in ("1", "0.1,x", "-0.5", "0.1,,0.2"):
        with pytest.raises(InputError, match="--shares"):
            overlap_gpu.shares_of(text)
