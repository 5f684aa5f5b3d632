"""The least that must cross between ranks."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from jobs import blocks

from mgg_hpc import reference
from mgg_hpc.data import writer
from mgg_hpc.tools.report.least import crossing


def covered_by(edges: set[tuple[int, int]], size: int, sources: list[int], destinations: list[int]) -> bool:
    """Whether so many ends cover all edges."""
    ends = [("u", u) for u in sources] + [("v", v) for v in destinations]
    return any(
        all(("u", u) in chosen or ("v", v) in chosen for u, v in edges)
        for chosen in map(set, itertools.combinations(ends, size))
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_least_is_a_minimum_vertex_cover(tmp_path, rng, ranks):
    graph = blocks(90, seed=int(rng.integers(1000)))
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


def test_no_smaller_cover_is_there(tmp_path, rng):
    """By trying all of them, on a graph of a few nodes."""
    graph = blocks(14, seed=int(rng.integers(1000)))
    writer.write(tmp_path / "g.h5", graph)
    bounds = np.array([0, 7, 14])
    found = crossing(tmp_path / "g.h5", bounds)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    edges = {(u, v) for u, v in zip(source.tolist(), destination.tolist(), strict=True) if u >= 7 > v}
    least = int(found.least[0, 1])
    sources, destinations = sorted({u for u, _ in edges}), sorted({v for _, v in edges})
    assert covered_by(edges, least, sources, destinations)
    assert least == 0 or not covered_by(edges, least - 1, sources, destinations)
