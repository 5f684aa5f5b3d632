"""benchmarks/partition.py: its numbers are those of plans for the file that `mgg partition` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cases
import numpy as np
import pytest
import reference
from command import mgg
from data.graphs import random_graph
from world import plans_of

from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

pytestmark = pytest.mark.long

METHODS = ["edges", "metis", "ldg", "degree", "community"]


def planned(path: Path, parts: int) -> dict[str, Any]:
    """What the plans of a file's stored ranges sum and move."""
    with open_graph(path) as opened:
        rows, bounds = opened.slice(0, opened.nodes), opened.bounds(parts)
    made = cases.csr(*reference.edge_list(rows.indptr, rows.indices), len(rows.ids), bounds)
    direct, halo = plans_of(made, "direct"), plans_of(made, "halo", 1)
    edges, held = [plan.local_edges + plan.remote_edges for plan in direct], [len(plan.halo) for plan in halo]
    return {
        "edges_over_mean": pytest.approx(max(edges) / np.mean(edges), abs=1e-4),
        "rows_over_mean": pytest.approx(max(np.diff(bounds)) / np.mean(np.diff(bounds)), abs=1e-4),
        "cut_edges": sum(plan.remote_edges for plan in direct),
        "halo_rows": sum(held),
        "largest_halo_rows": max(held),
    }


@pytest.mark.parametrize("directed", [False, True])
def test_the_numbers_are_those_of_the_partitioned_file(measured, rng, tmp_path, directed):
    graph = tmp_path / "g.h5"
    write(graph, random_graph(rng, nodes=200, edges=1500, symmetric=not directed))
    before = graph.read_bytes()
    rows = measured("partition", graph, "-n3", "--methods", ",".join(METHODS), picture=False)["rows"]
    assert graph.read_bytes() == before
    assert [row.pop("variant") for row in rows] == METHODS
    for method, found in zip(METHODS, rows, strict=True):
        graph.write_bytes(before)
        option = "--order" if method in ("degree", "community") else "--method"
        assert mgg("partition", str(graph), "-n", "3", option, method) == 0
        assert found.pop("seconds") >= 0 and found == planned(graph, 3), method
