"""What is counted ahead of a job equals what the transports of its ranks count while it runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jobs import write_job

from mgg_hpc.config import ModelSettings
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.store import open_graph
from mgg_hpc.runtime import mpi
from mgg_hpc.tools import estimate

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
    rows = {"x": rng.standard_normal((nodes, 12), dtype=np.float32), "y": rng.integers(0, 3, nodes)}
    masks = {name: np.arange(nodes) % 3 == at for at, name in enumerate(("train", "val", "test"))}
    destination = rng.integers(0, nodes, edges)
    return from_edges(source, destination, nodes, symmetric=not directed, classes=3, **rows, **masks)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_a_run(rng, comm, mgg, folder, first, name, transfer, directed):
    graph, settings = random_graph(rng, directed), {"name": name, **MODELS[name]}
    options = {"model": settings, "train": {"epochs": 1}, "plan": {"transfer": transfer}}
    first(lambda: write_job(folder, graph, **options))
    assert mgg("train", folder / "job.toml", "--no-progress").codes == {0}
    with mpi.agree(comm):
        found = json.loads((folder / "runs" / "001" / "summary.json").read_text())
        with open_graph(folder / "g.h5") as file:
            shape = estimate.shape_of(file, ModelSettings(**settings), None, None)
            bounds = estimate.bounds_of(file, comm.size)
            counted = estimate.count(file, bounds, shape, None)
            assert shape.model.by_edge or comm.size == 1 or counted[0].rounds > 1
        moved = estimate.moved(shape, *counted, transfer)
        assert int(moved["rows"].sum()) == found["remote_rows"]
        assert int(moved["bytes"].sum()) == found["bytes"]["remote"]
        if not (directed and transfer == "halo"):  # whose rounds of the backward are estimated
            assert int(moved["messages"].sum()) == found["messages"]
        assert int(moved["local_bytes"].sum()) == found["bytes"]["local"]
