"""benchmarks/studies/traversal.py: the rows of counted requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from jobs import python

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.traversal import requests

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "studies" / "traversal.py"


def test_it_counts_and_draws(tmp_path):
    drawn = generate.rmat(8, 40, 1)
    writer.write(tmp_path / "dense.h5", Graph("dense", drawn.indptr, drawn.indices, directed=False))
    done = python(
        SCRIPT, "dense.h5", "uniform:7", "--sources=2", "-o", "r.json", "-o", "r.svg", folder=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "</svg>" in (tmp_path / "r.svg").read_text()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    cases = [
        (graph, item, reads) for graph in ("dense", "uniform7") for item in (4, 8) for reads in requests.READS
    ]
    assert [(row["graph"], row["edge_bytes"], row["variant"]) for row in rows] == cases
    for before, row in zip([None, *rows], rows, strict=False):
        sizes = np.array([row[f"requests_{size}"] for size in requests.SIZES])
        assert row["requests"] == round(sizes.sum()) and row["moved_bytes"] == round(sizes @ requests.SIZES)
        assert row["of_128_bytes_percent"] == pytest.approx(100 * sizes[-1] / sizes.sum(), abs=0.01)
        # A search from a node of the one large component reads all lists that have edges.
        needed = row["edges"] * row["edge_bytes"]
        assert 1 <= row["amplification"] == round(row["moved_bytes"] / needed, 4) < 2
        if row["variant"] == "strided":
            assert row["requests"] == row["requests_32"] and row["fewer_percent"] is None
        else:
            fewer = 100 * (1 - row["requests"] / before["requests"])
            assert row["fewer_percent"] == pytest.approx(fewer, abs=0.1)


def test_bad_input_is_one_line(tmp_path):
    done = python(SCRIPT, "nothing", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "nothing/nothing.npz: no such graph; name the folder of graphs in MGG_DATA" in done.stderr
