"""benchmarks/traversal.py and its study: results are compared, GAPBS's programs are read, and requests are counted."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import traversal
from harness import pcie_requests
from peers import traversals

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph

pytestmark = pytest.mark.long


def test_results_have_one_form_and_those_that_differ_are_named():
    assert traversals.finite([0.0, np.inf, 1.7e308, 3.0]).tolist() == [0, -1, -1, 3]
    assert traversals.least_nodes(np.array([7, 2, 7, 2, 5])).tolist() == [0, 1, 0, 1, 4]
    ours = np.array([0.0, 1.0, -1.0])
    for part, theirs, said in (
        ("bfs", ours.copy(), ""),
        ("bfs", np.zeros(0), ""),
        ("bfs", ours + np.eye(3)[2], "its result differs from ours, by 1 in all"),
        ("pagerank", ours + 1e-4, ""),
        ("pagerank", ours + 1e-3, "its result differs from ours, by 0.003 in all"),
    ):
        assert traversal.differing(part, ours, theirs) == said


def test_all_parts_run(measured, tmp_path):
    """Beside SciPy, whose results are ours, and programs with the names of GAPBS's."""
    printed = "\n".join(f"Trial Time:     {seconds}" for seconds in (0.003, 0.001, 0.002))
    for name in ("bfs", "sssp", "cc", "pr"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$0 $*" >>"{tmp_path}/asked"\necho "{printed}"\n')
        (tmp_path / name).chmod(0o755)
    words = ["rmat:7:8", "rmat:6", "--sources=3", "--turns=1", "--peers=scipy,gapbs"]
    found = measured("traversal", *words, f"--peers-env={sys.prefix}", MGG_GAPBS=str(tmp_path))
    for graph in ("rmat7", "rmat6"):
        for part in traversal.PARTS:
            here = [row for row in found["rows"] if (row["graph"], row["part"]) == (graph, part)]
            rows = {row["variant"]: row for row in here}
            assert rows.keys() == {"mgg", "gapbs"} | ({"scipy"} if part != "pagerank" else set())
            assert rows["gapbs"]["median_ms"] == 2  # of its own clock, for each source
            assert rows["mgg"]["relative_time"] == 1 and rows["mgg"]["min_ms"] > 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert any("/sssp -n 3 -f " in line and line.endswith(("-d 1", "-d 64")) for line in asked)
    assert any("/pr -n 3 -f " in line and line.endswith(".sg -i 1000 -t 0.0001") for line in asked)


def test_the_study_counts_requests(measured, tmp_path):
    drawn = generate.rmat(8, 40, 1)
    writer.write(tmp_path / "dense.h5", Graph("dense", drawn.indptr, drawn.indices, directed=False))
    rows = measured("studies/traversal", "dense.h5", "uniform:7", "--sources=2")["rows"]
    cases = [
        (graph, item, reads)
        for graph in ("dense", "uniform7")
        for item in (4, 8)
        for reads in pcie_requests.READS
    ]
    assert [(row["graph"], row["edge_bytes"], row["variant"]) for row in rows] == cases
    for before, row in zip([None, *rows], rows, strict=False):
        sizes = np.array([row[f"requests_{size}"] for size in pcie_requests.SIZES])
        assert row["requests"] == round(sizes.sum()) and row["moved_bytes"] == round(
            sizes @ pcie_requests.SIZES
        )
        assert row["of_128_bytes_percent"] == pytest.approx(100 * sizes[-1] / sizes.sum(), abs=0.01)
        # A search from a node of the one large component reads all lists that have edges.
        needed = row["edges"] * row["edge_bytes"]
        assert 1 <= row["amplification"] == round(row["moved_bytes"] / needed, 4) < 2
        if row["variant"] == "strided":
            assert row["requests"] == row["requests_32"] and row["fewer_percent"] is None
        else:
            fewer = 100 * (1 - row["requests"] / before["requests"])
            assert row["fewer_percent"] == pytest.approx(fewer, abs=0.1)
