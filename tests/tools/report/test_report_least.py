"""The least that must cross between ranks."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
import reference
from jobs import directed_weighted

from mgg_hpc.data import writer
from mgg_hpc.tools.report.least import crossing


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_least_is_a_minimum_vertex_cover(tmp_path, rng, ranks):
    """By networkx's matching, of a graph with parallel edges; and of few edges by trying all smaller covers."""
    graph = directed_weighted(int(rng.choice([12, 90])), seed=int(rng.integers(1000)))
    writer.write(tmp_path / "g.h5", graph)
    bounds = np.concatenate([[0], np.sort(rng.integers(0, graph.nodes + 1, ranks - 1)), [graph.nodes]])
    found = crossing(tmp_path / "g.h5", bounds)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    for p, q in itertools.product(range(ranks), repeat=2):
        if p == q:
            assert found.edges[p, q] == found.halo[p, q] == found.least[p, q] == 0
            continue
        here = (destination >= bounds[p]) & (destination < bounds[p + 1])
        there = (source >= bounds[q]) & (source < bounds[q + 1])
        edges = list(zip(source[here & there].tolist(), destination[here & there].tolist(), strict=True))
        assert (found.edges[p, q], found.halo[p, q]) == (len(edges), len({u for u, _ in edges}))
        pairs = nx.Graph([(("u", u), ("v", v)) for u, v in edges])
        tops = [node for node in pairs if node[0] == "u"]
        matching = nx.bipartite.eppstein_matching(pairs, tops) if edges else {}
        assert found.least[p, q] == len(matching) // 2
        if edges and len(pairs) <= 12:
            sizes = {len(cover) for cover in covers(pairs)}
            assert found.least[p, q] == min(sizes)


def covers(pairs: nx.Graph) -> list[set]:
    """All sets of nodes that have an end of each edge."""
    subsets = (set(chosen) for n in range(len(pairs) + 1) for chosen in itertools.combinations(pairs, n))
    return [chosen for chosen in subsets if all(u in chosen or v in chosen for u, v in pairs.edges)]
