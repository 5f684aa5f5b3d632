"""Plans that are kept beside the graph: the same bits as those that are made, and never taken for another graph's."""

from __future__ import annotations

import shutil

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


def trained(comm, path, cache: str, transfer: str = "halo", **model: object):
    """The losses of some epochs, the job's remarks, and the folder of plans."""
    plan = {"cache": cache, "transfer": transfer}
    job = build(runs.settings(path, model={"hidden": 8, "layers": 2} | model, plan=plan), comm)
    losses = runs.train(job, 3).losses
    job.backend.memory.close()
    return losses, job.plans.notes, plan_cache.folder_of(path)


@pytest.fixture
def path(comm, stored, request):
    """A graph file without plans beside it."""
    kind = getattr(request, "param", "dense")
    found = stored(f"kept-{kind}", GRAPHS[kind]())
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(plan_cache.folder_of(found), ignore_errors=True)
    comm.Barrier()
    return found


@pytest.fixture
def unplanned(monkeypatch):
    """A call after which no plan can be made any more."""

    def refuse(*_, **__):
        raise AssertionError("a plan is made")

    def call():
        monkeypatch.setattr(workload, "split", refuse)
        monkeypatch.setattr(halo, "in_rounds", refuse)

    return call


@pytest.mark.sampled
@pytest.mark.parametrize("path", GRAPHS, indirect=True)
@pytest.mark.parametrize("transfer", ["halo", "direct"])
@pytest.mark.parametrize("model", MODELS)
def test_kept_plans_give_the_same_bits_and_are_not_made_again(comm, path, model, transfer, unplanned):
    wanted = trained(comm, path, "never", transfer, **MODELS[model])[0]
    assert not plan_cache.folder_of(path).exists()
    assert trained(comm, path, "always", transfer, **MODELS[model])[0] == wanted
    files = sorted(plan_cache.folder_of(path).iterdir())
    ways = 1 + (transfer == "halo") * (2 if "directed" in path.name else 1)
    assert comm.allreduce(len(files), MPI.MIN) >= comm.size * ways or comm.rank
    unplanned()
    losses, notes, _ = trained(comm, path, "always", transfer, **MODELS[model])
    assert losses == wanted and notes == []


def test_small_graphs_are_not_kept_unless_asked_for(comm, path):
    trained(comm, path, "auto")
    assert not plan_cache.folder_of(path).exists()


@pytest.mark.parametrize("at", [0, 12, 100, -40, -1])
def test_a_damaged_file_is_ignored_by_all_ranks_and_made_anew(comm, path, at):
    wanted, _, folder = trained(comm, path, "always")
    comm.Barrier()
    if comm.rank == 0:
        file = next(folder.glob(f"*-matrix-gcn-{comm.size - 1}of*"))
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
    comm.Barrier()
    losses, notes, _ = trained(comm, path, "always")
    assert losses == wanted
    assert len(notes) == 1 and "ignored, since it is damaged" in notes[0] and "\n" not in notes[0]
    assert trained(comm, path, "always")[:2] == (wanted, [])


def test_plans_of_other_edges_are_not_taken_and_are_removed(comm, path):
    """Rows that are renumbered are the same graph, with other plans."""
    _, _, folder = trained(comm, path, "always")
    before = {file.name for file in folder.iterdir()}
    comm.Barrier()
    if comm.rank == 0:
        graph = blocks()
        order = np.random.default_rng(5).permutation(graph.nodes)
        with open_graph(path) as opened:
            identity = opened.uuid
        writer.write(path, renumbered(graph, order), force=True, identity=identity)
    comm.Barrier()
    wanted = trained(comm, path, "never")[0]
    assert trained(comm, path, "always")[0] == wanted
    comm.Barrier()
    assert not before & {file.name for file in folder.iterdir()}
    comm.Barrier()
    if comm.rank == 0:
        writer.write(path, blocks(), force=True)
    comm.Barrier()


def test_others_may_not_write_what_is_read(comm, path, unplanned):
    wanted, _, folder = trained(comm, path, "always")
    comm.Barrier()
    for file in folder.glob(f"*-{comm.rank}of*"):
        file.chmod(0o620)
    comm.Barrier()
    assert trained(comm, path, "always")[:2] == (wanted, [])  # made anew
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.glob(f"*-{comm.rank}of*"))


def test_where_nothing_can_be_kept_the_run_goes_on(comm, path):
    wanted = trained(comm, path, "never")[0]
    comm.Barrier()
    if comm.rank == 0:
        plan_cache.folder_of(path).write_text("a file")
    comm.Barrier()
    losses, notes, folder = trained(comm, path, "always")
    assert losses == wanted and notes and all("plans are not kept" in note for note in notes)
    comm.Barrier()
    if comm.rank == 0:
        folder.unlink()
    comm.Barrier()
