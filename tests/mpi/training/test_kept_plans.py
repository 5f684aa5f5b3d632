"""Plans that are kept beside the graph: the same bits as those that are made, and never taken for another graph's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import runs
from jobs import blocks, directed_weighted, renumbered
from mpi4py import MPI

from mgg_hpc.data import writer
from mgg_hpc.data.store import open_graph
from mgg_hpc.nn.graph import plan_cache
from mgg_hpc.plan import halo, workload
from mgg_hpc.training.job import build

pytestmark = pytest.mark.mpi

GRAPHS = {"dense": blocks, "directed-weighted": directed_weighted}
MODELS = {"gcn": {}, "sage": {"name": "sage"}, "gat": {"name": "gat", "heads": 2}}


class Kept(NamedTuple):
    """A graph file, the folder of its plans, and train(cache, transfer, **model): (losses, the job's remarks)."""

    path: Path
    folder: Path
    train: Callable[..., tuple[list[float], list[str]]]


@pytest.fixture
def kept(comm, stored, first, request) -> Kept:
    """A graph that is new, without plans beside it."""
    kind = getattr(request, "param", "dense")
    path = stored(f"kept-{kind}", GRAPHS[kind]())
    folder = plan_cache.folder_of(path)

    def train(cache: str, transfer: str = "halo", **model: object) -> tuple[list[float], list[str]]:
        plan = {"cache": cache, "transfer": transfer}
        job = build(runs.settings(path, model={"hidden": 8, "layers": 2} | model, plan=plan), comm)
        losses = runs.train(job, 3).losses
        job.backend.memory.close()
        comm.Barrier()
        return losses, job.plans.notes

    yield Kept(path, folder, train)
    first(lambda: folder.unlink() if folder.is_file() else shutil.rmtree(folder, ignore_errors=True))


@pytest.mark.sampled
@pytest.mark.parametrize("kept", GRAPHS, indirect=True)
@pytest.mark.parametrize("transfer", ["halo", "direct"])
@pytest.mark.parametrize("model", MODELS)
def test_kept_plans_give_the_same_bits_and_are_not_made_again(comm, kept, model, transfer, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a plan is made")

    wanted, _ = kept.train("never", transfer, **MODELS[model])
    assert kept.train("auto", transfer, **MODELS[model])[0] == wanted  # small graphs are not kept
    assert not kept.folder.exists()
    comm.Barrier()
    assert kept.train("always", transfer, **MODELS[model])[0] == wanted
    files = sorted(kept.folder.iterdir())
    ways = 1 + (transfer == "halo") * (2 if "directed" in kept.path.name else 1)
    assert comm.allreduce(len(files), MPI.MIN) >= comm.size * ways or comm.rank
    monkeypatch.setattr(workload, "split", refuse)
    monkeypatch.setattr(halo, "in_rounds", refuse)
    assert kept.train("always", transfer, **MODELS[model]) == (wanted, [])


@pytest.mark.parametrize("at", [0, 12, 100, -40, -1])
def test_a_damaged_file_is_ignored_by_all_ranks_and_made_anew(comm, kept, first, at):
    def damage() -> None:
        file = next(kept.folder.glob(f"*-matrix-gcn-{comm.size - 1}of*"))
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)

    wanted, _ = kept.train("always")
    first(damage)
    losses, (note,) = kept.train("always")
    assert losses == wanted and "ignored, since it is damaged" in note and "\n" not in note
    assert kept.train("always") == (wanted, [])


def test_plans_of_other_edges_are_not_taken_and_are_removed(kept, first):
    """Rows that are renumbered are the same graph, with other plans."""
    kept.train("always")
    before = {file.name for file in kept.folder.iterdir()}
    graph = blocks()
    with open_graph(kept.path) as opened:
        identity = opened.uuid
    moved = renumbered(graph, np.random.default_rng(5).permutation(graph.nodes))
    first(lambda: writer.write(kept.path, moved, force=True, identity=identity))
    wanted, _ = kept.train("never")
    assert kept.train("always")[0] == wanted
    assert not before & {file.name for file in kept.folder.iterdir()}
    first(lambda: writer.write(kept.path, graph, force=True))


def test_others_may_not_write_what_is_read(comm, kept):
    wanted, _ = kept.train("always")
    for file in kept.folder.glob(f"*-{comm.rank}of*"):
        file.chmod(0o620)
    comm.Barrier()
    assert kept.train("always") == (wanted, [])  # made anew
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in kept.folder.glob(f"*-{comm.rank}of*"))


def test_where_nothing_can_be_kept_the_run_goes_on(kept, first):
    wanted, _ = kept.train("never")
    first(lambda: kept.folder.write_text("a file"))
    losses, notes = kept.train("always")
    assert losses == wanted and notes and all("plans are not kept" in note for note in notes)
