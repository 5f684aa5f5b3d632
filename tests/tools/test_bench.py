"""`mgg bench`: sums and epochs are timed, the results are written as they are shown, and bad input is refused."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from command import mgg
from scipy import sparse

from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.aggregate import Aggregation, drawn_rows
from mgg_hpc.tools.bench.epoch import MODELS, Shape
from mgg_hpc.tools.bench.results import Results, text


def test_aggregate_writes_what_it_shows(tmp_path, capsys):
    files = [tmp_path / f"sums{suffix}" for suffix in (".csv", ".json", ".md")]
    outputs = [f"--output={path}" for path in files]
    words = ("uniform:6:4", "rmat:5", "--widths=3,16", "--turns=2", "--threads=1", *outputs)
    assert mgg("bench", "aggregate", *words) == 0
    shown = capsys.readouterr().out
    document = json.loads(files[1].read_text())
    cases = [(graph, width, name) for graph in ("uniform6", "rmat5") for width in (3, 16) for name in NAMES]
    assert [(row["graph"], row["width"], row["variant"]) for row in document["rows"]] == cases
    with files[0].open(newline="") as file:
        assert [float(row["median_ms"]) for row in csv.DictReader(file)] == [
            row["median_ms"] for row in document["rows"]
        ]
    for row in document["rows"]:
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"] and row["turns"] == 2
        assert text(row["median_ms"]) in shown and text(row["median_ms"]) in files[2].read_text()
    assert document["threads"] == 1 and document["machine"]["cores"] > 0


NAMES = ("gather floor", "mgg")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_timed_are_the_sums(weighted, dtype):
    graph = graphs.read("rmat:6:4")
    x = drawn_rows(graph.nodes, 5, dtype)
    weight = graphs.weights(graph) if weighted else None
    one = Aggregation(graph, x, weight=weight, backend="serial", threads=2)
    one.sums()
    values = np.ones(graph.edges) if weight is None else weight.astype(np.float64)
    adjacency = sparse.csr_matrix((values, graph.indices, graph.indptr), (graph.nodes,) * 2)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    expected = adjacency @ x.astype(np.float64)
    np.testing.assert_allclose(one.out.astype(np.float64), expected, rtol=tolerance, atol=10 * tolerance)
    row = 5 * x.dtype.itemsize
    assert one.moved_bytes == graph.edges * (row + 4 + 4 * weighted) + graph.nodes * (row + 8)


def test_epochs_of_all_models_are_timed(tmp_path, capsys):
    output = tmp_path / "epoch.json"
    sizes = ("--features=6", "--hidden=5", "--classes=3", "--turns=2")
    assert mgg("bench", "epoch", "rmat:5:4", "--models=gcn,gin,sage,gat", *sizes, "-o", output) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["variant"] for row in rows] == [str(Shape.of(model, 6, 5, 3, 0.5)) for model in MODELS]
    assert rows[3]["variant"] == "GAT 6 -> 8 x 5 -> 3"
    assert all(row["median_ms"] > 0 for row in rows)


def test_rows_are_compared_with_the_first_turn_by_turn():
    results = Results("made up", graph="g")
    results.compare(
        {"first": [1.0, 2.0, 4.0], "slow": [3.0, 2.0, 40.0], "once": [5.0]}, {"slow": {"mb": 7}}, width=8
    )
    first, slow, once = results.rows
    assert (first["relative_time"], slow["relative_time"], once["relative_time"]) == (1, 3, 5)
    assert (slow["min_ms"], slow["median_ms"], slow["max_ms"], slow["mb"]) == (2, 3, 40, 7)
    assert "mb" not in first and once["turns"] == 1
    assert results.csv().splitlines()[0].startswith("benchmark,date,cpu,graph,width,variant,turns,min_ms")


REFUSED = {
    "aggregate karate": "karate: no such graph",
    "aggregate absent.h5": "absent.h5: no such file",
    "aggregate rmat:29": "rmat:29: a scale of 28 at most",
    "aggregate rmat:27:16": "rmat:27:16: has 2,147,483,648 edges; int32 indices take 1 .. 2**31 - 1",
    "aggregate rmat:4 --widths=0": "--widths 0: '0'; expected numbers of 1 .. 65536",
    "aggregate rmat:4 --output=a.txt": "--output a.txt: expected a name that ends in .csv, .json, .md",
    "aggregate rmat:4 --output=absent/a.md": "absent",
    "epoch rmat:4 --models=gcn,mlp": "--models gcn,mlp: 'mlp' is not one of gcn, gin, sage, gat",
    "epoch rmat:4 --dropout=1": "--dropout",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_will_not_do_is_refused_in_one_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mgg("bench", *words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert REFUSED[words] in line
    assert not list(tmp_path.iterdir())
