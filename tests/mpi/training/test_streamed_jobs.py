"""Jobs whose graph is streamed: the losses of the same job in memory, and messages for what does not go together."""

from __future__ import annotations

import numpy as np
import pytest
import runs

from mgg_hpc.data.store import open_graph
from mgg_hpc.errors import InputError
from mgg_hpc.nn.streaming.graph import StreamedGraph
from mgg_hpc.runtime import mpi
from mgg_hpc.training.job import build

pytestmark = pytest.mark.mpi

EPOCHS = 3
MODELS = {
    "gcn": {},
    "gcn wide": {"hidden": 40},
    "gcn deep": {"layers": 3, "residual": True, "norm": "layer"},
    "gin": {"name": "gin", "train_eps": True, "norm": "layer"},
    "sage": {"name": "sage"},
    "sage sum": {"name": "sage", "aggr": "sum", "dropout": 0.0},
    "sage max": {"name": "sage", "aggr": "max"},
    "degree": {"input": "degree"},
}


@pytest.fixture
def scratch(comm, tmp_path_factory):
    """A folder that all ranks see, which is empty in the end."""
    folder = comm.bcast(tmp_path_factory.mktemp("scratch"))
    yield folder
    comm.Barrier()
    with mpi.agree(comm):
        assert list(folder.iterdir()) == []


def trained(comm, path, plan, model, **train):
    """Losses of some epochs and of validation, and the bytes of an epoch that came from stores, to all ranks."""
    tree = {"model": {"hidden": 8} | model, "plan": plan, "train": {"learning_rate": 0.05} | train}
    job = build(runs.settings(path, **tree), comm)
    found = runs.train(job, EPOCHS)
    job.close()
    return np.array(found.losses), comm.allreduce(found.moved.stored_bytes)


@pytest.mark.sampled
@pytest.mark.parametrize("graph", runs.GRAPHS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_in_memory(rng, comm, stored, scratch, graph, model):
    path = stored(graph, runs.GRAPHS[graph]())
    normalize = ("none", "row")[int(comm.bcast(rng.integers(2)))]
    wanted, none = trained(comm, path, {}, MODELS[model], normalize_features=normalize)
    assert none == 0
    with open_graph(path) as opened:
        memory = 36 * opened.edges + int(comm.bcast(rng.integers(100_000, 150_000)))
    for plan in ({"memory": memory}, {"memory": memory, "scratch": str(scratch)}):
        losses, loaded = trained(comm, path, plan, MODELS[model], normalize_features=normalize)
        with mpi.agree(comm):
            np.testing.assert_allclose(losses, wanted, rtol=2e-5)
            assert bool(loaded) == ("scratch" in plan)


@pytest.mark.parametrize("model", MODELS)
def test_grids_are_cut_once_for_what_layers_need(comm, stored, scratch, monkeypatch, model):
    """In the phase "plan", for as many columns as layers ask for without it, in training and evaluation."""
    path, needs = stored("sparse", runs.GRAPHS["sparse"]()), []
    tree = {"model": {"hidden": 8} | MODELS[model], "plan": {"memory": "1G", "scratch": str(scratch)}}
    for plan in (StreamedGraph.plan, lambda *args, **options: None):
        monkeypatch.setattr(StreamedGraph, "plan", plan)
        job = build(runs.settings(path, **tree), comm)
        first = job.streamed.grids.all()
        runs.train(job, 1)
        (last,) = job.streamed.grids.all()
        needs.append(last.need)
        with mpi.agree(comm):
            assert first == ([] if len(needs) == 2 else [last])
        job.close()
    with mpi.agree(comm):
        assert needs[0] == needs[1]


def test_blocks_of_wide_layers_have_fewer_rows(comm, stored, scratch):
    """A 256th of the memory, of the widest rows: of 40 features, or of 60 hidden units."""
    path = stored("sparse", runs.GRAPHS["sparse"]())
    plan = {"memory": "64M", "scratch": str(scratch)}
    for hidden, rows in ((8, 1600), (60, 1088)):
        job = build(runs.settings(path, model={"hidden": hidden}, plan=plan), comm)
        with mpi.agree(comm):
            assert job.streamed.block_rows == rows
        job.close()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_rows_of_other_types_stream(comm, stored, scratch, dtype):
    """And GIN moves products where they are narrower: as many bytes as GCN, whose layers have the same widths."""
    path, plan = stored("dense", runs.GRAPHS["dense"]()), {"memory": "300K", "scratch": str(scratch)}
    wanted, _ = trained(comm, path, {}, {}, dtype=dtype)
    found, loaded = trained(comm, path, plan, {}, dtype=dtype)
    with mpi.agree(comm):
        np.testing.assert_allclose(found, wanted, rtol=1e-10 if dtype == "float64" else 0.02)
        assert loaded > 0
    assert trained(comm, path, plan, {"name": "gin"}, dtype=dtype)[1] == loaded


REFUSED = {
    "softmax": ({"model": {"name": "gat"}}, 'model.name = "gat"'),
    "all rows": ({"model": {"norm": "batch"}}, 'model.norm = "batch"'),
    "all layers": ({"model": {"jumping": "max"}}, 'model.jumping = "max"'),
    "learned": ({"model": {"input": "learned"}}, 'model.input = "learned"'),
    "batches": ({"train": {"mode": "sampled", "fanouts": [2, 2]}}, 'train.mode = "sampled"'),
    "recompute": ({"train": {"recompute": "all"}}, "train.recompute"),
    "transfer": ({"plan": {"memory": "1G", "transfer": "halo"}}, "plan.transfer"),
    "search": ({"plan": {"memory": "1G", "tune": "full"}}, "plan.tune"),
    "folder": ({"plan": {"memory": "1G", "scratch": "/nowhere"}}, "plan.scratch: /nowhere is not a folder"),
    "no memory": ({"plan": {"scratch": "/"}}, "plan.scratch is for graphs that are streamed"),
    "too little": ({"plan": {"memory": 100}}, "plan.memory of a job.: 100 B do not suffice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_named(comm, stored, name):
    sections, message = REFUSED[name]
    path = stored("dense", runs.GRAPHS["dense"]())
    settings = runs.settings(path, **({"plan": {"memory": "1G"}} | sections))
    with pytest.raises(InputError, match=message):
        runs.train(build(settings, comm), 1)
    comm.Barrier()
