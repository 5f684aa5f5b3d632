"""The verbs for files, through the command line: what they write and print, and how they refuse."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from command import mgg, refused

from mgg_hpc.data.assembly import runs
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import array_edges, compressed
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write
from mgg_hpc.tools import importing

from .graphs import random_graph, rows_of_edges

pytestmark = pytest.mark.usefixtures("here")


def test_info_tells_what_is_in_the_file(rng, capsys):
    graph = random_graph(rng, symmetric=False, weighted=True, permuted=True)
    write("g.h5", graph)
    assert mgg("partition", "g.h5", "-n", "3") == 0
    printed = capsys.readouterr().out.replace(",", "")
    assert mgg("info", "g.h5", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    degrees = np.diff(graph.indptr)
    rows = rows_of_edges(graph.indptr)
    touched = {node for u, v in zip(graph.indices, rows, strict=True) if u != v for node in (int(u), int(v))}
    expected = {"min": degrees.min(), "max": degrees.max(), "mean": 5.0, "median": np.median(degrees)}
    assert {key: facts["degrees"][key] for key in expected} == expected
    assert facts["degrees"]["isolated"] == 40 - len(touched)
    assert facts["degrees"]["self_loops"] == np.count_nonzero(graph.indices == rows)
    assert (facts["nodes"], facts["edges"], facts["weighted"], facts["renumbered"]) == (40, 200, True, True)
    dense = {"columns": 6, "sparse": False, "type": "float32", "stored": 240, "density": 1.0}
    assert facts["features"] == dense
    assert facts["labels"]["nodes_per_class"] == np.bincount(graph.y, minlength=5).tolist()
    for name in ("train", "val", "test"):
        assert facts["labels"][name] == getattr(graph, name).sum()
    with open_graph("g.h5") as opened:
        bounds = opened.bounds(3)
    (part,) = facts["partitions"]
    assert part["parts"] == 3 and part["rows"] == np.diff(bounds).tolist()
    assert part["edges"] == np.diff(graph.indptr[bounds]).tolist()
    for rank in range(3):
        words = [rank, bounds[rank], part["rows"][rank], part["edges"][rank]]
        assert re.search(r"\D+".join(rf"\b{word}\b" for word in words), printed)
    assert mgg("info", "g.h5") == 0
    table = capsys.readouterr().out
    for text in ("random", "200 (directed, weighted)", "6 (float32, dense)", "by edges", "40, renumbered"):
        assert text in table
    # A node with a self loop alone is isolated: 0 -> 1, 2 -> 2, and 3 without edges.
    write("g.h5", Graph("g", np.array([0, 0, 1, 2, 2]), np.array([0, 2], np.int32)), force=True)
    assert mgg("info", "g.h5", "--json") == 0
    found = json.loads(capsys.readouterr().out)["degrees"]
    assert (found["isolated"], found["self_loops"], found["min"], found["max"]) == (2, 1, 0, 1)


def test_imports(rng, capsys):
    text = "0,1\n1,2\n2,2\n"
    with gzip.open("e.csv.gz", "wt") as file:
        file.write(text)
    np.save("x.npy", rng.normal(size=(300, 4)))
    np.save("y.npy", np.arange(300) % 5)
    options = ["--symmetric", "--simple", "--features", "x.npy", "--labels", "y.npy", "--split-per-class"]
    assert mgg("import", "e.csv.gz", *options, "--name", "mine", "-o", "g.h5") == 0
    assert capsys.readouterr().out == (
        "g.h5: mine, 300 nodes, 4 edges (undirected, both directions stored), 4 features, 5 classes\n"
    )
    with open_graph("g.h5") as opened:
        part = opened.slice(0, 300)
        assert part.indices.tolist() == [1, 0, 2, 1] and part.train.sum() == 100 and part.val.sum() == 150
    np.savez("a.npz", indptr=[0, 1, 2], indices=[1, 0])
    assert mgg("import", "a.npz", "-o", "a.h5") == 0
    Path("e.csv.gz").rename("edges")
    assert mgg("import", "edges", "--format", "edges", "-o", "e.h5") == 0
    with open_graph("e.h5") as opened:
        assert (opened.nodes, opened.edges, opened.directed) == (3, 3, True)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("1 2\n2 3\n3 1\n", "", True),
        ("1 2\n2 3\n3 1\n", "--symmetric", True),
        ("1 2\n2 3\n3 1\n", "--first 1", False),
        ("1 2\n2 3\n3 1\n", "--first 0", False),
        ("1 2\n2 3\n3 1\n", "--map-ids", False),
        ("0 2\n2 3\n3 1\n", "", False),
        ("2 3\n3 2\n", "", False),  # node 1 has no edge either
        ("1 2\n2 1\n1 50\n", "", False),  # few nodes have an edge
        ("1 2\n" * 9 + "0 1\n", "", False),
    ],
)
def test_ids_that_seem_to_begin_at_1(text, options, said, capsys):
    Path("e.txt").write_text(text)
    assert mgg("import", "e.txt", *options.split(), "-o", "g.h5") == 0
    note = "node 0 has no edge; if the ids begin at 1, import with --first 1\n"
    assert (note in capsys.readouterr().out) == said
    if not options:
        np.save("e.npy", np.array([line.split() for line in text.splitlines()], int))
        assert mgg("import", "e.npy", "-o", "g.h5", "--force") == 0
        assert ("subtract 1 from them" in capsys.readouterr().out) == said


@pytest.mark.slow
def test_digits_are_the_same_each_time(capsys, monkeypatch):
    assert mgg("import", "digits", "-o", "a.h5") == 0
    assert mgg("import", "digits", "-o", "b.h5") == 0
    assert mgg("import", "digits", "--seed", "1", "-o", "c.h5") == 0
    first, again, other = (Path(name).read_bytes() for name in ("a.h5", "b.h5", "c.h5"))
    assert first == again != other
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install 'mgg-hpc[digits]'" in refused(capsys, "import", "digits", "-o", "g.h5")


def test_files_that_are_no_graphs(rng, capsys):
    write("g.h5", random_graph(rng))
    Path("cut.h5").write_bytes(Path("g.h5").read_bytes()[:-100])
    for verb in ("verify", "info"):
        assert "cut.h5 is not a graph file: it is truncated" in refused(capsys, verb, "cut.h5")
    with h5py.File("g.h5", "r+") as file:
        file["graph/indices"][5] = 40
    assert refused(capsys, "verify", "g.h5").startswith("g.h5: /graph/indices has source 40 in row ")


@pytest.mark.parametrize("command", [["generate", "rmat", "--scale", "3"], ["import", "e.txt"]])
def test_outputs_that_cannot_be(command, capsys):
    Path("g.h5").touch()
    assert refused(capsys, *command, "-o", "g.h5").startswith("g.h5 exists; ")  # before the work
    Path("e.txt").write_text("0 1\n")
    assert "none is not a folder" in refused(capsys, *command, "-o", "none/g.h5")
    assert mgg(*command, "-o", "g.h5", "--force") == 0


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("import g.abc", "the name of g.abc does not tell its format"),
        ("import none.txt", "none.txt cannot be read: No such file"),
        ("import none.npz", "none.npz cannot be read: No such file"),
        ("import bad.txt", "bad.txt:2: 'seven' is not a node id; expected a whole number"),
        ("import planetoid", "planetoid needs the folder"),
        ("import planetoid none", "none has no ind.NAME.graph"),
        ("import planetoid --download", "--download needs --name"),
        ("import digits folder", "'folder' is one argument too many"),
        ("import digits --symmetric", "--symmetric does not go with the format digits; it is for npz,"),
        ("import bad.txt --download", "--download does not go with the format edges; it is for planetoid"),
        ("import bad.txt --first 0 --map-ids", "--first does not go with --map-ids"),
        ("import bad.txt --seed 0", "--seed needs --split-per-class or --split-random"),
        ("import a.npz --feature-type float16", "--feature-type needs --features"),
        ("import ogbn --format ogb --seed 1", "--seed does not go with the format ogb"),
        ("import bad.txt --edge-data a", "--edge-data a: expected NAME=FILE.npy"),
        ("import bad.txt --edge-data a/b=a.npy", "--edge-data: data of edges is named 'a/b'"),
        ("import a.npz --edge-data a=a.npy", "--edge-data does not go with the format npz"),
        ("import bad.txt --name=", "--name '' is no name"),
        ("import bad.txt --name a\x1bb", "--name 'a\\x1bb' is no name"),
        ("import a.npz --split-per-class", "needs labels; this graph has none"),
        ("import a.npz --split-per-class --nodes 3", "--nodes does not go with the format npz"),
        ("import planetoid --split 1", "--split does not go with the format planetoid"),
        (
            "import a.npz --split-random 0.6 0.2 --split-per-class",
            "and --split-random are two splits; choose one",
        ),
        (
            "import far.txt --features x.npy",
            "far.txt:1: the node id 3 is too large; expected 0 .. 2, since x.npy has 3 rows",
        ),
        (
            "import far.npy --features x.npy",
            "far.npy: edge 1 has the destination 3; expected 0 .. 2, since x.npy has 3 rows",
        ),
    ],
)
def test_arguments_that_make_no_sense(arguments, reason, capsys):
    Path("bad.txt").write_text("0 1\n7 seven\n")
    Path("far.txt").write_text("0 3\n")
    np.save("far.npy", [[0, 1], [1, 3], [2, 2]])
    np.save("x.npy", np.ones((3, 1)))
    np.savez("a.npz", indptr=[0, 1, 2], indices=[1, 0])
    assert reason in refused(capsys, *arguments.split(), "-o", "g.h5")


def test_an_archive_without_a_split_gets_a_random_one():
    np.savez("a.npz", indptr=np.zeros(41, int), indices=np.zeros(0, int), y=np.arange(40) % 3)
    options = ["--split-random", "0.6", "0.2"]
    assert mgg("import", "a.npz", *options, "--seed", "3", "-o", "g.h5") == 0
    assert mgg("import", "a.npz", *options, "--seed", "4", "-o", "other.h5") == 0
    with open_graph("g.h5") as one, open_graph("other.h5") as two:
        first, second = one.slice(0, 40), two.slice(0, 40)
    assert [mask.sum() for mask in (first.train, first.val, first.test)] == [24, 8, 8]
    assert not np.array_equal(first.train, second.train)


@pytest.mark.parametrize("name", ["e.txt", "x.npy", "y.npy", "train.npy"])
def test_an_output_is_no_input(name, capsys):
    Path("e.txt").write_text("0 1\n1 2\n")
    np.save("x.npy", np.ones((3, 2)))
    np.save("y.npy", np.arange(3))
    np.save("train.npy", [0])
    Path("link.h5").symlink_to(name)
    options = ["--features", "x.npy", "--labels", "y.npy", "--masks", "train.npy", "train.npy", "train.npy"]
    for output in (name, "link.h5"):
        reason = refused(capsys, "import", "e.txt", *options, "-o", output, "--force")
        assert f"{name}, which is read; choose another output path" in reason


def test_imports_of_streams_do_not_go_on(monkeypatch):
    """A pipe gives other edges each time, so that its builds have no key; those of files follow their edges."""
    keys = []
    build = importing.build_graph

    def built(*arguments, key, **options):
        keys.append(key)
        return build(*arguments, key=key, **options)

    monkeypatch.setattr(importing, "build_graph", built)
    os.mkfifo("pipe.txt")
    writer = threading.Thread(target=lambda: Path("pipe.txt").write_text("0 1\n"))
    writer.start()
    assert mgg("import", "pipe.txt", "-o", "g.h5") == 0
    writer.join()
    assert keys == [None]
    for listed in ("0 1\n", "1 0 \n"):
        Path("e.txt").write_text(listed)
        for labels in ([0, 1], [1, 1]):
            np.save("y.npy", labels)
            assert mgg("import", "e.txt", "--labels", "y.npy", "-o", "g.h5", "--force") == 0
    assert keys[1] == keys[2] != keys[3] == keys[4] and None not in keys[1:]


def test_lists_with_both_directions_are_undirected(capsys):
    np.save("both.npy", [[0, 1, 1, 2], [1, 0, 2, 1]])
    Path("both.txt").write_text("0 1 2.5\n1 0 2.5\n1 2 1\n2 1 1\n")
    Path("names.txt").write_text("a b\nb a\n")
    Path("one.txt").write_text("0 1 2.5\n1 0 2\n")
    for words in (["both.npy"], ["both.txt"], ["names.txt", "--map-ids"], ["one.txt"]):
        assert mgg("import", *words, "-o", "g.h5", "--force") == 0
        with open_graph("g.h5") as opened:
            assert opened.directed == (words == ["one.txt"])
    assert capsys.readouterr().err == ""
    # KONECT's lists say that they have each edge once.
    Path("out.tsv").write_text("% sym unweighted\n0 1\n")
    for options, note in {
        (): "note: out.tsv lists each undirected edge once; --symmetric adds the reverse\n",
        ("--symmetric",): "",
    }.items():
        assert mgg("import", "out.tsv", *options, "-o", "g.h5", "--force") == 0
        assert capsys.readouterr().err == note


@pytest.mark.parametrize("source", ["e.txt.gz", "e.npy", "names"])
def test_data_of_edges_follow_the_listed_edges(source, rng, monkeypatch, capsys):
    monkeypatch.setattr(compressed, "BLOCK_BYTES", 50)
    monkeypatch.setattr(array_edges, "BLOCK_EDGES", 7)
    pairs = [divmod(pair, 30) for pair in rng.choice(900, size=100, replace=False).tolist()]
    time, kind = rng.integers(10**12, size=100), rng.normal(size=(100, 3))
    np.save("time.npy", time)
    np.save("kind.npy", np.asfortranarray(kind))
    np.save("e.npy", pairs)
    with gzip.open("e.txt.gz", "wt") as file:
        file.writelines(f"{u} {v}\n" for u, v in pairs)
    source, names = ("e.txt.gz", ["--map-ids"]) if source == "names" else (source, [])
    data = ["--edge-data", "time=time.npy", "--edge-data", "kind=kind.npy"]
    assert mgg("import", source, *names, *data, "-o", "g.h5") == 0
    with open_graph("g.h5") as opened:
        part = opened.slice(0, opened.nodes)
        ids = opened.stored("node/id") if names else part.ids
    ends = ids[part.indices], ids[rows_of_edges(part.indptr)]
    order = [pairs.index(pair) for pair in zip(*(each.tolist() for each in ends), strict=True)]
    assert sorted(order) == list(range(100))
    assert np.array_equal(part.edge["time"], time[order])
    assert np.array_equal(part.edge["kind"], kind[order].astype(np.float32))
    for count in (99, 101):
        np.save("time.npy", np.zeros(count))
        reason = refused(capsys, "import", source, *names, *data, "-o", "n.h5")
        assert reason == f"time.npy is of {count} edges; {source} lists 100"


def test_mended_features_take_the_edges_that_were_sorted(rng, capsys, monkeypatch):
    """An import whose features were wrong goes on behind its edges once they are mended."""
    monkeypatch.setattr(runs, "MOST_EDGES", 1000)
    pairs = rng.integers(50, size=(5000, 2))
    Path("edges.txt").write_text("".join(f"{u} {v}\n" for u, v in pairs))
    x = rng.normal(size=(50, 3)).astype(np.float32)
    np.save("x.npy", np.where(np.arange(150).reshape(50, 3) == 149, np.nan, x))
    command = ["import", "edges.txt", "--features", "x.npy", "-o", "g.h5"]
    assert mgg(*command) == 2
    told = capsys.readouterr().err
    assert "x.npy has nan at row 49, column 2" in told and "the same command goes on from there" in told
    np.save("x.npy", x)
    monkeypatch.setattr(runs.Gatherer, "_take", None)  # edges are not read again
    assert mgg(*command) == 0
    assert mgg("verify", "g.h5") == 0
