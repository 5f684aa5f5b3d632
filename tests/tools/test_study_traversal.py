"""`mgg study traversal`: its table and its picture."""

from __future__ import annotations

import numpy as np
from command import mgg, refused

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.tools.study import table


def test_it_counts_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    drawn = generate.rmat(8, 40, 1)
    writer.write("dense.h5", Graph("dense", drawn.indptr, drawn.indices, directed=False))
    assert mgg("study", "traversal", "dense.h5", "uniform:7", "--sources", 2) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"dense.h5", "traversal.csv", "traversal.png"}
    rows = table.read(tmp_path / "traversal.csv")
    assert [(row["graph"], row["edge_bytes"], row["variant"]) for row in rows] == [
        (graph, item, reads)
        for graph in ("dense", "uniform7")
        for item in (4, 8)
        for reads in ("strided", "merged", "aligned")
    ]
    for row in rows:
        sizes = np.array([row[f"requests_{size}"] for size in (32, 64, 96, 128)])
        assert row["moved_bytes"] == round(sizes @ [32, 64, 96, 128])
        # A search from a node of the one large component reads all lists that have edges.
        needed = row["edges"] * row["edge_bytes"]
        assert 1 <= row["amplification"] == round(row["moved_bytes"] / needed, 4) < 2


def test_bad_input(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "no such graph" in refused(capsys, "study", "traversal", "nothing")
    assert "a is not a folder" in refused(capsys, "study", "traversal", "rmat:5", "--csv", "a/b.csv")
