"""What is counted ahead of a job equals what the transports of its ranks count while it runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mgg_hpc.config import ModelSettings
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.runtime import mpi
from mgg_hpc.tools import model

pytestmark = pytest.mark.mpi

MODELS = {
    "gcn": {},
    "gin": {"hidden": 520, "layers": 3},  # rows of which a packet holds some only
    "sage": {"hidden": 5},
    "gat": {"hidden": 4, "heads": 2},
}


def random_graph(rng, directed: bool) -> Graph:
    """A graph of a few hub nodes and many others, with features and labels."""
    nodes, edges = int(rng.integers(4000, 5000)), 30_000  # whose halos take several rounds
    source = np.minimum(rng.geometric(0.001, edges) - 1, nodes - 1)
    destination = rng.integers(0, nodes, edges)
    indptr, indices, _ = csr_from_edges(source, destination, nodes, symmetric=not directed)
    part = np.arange(nodes) % 4
    return Graph(
        "random",
        indptr,
        indices,
        x=rng.standard_normal((nodes, 12), dtype=np.float32),
        y=rng.integers(0, 3, nodes),
        classes=3,
        directed=directed,
        train=part < 2,
        val=part == 2,
        test=part == 3,
    )


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_a_run(rng, comm, mgg, folder, first, stored, name, transfer, directed):
    seed = int(rng.integers(2**31))
    path = stored(f"graph{seed}", random_graph(np.random.default_rng(seed), directed))
    settings = {"name": name, **MODELS[name]}
    keys = [f"model.{key}={value!r}".replace("'", '"') for key, value in settings.items()]
    job = folder / "job.toml"
    first(
        lambda: job.write_text(
            f'[graph]\nfile = "{path}"\n[train]\nepochs = 1\n[plan]\ntransfer = "{transfer}"\n'
        )
    )
    sets = [part for key in [*keys, f"run.folder={folder / 'run'}"] for part in ("--set", key)]
    assert mgg("train", job, "--no-progress", *sets).codes == {0}
    with mpi.agree(comm):
        (summary,) = (folder / "run").glob("**/summary.json")
        found = json.loads(summary.read_text())
        with open_graph(path) as file:
            shape = model.shape_of(file, ModelSettings(**settings), None, None)
            bounds = model.bounds_of(file, comm.size)
            counted = model.count(file, bounds, shape, None)
            assert shape.made().by_edge or comm.size == 1 or counted[0].rounds > 1
        moved = model.moved(shape, *counted, transfer)
        assert int(moved["rows"].sum()) == found["remote_rows"]
        assert int(moved["bytes"].sum()) == found["bytes"]["remote"]
        if not (directed and transfer == "halo"):  # whose rounds of the backward are estimated
            assert int(moved["messages"].sum()) == found["messages"]
        assert int(moved["local_bytes"].sum()) == found["bytes"]["local"]
