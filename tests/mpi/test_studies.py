"""benchmarks/studies on several ranks: the sums of every variant, the bytes that cross, and losses of epochs."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from harness.ranks import Subject
from mpi4py import MPI
from scipy import sparse
from studies import design_space, epochs, interleaving, neighbour_partitioning, primitives, transfers

from mgg_hpc.__main__ import main
from mgg_hpc.data import generate
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.runtime.backends import native
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.epoch import Epochs, Shape, job_of, labelled

pytestmark = [pytest.mark.mpi, pytest.mark.long]

STUDIES = {each.__name__: each for each in (neighbour_partitioning, interleaving, primitives, transfers)}


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


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_sums_all_rows(comm, drawn, name):
    subject = Subject(comm, drawn, 5, threads=2, halos=1)
    rows = np.concatenate(comm.allgather(subject.own.local)).astype(np.float64)
    matrix = sparse.csr_matrix((np.ones(drawn.edges), drawn.indices, drawn.indptr), (drawn.nodes,) * 2)
    low = int(subject.counts[: comm.rank].sum())
    wanted = (matrix @ rows)[low : low + len(subject.out)]
    limit = 1e-5 * (1 + (matrix @ np.abs(rows)).max())
    subject.phases.transfer_only()
    for variant, way in STUDIES[name].ways(subject).items():
        for _ in range(2):
            subject.out[:] = np.nan
            way.before()
            way()
            assert not way.sums or np.abs(subject.out - wanted).max(initial=0.0) <= limit, variant
    subject.close()


def test_hubs_are_the_destinations_with_more_edges_than_four_blocks(comm, drawn):
    subject = Subject(comm, drawn, 5, threads=2)
    segments = subject.plan.segments
    degree = np.bincount(segments["destination"], segments["count"])
    for cut, hubs in itertools.product((1, 4, 16), repeat=2):
        geometry = replace(subject.geometry, ps=cut, wpb=1)
        (plan,) = subject.cut("get", geometry, hubs=replace(geometry, ps=hubs)).call.args
        assert subject.backend.schedule(plan, subject.format).hubs == (degree > 4 * hubs).sum(), (cut, hubs)
    subject.close()


def test_sums_that_differ_and_rows_that_are_not_summed_are_an_error(comm, drawn):
    subject = Subject(comm, drawn, 5)
    ways = {"halo": subject.way("halo"), "nothing": replace(subject.way("halo"), call=lambda: None)}
    with pytest.raises(AssertionError, match=r"nothing: \d+ of \d+ sums differ"):
        subject.measure(ways, 1)
    wrong = replace(ways["halo"], before=lambda: subject.own.local.__setitem__(slice(None), 1))
    with pytest.raises(AssertionError, match=r"first: .* sums differ"):  # no other variant is asked
        subject.measure({"first": wrong}, 1)
    subject.close()


def test_each_way_is_warmed_up_until_its_schedule_has_chosen(comm, drawn):
    subject, calls = Subject(comm, drawn, 5), []
    halo = subject.way("halo")
    ms, _ = subject.measure({"halo": replace(halo, call=lambda: calls.append(1) or halo.call())}, 3)
    assert len(calls) == 1 + native.load().Schedule.SETTLED + len(ms["halo"])
    subject.close()


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_a_row_for_each_variant_and_width(comm, drawn, folder, monkeypatch, name):
    made, init = [], Subject.__init__
    monkeypatch.setattr(
        Subject, "__init__", lambda *given, **more: made.append(given[3]) or init(*given, **more)
    )
    run(comm, STUDIES[name], "rmat:7", "--widths=3,8", "--turns=2", "--threads=1", "-o", folder / "s.json")
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


@pytest.mark.parametrize("model", epochs.MODELS)
def test_every_way_trains_as_one_rank_does(comm, drawn, folder, model):
    """Each transfer and stand-in, forward and backward; and the bytes that cross, of rows that need no padding."""
    shape = Shape.of(model, 8, 4, 4, 0.5)
    with epochs.written(comm, labelled(drawn, shape), folder) as file:
        found = epochs.trainings(comm, file, shape, "shm", 1)
        alone = Epochs(job_of(file, shape, MPI.COMM_SELF, threads=1, backend="serial"))
    comm.Barrier()
    assert not file.exists()
    for _ in range(3):
        loss = alone.step()
        for way, training in found.items():
            training.epoch()
            assert training.loss == pytest.approx(loss, rel=1e-4), way
    moved = {way: training.crossing_bytes() for way, training in found.items()}
    _, remote, _ = counted(drawn, comm.size)
    assert moved["bulk"] == moved["halo"] <= moved["direct"] == moved["get"]
    # Rows of as many bytes in as many aggregations: of remote edges, or of all other ranks.
    assert moved["direct"] * (comm.size - 1) * drawn.nodes == moved["all-gather"] * remote
    assert (moved["halo"] > 0) == (comm.size > 1)
    for training in found.values():
        training.job.backend.memory.close()


@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
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
    assert len(steps) + len(mapped) == len(rows)
    start = int(steps[0]["wpb"])
    assert mapped >= set(itertools.product(knobs["ps"], knobs["dist"], [start]))
    best = {ps for ps, _, wpb in mapped if wpb != start}
    assert len(best) == 1 and mapped >= set(itertools.product(best, knobs["dist"], knobs["wpb"]))
