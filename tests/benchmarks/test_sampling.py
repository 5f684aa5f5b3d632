"""benchmarks/sampling.py: it counts all edges where fanouts leave none out, and all libraries' nets are the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch

from mgg_hpc.runtime.sampler import Sampler
from mgg_hpc.tools.bench import graphs

pytestmark = pytest.mark.long


def test_all_parts_count_all_edges(measured):
    words = "rmat:8:4 --fanouts=5000,5000 --batch-size=256 --batches=1 --turns=1 --peers=none"
    rows = measured("sampling", *words.split())["rows"]
    names = {"sampler": ["mgg", "mgg loader"], "train": ["mgg"]}
    assert [(row["part"], row["variant"]) for row in rows] == [(p, v) for p in names for v in names[p]]
    graph = graphs.read("rmat:8:4")
    for row in rows:
        assert row["batch_edges"] == 2 * graph.edges
        assert row["edge_ns"] == pytest.approx(row["median_ms"] * 1e6 / row["batch_edges"], rel=0.01)
        if row["part"] == "train":
            assert 2 < row["loss"] < 5  # 32 classes, little trained
        else:
            assert row["batch_rows"] == graph.nodes


@pytest.mark.filterwarnings("ignore")  # sparse CSR is in beta, and PyG asks for torch.jit
@pytest.mark.parametrize("layer", ["over_edge_list", "over_csr"])
def test_layers_of_pyg_are_those_of_the_whole_graph(monkeypatch, rng, layer):
    """With all edges of a batch, in the order in which PyG draws them: those of a hop are of rows that are met anew."""
    import peers

    monkeypatch.setattr(peers, "THREADS", torch.get_num_threads())
    from peers import nets, pyg

    graph, seeds = graphs.read("rmat:6:4"), np.arange(0, 64, 8)
    drawn = Sampler(graph.indptr, graph.indices).sample(seeds, [-1, -1], seed=0, step=0)
    first, second = drawn.hops
    met = [len(seeds), len(second.indptr) - 1, len(drawn.nodes)]
    batch = SimpleNamespace(
        num_sampled_nodes=np.diff(met, prepend=0).tolist(),
        num_sampled_edges=[len(first.indices), len(second.indices) - len(first.indices)],
        edge_index=torch.from_numpy(np.stack(reference.edge_list(second.indptr, second.indices))),
    )
    one, two = pyg.SAGEConv(5, 4), pyg.SAGEConv(4, 3)
    x = torch.from_numpy(rng.standard_normal((graph.nodes, 5), dtype=np.float32))
    edges = torch.from_numpy(np.stack(reference.edge_list(graph.indptr, graph.indices)))
    net = nets.Net([one, two], getattr(pyg, layer), lambda h, i, _: h.relu() if i else h)
    torch.testing.assert_close(net(x[drawn.nodes], batch), two(one(x, edges).relu(), edges)[seeds])


def test_each_library_has_its_fastest_run():
    import sampling

    ms = {"mgg": 9.0, "dgl 0": 3.0, "dgl 2": 2.0}
    runs = {name: SimpleNamespace(name=name.partition(" ")[0]) for name in ms}
    assert list(sampling.fastest(runs, ms)) == ["mgg", "dgl 2"]
