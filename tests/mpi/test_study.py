"""`mgg study` over several ranks: what each variant sums, and what the tables and plots say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from mgg_hpc.data import generate
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.plan.tune import AGAINST, AROUND, COMPARE, RETREAT
from mgg_hpc.runtime import backends
from mgg_hpc.tools.bench.epoch import jobs
from mgg_hpc.tools.bench.epoch.shape import MODELS, Shape, labelled
from mgg_hpc.tools.bench.overlap.cpu import Subject
from mgg_hpc.tools.study import cpu, epochs, names, space, table
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.long]

GRAPH = "rmat:7:6"


@pytest.fixture
def drawn(comm, rng, monkeypatch):
    """A graph with hubs, isolated nodes and weights of none, the same on all ranks, in place of any that is named."""
    made = generate.rmat(7, 6, seed=comm.bcast(int(rng.integers(1 << 30))))
    for module in (cpu, space):
        monkeypatch.setattr(module.graphs, "read", lambda _: made)
    return made


def counted(graph, ranks: int) -> tuple[int, int, int]:
    """Edges within a rank and between two, and distinct pairs of a remote row and a rank that needs it."""
    bounds = edge_balanced(graph.indptr, ranks)
    owner = np.searchsorted(bounds, np.arange(graph.nodes), side="right") - 1
    target = np.repeat(owner, np.diff(graph.indptr))
    remote = owner[graph.indices] != target
    pairs = set(zip(target[remote].tolist(), graph.indices[remote].tolist(), strict=True))
    return int((~remote).sum()), int(remote.sum()), len(pairs)


@pytest.mark.parametrize("study", cpu.STUDIES)
def test_every_variant_sums_all_rows(comm, drawn, study):
    subject = Subject(comm, drawn, 5, "auto", 2, halos=cpu.HALOS.get(study, 0))
    rows = np.concatenate(comm.allgather(subject.own.local)).astype(np.float64)
    matrix = sparse.csr_matrix((np.ones(drawn.edges), drawn.indices, drawn.indptr), (drawn.nodes,) * 2)
    low = int(subject.counts[: comm.rank].sum())
    wanted = (matrix @ rows)[low : low + len(subject.out)]
    limit = 1e-5 * (1 + (matrix @ np.abs(rows)).max())
    for name, call in cpu.STUDIES[study](cpu.Variants(subject)).items():
        for _ in range(2):
            if name not in cpu.MOVED_ALONE:
                if name == "sums alone":
                    subject.phases.transfer_only()
                subject.out[:] = np.nan
            call()
            comm.Barrier()  # a test writes rows between calls, which no layer does
        apart = np.abs(subject.out - wanted).max(initial=0.0)
        assert apart <= limit, name
    subject.backend.memory.close()


def test_the_widest_rows_are_measured_first_and_listed_as_asked(comm, drawn, folder, monkeypatch):
    """A heap that does not grow has the size of what is reserved first."""
    made = []

    def subject(*given, **more):
        made.append(given[2])
        return Subject(*given, **more)

    monkeypatch.setattr(cpu, "Subject", subject)
    request = cpu.Request(GRAPH, [3, 20, 8], "auto", 1, 1, table.Files(folder / "s.csv", None))
    rows = cpu.measure("neighbour-partitioning", request).rows
    assert made == [20, 8, 3]
    assert list(dict.fromkeys(row["width_values"] for row in rows)) == [3, 20, 8]


@pytest.mark.parametrize("study", cpu.STUDIES)
def test_a_study_writes_a_row_for_each_variant_and_width(comm, drawn, folder, mgg, study):
    csv, plot = folder / "study.csv", folder / "study.png"
    ended = mgg(
        "study", study, GRAPH, "--widths=3,8", "--turns=2", "--threads=1", "--csv", csv, "--plot", plot
    )
    assert ended.codes == {0}, ended.err
    assert [bool(text) for text in ended.out] == [True] + [False] * (comm.size - 1)
    rows = table.read(csv)
    local, remote, halo = counted(drawn, comm.size)
    assert {row["width_values"] for row in rows} == {3, 8}
    for row in rows:
        assert (row["graph"], row["nodes"], row["edges"]) == (drawn.name, drawn.nodes, drawn.edges)
        assert (row["ranks"], row["threads_per_rank"], row["study"]) == (comm.size, 1, study)
        assert (row["local_edges"], row["remote_edges"], row["halo_rows"]) == (local, remote, halo)
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        width = 16 * -(-row["width_values"] // 4)
        name = row["variant"]
        crossing = {"halo": halo, "bulk": halo, "sums": 0, "all-gather": (comm.size - 1) * drawn.nodes}
        rows_moved = next((n for key, n in crossing.items() if name.startswith(key)), remote)
        assert row["crossing_bytes"] == rows_moved * width, name
    variants = [row["variant"] for row in rows if row["width_values"] == 3]
    assert len(set(variants)) == len(variants) >= 4
    assert plot.stat().st_size > 20_000


@pytest.mark.parametrize("model", epochs.TRAINED)
def test_every_way_trains_as_one_rank_does(comm, drawn, folder, model):
    """Each transfer and stand-in, forward and backward; and the bytes that cross, of rows that need no padding."""
    sizes = Shape(8, 4, 4, 0.5, model, *MODELS[model][1:])
    backend = backends.choose_cpu("auto", comm)
    with epochs.written(comm, labelled(drawn, sizes), table.Files(folder / "e.csv", None)) as file:
        found = epochs.trainings(comm, file, sizes, backend, 1)
        alone = jobs.built(file, sizes, MPI.COMM_SELF, threads=1, backend="serial")
    comm.Barrier()
    assert not file.exists()
    trainer = Trainer(alone, alone.graph())
    for epoch in (1, 2, 3):
        trainer.step(epoch)
        for way, training in found.items():
            training.epoch()
            assert training.loss == pytest.approx(trainer.loss(), rel=1e-4), way
    moved = {way: training.crossing_bytes() for way, training in found.items()}
    _, remote, _ = counted(drawn, comm.size)
    assert moved["bulk"] == moved["halo"] <= moved["direct"] == moved["get"]
    # Rows of as many bytes in as many aggregations: of remote edges, or of all other ranks.
    assert moved["direct"] * (comm.size - 1) * drawn.nodes == moved["all-gather"] * remote
    assert (moved["halo"] > 0) == (comm.size > 1)
    for training in found.values():
        training.job.backend.memory.close()


def test_epochs_have_a_row_for_each_way_of_both_models(comm, drawn, folder, mgg, monkeypatch):
    monkeypatch.setattr(epochs.graphs, "read", lambda _: drawn)
    csv, plot = folder / "epochs.csv", folder / "epochs.png"
    ended = mgg(
        "study", "transfers", GRAPH, "--epochs", "--turns=2", "--threads=1", "--csv", csv, "--plot", plot
    )
    assert ended.codes == {0}, ended.err
    rows = table.read(csv)
    ways = list(names.EPOCHS.values())
    assert [(row["model"], row["variant"]) for row in rows] == list(itertools.product(("GCN", "GIN"), ways))
    assert [row["width_values"] for row in rows] == [16] * len(ways) + [64] * len(ways)
    for row in rows:
        assert (row["study"], row["ranks"], row["turns"]) == ("epochs", comm.size, 2)
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
    assert plot.stat().st_size > 20_000
    assert {path.name for path in folder.iterdir()} == {"epochs.csv", "epochs.png"}


@pytest.mark.parametrize("transfer", space.TRANSFERS)
def test_the_design_space_has_both_maps_and_the_searchs_path(comm, drawn, folder, mgg, monkeypatch, transfer):
    knobs = {"ps": (64, 256), "dist": (0, 32, 64), "wpb": (4, 16)}
    monkeypatch.setattr(space, "KNOBS", knobs)
    csv, plot = folder / "space.csv", folder / "space.svg"
    words = (GRAPH, "--width=8", "--turns=1", "--threads=1", "--csv", csv, "--plot", plot)
    ended = mgg("study", "design-space", *words, "--transfer", transfer)
    assert ended.codes == {0}, ended.err
    rows = table.read(csv)
    mapped = {knobs_of(row) for row in rows if row["variant"] == space.MAP}
    steps = sorted((row for row in rows if "step" in row), key=lambda row: row["step"])
    assert len(steps) + len(mapped) == len(rows)
    assert (steps[0]["variant"], knobs_of(steps[0])) == ("search: start", (256, 64, 16))
    assert {row["variant"] for row in steps} <= {
        f"search: {name}" for name in (*knobs, "start", AGAINST, AROUND, RETREAT, COMPARE)
    }
    assert mapped >= set(itertools.product(knobs["ps"], knobs["dist"], [16]))
    best = {ps for ps, _, wpb in mapped if wpb == 4}
    assert len(best) == 1
    assert mapped >= set(itertools.product(best, knobs["dist"], knobs["wpb"]))
    assert "</svg>" in plot.read_text()


def knobs_of(row: table.Row) -> tuple[int, int, int]:
    """The setting of a row."""
    return row["ps_edges"], row["dist_edges"], row["wpb_partitions"]


def test_scaling_refuses_a_launcher(mgg):
    assert "without a launcher" in mgg("study", "scaling", GRAPH, "--plot=none").refused()
