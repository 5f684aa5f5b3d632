"""benchmarks/studies on several ranks: the sums of every variant, the bytes that cross, and hidden shares."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from harness import graphs
from harness.ranks import Subject
from studies import design_space, exchanges

from mgg_hpc.__main__ import main
from mgg_hpc.data import generate
from mgg_hpc.plan.row_ranges import edge_balanced

pytestmark = [pytest.mark.mpi, pytest.mark.long]


@pytest.fixture
def drawn(comm, rng, monkeypatch):
    """A graph with hubs, isolated nodes and no weights, the same on all ranks, in place of any that is named."""
    made = generate.rmat(7, 6, seed=comm.bcast(int(rng.integers(1 << 30))))
    monkeypatch.setattr(graphs, "read", lambda _: made)
    return made


def run(comm, module, *words: object) -> None:
    """Run a script's command on all ranks."""
    comm.Barrier()
    assert comm.allgather(main(list(map(str, words)), module.main, module.__name__)) == [0] * comm.size


def counted(graph, ranks: int) -> tuple[int, int, int]:
    """Return the edges within a rank and between two, and the distinct pairs of a remote row and its reader."""
    owner = np.searchsorted(edge_balanced(graph.indptr, ranks), np.arange(graph.nodes), side="right") - 1
    target = np.repeat(owner, np.diff(graph.indptr))
    remote = owner[graph.indices] != target
    pairs = set(zip(target[remote].tolist(), graph.indices[remote].tolist(), strict=True))
    return int((~remote).sum()), int(remote.sum()), len(pairs)


def test_sums_that_differ_and_rows_that_are_not_summed_are_an_error(comm, drawn):
    subject = Subject(comm, drawn, 5)
    halo = subject.variant("halo")
    variants = {"halo": halo, "nothing": replace(halo, call=lambda: None)}
    with pytest.raises(AssertionError, match="nothing: some rows were not summed"):
        subject.measure(variants, 1)
    other = subject.own.local.copy()
    other[:] = 1
    wrong = replace(halo, call=lambda: subject.own.local.__setitem__(slice(None), other) or halo.call())
    with pytest.raises(AssertionError, match=r"first: .* sums differ"):  # no other variant is asked
        subject.measure({"first": wrong}, 1)
    subject.close()


@pytest.mark.parametrize("name", exchanges.STUDIES)
def test_a_study_has_a_row_for_each_variant_and_width(comm, drawn, folder, monkeypatch, name):
    made, init = [], Subject.__init__
    monkeypatch.setattr(
        Subject, "__init__", lambda *given, **more: made.append(given[3]) or init(*given, **more)
    )
    words = ("--widths=3,8", "--turns=2", "--threads=1", "-o", folder / "s.json")
    run(comm, exchanges, name, "rmat:7", *words)
    assert made == [8, 3]  # a heap that does not grow has the size of the first reservation
    comm.Barrier()
    found = json.loads((folder / "s.json").read_text())
    local, remote, halo = counted(drawn, comm.size)
    assert (found["nodes"], found["edges"]) == (drawn.nodes, drawn.edges)
    assert (found["ranks"], found["threads_per_rank"]) == (comm.size, 1)
    crosses = {"halo": halo, "bulk": halo, "sums": 0, "all-gather": (comm.size - 1) * drawn.nodes}
    for row in found["rows"]:
        assert (row["local_edges"], row["remote_edges"], row["halo_rows"]) == (local, remote, halo)
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        rows = next((n for key, n in crosses.items() if row["variant"].startswith(key)), remote)
        assert row["crossing_bytes"] == rows * 16 * -(-row["width"] // 4), row["variant"]
    assert [row["width"] for row in found["rows"]] == sorted(row["width"] for row in found["rows"])
    variants = [row["variant"] for row in found["rows"] if row["width"] == 3]
    assert len(set(variants)) == len(variants) == len(found["rows"]) / 2 >= 4
    for width in (3, 8) if name == "transfers" and comm.size > 1 else ():
        own = {row["variant"]: row for row in found["rows"] if row["width"] == width}
        ours, sums, moving = (own[name] for name in (exchanges.HALO, exchanges.SUMS, exchanges.EXCHANGE))
        ms = [row["median_ms"] for row in (ours, sums, moving)]
        hidden = (ms[1] + ms[2] - ms[0]) / min(ms[1:])
        rounding = 5e-5 * (3 + abs(hidden)) / min(ms[1:])  # ms have four decimals
        assert ours["hidden_share"] == pytest.approx(hidden, abs=1e-3 + 2 * rounding)
        bits = 8 * moving["crossing_bytes"] / comm.size  # of a rank, in the time of the sums
        assert moving["link_mbit"] == pytest.approx(bits / ms[1] / 1e3, rel=0.05)


@pytest.mark.parametrize("transfer", ["direct", "get"])
def test_the_design_space_has_both_maps_and_the_searchs_path(comm, drawn, folder, monkeypatch, transfer):
    knobs = {"ps": (64, 256), "dist": (0, 32, 64), "wpb": (4, 16)}
    monkeypatch.setattr(design_space, "CPU_KNOBS", knobs)
    files = ("-o", folder / "s.csv", "-o", folder / "s.svg")
    run(comm, design_space, "rmat:7", "--width=8", "--turns=1", f"--transfer={transfer}", *files)
    comm.Barrier()
    rows = list(csv.DictReader((folder / "s.csv").open()))
    steps = [row for row in rows if row["step"]]
    assert steps[0]["variant"] == "search: start"
    assert [int(row["step"]) for row in steps] == list(range(len(steps)))
    mapped = {tuple(int(row[name]) for name in knobs) for row in rows if row["variant"] == "map"}
    found, best, default = (row for row in rows if row["variant"] in ("found", "best", "default"))
    assert len(rows) - len(steps) - len(mapped) == 4 and float(best["over_best_percent"]) == 0
    assert min(float(row["over_best_percent"]) for row in (found, default)) >= 0
    assert tuple(int(default[name]) for name in knobs) == tuple(int(steps[0][name]) for name in knobs)
    start = int(steps[0]["wpb"])
    assert mapped >= set(itertools.product(knobs["ps"], knobs["dist"], [start]))
    ends = {ps for ps, _, wpb in mapped if wpb != start}
    assert len(ends) == 1 and mapped >= set(itertools.product(ends, knobs["dist"], knobs["wpb"]))
