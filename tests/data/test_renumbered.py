"""A graph file with its rows in another order is that of NumPy's indexing, in windows and blocks of any size."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from mgg_hpc.data import schema
from mgg_hpc.data.readers import graph_file
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import random_graph, same

NODES = 40


@pytest.mark.parametrize("memory", [1, 200, 1 << 20])
@pytest.mark.parametrize("block", [1, 100, 8 << 20])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_come_in_the_new_order(rng, path, monkeypatch, memory, block, sparse):
    monkeypatch.setattr(graph_file, "BLOCK_BYTES", block)
    graph = random_graph(rng, nodes=NODES, sparse=sparse, weighted=True)
    write(path, graph)
    order, ids = rng.permutation(NODES), rng.permutation(NODES)
    with open_graph(path) as opened:
        made = graph_file.renumbered(opened, order, ids, memory=memory)
        found = {name: np.concatenate(list(rows.pieces())) for name, rows in made.rows.items()}
        blocks = list(made.edges.blocks())
    with h5py.File(path) as file:
        old = {name: file[name][:] for name in found if name != schema.PERMUTATION}
    assert same(found.pop(schema.PERMUTATION), ids)
    if sparse:
        dense = np.zeros(graph.x.shape, np.float32)
        offsets, columns, data = (
            found.pop(name) for name in (schema.X_INDPTR, schema.X_INDICES, schema.X_DATA)
        )
        dense[np.repeat(np.arange(NODES), np.diff(offsets)), columns] = data
        wanted = np.zeros_like(dense)
        wanted[np.repeat(np.arange(NODES), np.diff(graph.x.indptr)), graph.x.indices] = graph.x.data
        np.testing.assert_array_equal(dense, wanted[order])
    for name, values in found.items():
        assert same(values, old[name][order]), name
    destination = np.repeat(np.arange(NODES), np.diff(graph.indptr))
    ends = (
        np.concatenate([each.sources for each in blocks]),
        np.concatenate([each.destinations for each in blocks]),
    )
    np.testing.assert_array_equal(order[ends[0]], graph.indices)
    np.testing.assert_array_equal(order[ends[1]], destination)
