"""benchmarks/tiers.py: shares of reads that are near, and bytes that cross the link, beside sets of rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from harness import graphs
from studies.tiering import Case, link_bytes

from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime.sampler import Sampler

NAME, FANOUTS, EPOCHS = "rmat:11:4", [4, 3], 4


@pytest.fixture
def drawn() -> tuple[Graph, list[list[set[int]]]]:
    """A graph, and the rows of the batches of each epoch, from 1 on; one batch has all training nodes."""
    graph = graphs.read(NAME)
    train = np.flatnonzero(np.random.default_rng(0).random(graph.nodes) < 0.01)
    assert 0 < len(train) < 64  # the batch: their order is none of a set
    sampler = Sampler(graph.indptr, graph.indices)
    found = [sampler.sample(train, FANOUTS, seed=0, step=epoch).nodes for epoch in range(1, 1 + 2 * EPOCHS)]
    return graph, [[set(rows.tolist())] for rows in found]


def near(batches: list[list[set[int]]], rows: list[int]) -> float:
    reads = [batch for epoch in batches for batch in epoch]
    return sum(len(batch.intersection(rows)) for batch in reads) / sum(map(len, reads))


@pytest.mark.long
def test_hit_rates_are_shares_of_reads(measured, drawn):
    graph, batches = drawn
    words = ("hits", NAME, "--fanouts=4,3", "--shares=10,100", f"--epochs={EPOCHS}", "--replayed=2")
    found = {row["variant"]: row for row in measured("tiers", *words)["rows"]}
    read = Counter(row for (batch,) in batches[:EPOCHS] for row in batch)
    degree = Counter(graph.indices.tolist())  # as a source: its out-edges
    for variant, score in (("oracle", read), ("out-degree", degree)):
        order = sorted(range(graph.nodes), key=lambda row: -score[row])
        for share in (10, 100):
            wanted = near(batches[EPOCHS:], order[: graph.nodes * share // 100])
            assert found[variant][f"hit_rate_{share}"] == pytest.approx(wanted, abs=1e-4)
    *filling, third, fourth = (batch for (batch,) in batches[EPOCHS:])
    again = third.intersection(set.union(*filling)), fourth.intersection(set.union(*filling, third))
    wanted = sum(map(len, again)) / (len(third) + len(fourth))  # all rows fit
    for name in ("LRU cache", "SIEVE cache"):
        assert 0 < found[name]["hit_rate_10"] < found[name]["hit_rate_100"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.long
def test_traffic_is_that_of_rows_which_no_rank_has(measured, drawn):
    graph, batches = drawn
    words = ("traffic", NAME, "--fanouts=4,3", "--shares=3,10", f"--epochs={EPOCHS}", "--ranks=3")
    rows = measured("tiers", *words, "--row-bytes=256", picture=False)["rows"]
    read = Counter(row for (batch,) in batches[:EPOCHS] for row in batch)
    order = sorted(range(graph.nodes), key=lambda row: -read[row])
    found = {row["case"]: row for row in rows if row["variant"] == "oracle"}
    for share in (3, 10):
        room = graph.nodes * share // 100
        half = room // 2
        held = {"one rank": room, "3 ranks, half replicated": half + 3 * (room - half)}
        for case, count in (held | {"3 ranks, none replicated": 3 * room}).items():
            wanted = near(batches[EPOCHS:], order[:count])  # rows of whole lines
            assert found[case][f"removed_{share}"] == pytest.approx(wanted, abs=1e-4)
    reads = np.mean([len(batch) for (batch,) in batches[EPOCHS:]])
    assert found["one rank"]["batch_mb"] == pytest.approx(256e-6 * reads, abs=1e-3)


@pytest.mark.parametrize("row_bytes", [4, 64, 100, 128, 1028])
def test_requests_are_the_lines_that_rows_touch(rng, row_bytes):
    reads = rng.integers(0, 5, 50)
    lines = [{(row * row_bytes + byte) // 128 for byte in range(row_bytes)} for row in range(50)]
    assert link_bytes(reads, row_bytes) == sum(
        128 * int(count) * len(each) for count, each in zip(reads, lines, strict=True)
    )


def test_the_oracle_and_the_count_are_of_other_epochs(rng):
    graph = graphs.read("rmat:13:4")
    case = Case(graph, [3], epochs=2)
    batches = [set(rows.tolist()) for rows in case.batches(range(1, 5))]
    assert len(batches) == 4 * case.steps and case.steps > 1
    counted = Counter(row for batch in batches[2 * case.steps :] for row in batch)
    assert Counter(dict(enumerate(case.counts.tolist()))) == counted
    read = Counter(row for batch in batches[: 2 * case.steps] for row in batch)
    assert case.orders["oracle"].tolist() == sorted(range(graph.nodes), key=lambda row: -read[row])
    seeds = [set(rows[:64].tolist()) for rows in case.batches([1])]  # each training node once
    assert sum(map(len, seeds[:-1])) == 64 * (case.steps - 1)
    assert not set.intersection(*seeds[:2])


@pytest.mark.long
def test_requests_of_a_gather(measured):
    """A warp's loads of 128 bytes cross a line each, but for the last; those of 512 bytes cross one of four."""
    words = ("requests", "--sizes=1024,1028,1040", "--count=2000")
    rows = {row["row_bytes"]: row for row in measured("tiers", *words, picture=False)["rows"]}
    assert {row["shifted_over_lines"] for row in rows.values()} == {1}
    assert [rows[1024][f"{reads}_per_row"] for reads in ("lines", "unshifted")] == [8, 8]
    assert rows[1028]["lines_per_row"] == 9 and 16 < rows[1028]["unshifted_per_row"] < 17.1
    assert 10 < rows[1040]["unshifted_per_row"] < 11
