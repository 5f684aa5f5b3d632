"""`mgg traverse`: what it prints, writes and refuses."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from command import mgg, refused
from jobs import blocks, directed_weighted, renumbered

from mgg_hpc.data import writer
from mgg_hpc.data.graph import from_edges
from mgg_hpc.traversal import checks, part


@pytest.fixture
def graph(tmp_path, monkeypatch, rng):
    """g.h5, whose rows have another order than its nodes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    made = blocks(120)
    writer.write("g.h5", renumbered(made, rng.permutation(120)))
    return made


def test_results_have_the_users_numbering(graph, capsys):
    assert mgg("traverse", "bfs", "g.h5", "--source", 3, "-o", "out.h5") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("source 3: ") and "nodes reached" in out[0]
    assert out[1:] == ["out.h5: parent [120]", "out.h5: depth [120]"]
    with h5py.File("out.h5") as file:
        assert file.attrs["format"] == "mgg-traversal" and file.attrs["source"].tolist() == [3]
        depth, parent = file["depth"][:], file["parent"][:]
    first = graph.indices[graph.indptr[3] : graph.indptr[4]]
    assert depth[3] == 0 and parent[3] == 3
    assert set(np.flatnonzero(depth == 1)) == set(first.tolist()) - {3}


def test_several_sources_have_a_column_each(graph, capsys):
    assert mgg("traverse", "sssp", "g.h5", "--source", 3, "--source", 8, "-o", "out.h5") == 0
    assert mgg("traverse", "sssp", "g.h5", "--source", 8, "-o", "one.npy") == 0
    with h5py.File("out.h5") as file:
        distance = file["distance"][:]
    assert distance.shape == (120, 2) and distance[3, 0] == distance[8, 1] == 0
    assert distance[8, 0] == distance[3, 1]  # the graph is undirected
    assert np.array_equal(np.load("one.npy"), distance[:, 1])


@pytest.mark.parametrize("hot", [0, 1, 7])
def test_results_are_the_same_however_many_sources_are_hot(graph, monkeypatch, hot):
    for kind, options in (("bfs", ["--source", 3]), ("sssp", ["--source", 3]), ("pagerank", []), ("cc", [])):
        assert mgg("traverse", kind, "g.h5", *options, "-o", f"{kind}.h5") == 0
        with monkeypatch.context() as patch:
            patch.setattr(part, "HOT", hot)
            assert mgg("traverse", kind, "g.h5", *options, "-o", f"{kind}-{hot}.h5") == 0
        with h5py.File(f"{kind}.h5") as whole, h5py.File(f"{kind}-{hot}.h5") as other:
            for name in whole:
                if name != "parent":  # of several, whichever comes first
                    np.testing.assert_allclose(other[name][:], whole[name][:], rtol=1e-5)


def test_the_hot_sources_are_those_with_most_edges_of_all_ranks(monkeypatch):
    """Of equal ones the first; of rows with no more edges than the mean none."""
    degree = np.array([5, 1, 9, 4, 0, 5], np.int32)  # 4 are no more than their own mean
    others = (np.array([1, 4]), np.array([7, 5], np.int32))

    class Ranks:
        """Another rank has eight rows before, with 12 edges and two candidates."""

        def allreduce(self, mine):
            return mine + (8 if mine == 6 else 12)

        def allgather(self, mine):
            return [others, mine]

    for most, wanted in ((9, [10, 1, 4, 8, 13, 11]), (4, [10, 1, 4, 8]), (2, [10, 1])):
        monkeypatch.setattr(part, "HOT", most)
        assert part._hot(Ranks(), degree, 8).tolist() == wanted


def test_json(graph, capsys):
    assert mgg("traverse", "cc", "g.h5", "--repeats", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == 120 and told["checked"] and len(told["runs"]) == 2
    assert all(run["seconds"] > 0 and run["source"] is None for run in told["runs"])
    assert mgg("traverse", "bfs", "g.h5", "--sources", 5, "--json") == 0
    found = [run["source"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert len(set(found)) == 5
    assert mgg("traverse", "bfs", "g.h5", "-o", "out.npy", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == {
        "parent": "out.parent.npy",
        "depth": "out.depth.npy",
    }


def test_pagerank_sums_to_one(graph, capsys):
    assert (
        mgg("traverse", "pagerank", "g.h5", "-o", "out.h5", "--dtype", "float64", "--tolerance", 1e-12) == 0
    )
    with h5py.File("out.h5") as file:
        assert abs(file["rank"][:].sum() - 1) < 1e-12
    told = refused(capsys, "traverse", "pagerank", "g.h5", "--tolerance", 1e-12)
    assert "--tolerance 1e-12" in told and "float64" in told
    assert "after 2 iterations" in refused(capsys, "traverse", "pagerank", "g.h5", "--iterations", 2)


def test_bad_input(graph, capsys):
    assert "has nodes 0 to 119" in refused(capsys, "traverse", "bfs", "g.h5", "--source", 120)
    assert "give one of them" in refused(capsys, "traverse", "bfs", "g.h5", "--source", 1, "--sources", 3)
    assert "nan is not a finite number" in refused(capsys, "traverse", "sssp", "g.h5", "--width", "nan")
    for word in ("nan", "inf"):
        assert "not a finite number" in refused(capsys, "traverse", "pagerank", "g.h5", "--tolerance", word)
    assert "--seed" in refused(capsys, "traverse", "sssp", "g.h5", "--seed", 2**64)
    assert "exists" in refused(capsys, "traverse", "cc", "g.h5", "-o", "g.h5")
    assert "absent.h5" in refused(capsys, "traverse", "cc", "absent.h5")
    assert "is for --backend cuda" in refused(capsys, "traverse", "cc", "g.h5", "--edges", "host")
    assert "cuda" in refused(capsys, "traverse", "cc", "g.h5", "--backend", "cuda").lower()
    assert "GPUs have no buckets" in refused(
        capsys, "traverse", "sssp", "g.h5", "--backend", "cuda", "--width", 3
    )
    writer.write("directed.h5", directed_weighted())
    told = refused(capsys, "traverse", "cc", "directed.h5")
    assert "is directed" in told and "--symmetric" in told
    ends = np.array([[0, 1], [1, 2]])
    writer.write("minus.h5", from_edges(*ends, 3, weight=np.array([1.0, -2.0])))
    assert "one is -2" in refused(capsys, "traverse", "sssp", "minus.h5", "--source", 0)
    writer.write("bare.h5", from_edges(np.zeros(0, int), np.zeros(0, int), 3))
    assert "no node has an edge" in refused(capsys, "traverse", "bfs", "bare.h5")


def test_an_isolated_source(graph, capsys):
    writer.write("bare.h5", from_edges(np.zeros(0, int), np.zeros(0, int), 3))
    assert mgg("traverse", "bfs", "bare.h5", "--source", 2, "-o", "out.h5") == 0
    with h5py.File("out.h5") as file:
        assert file["depth"][:].tolist() == [-1, -1, 0] and file["parent"][:].tolist() == [-1, -1, 2]


def test_a_wrong_result_ends_the_command(graph, monkeypatch):
    """And nothing is written."""

    def wrong(*_: object) -> None:
        raise checks.WrongResultError("node 1 is no child of its parent")

    monkeypatch.setattr(checks, "bfs", wrong)
    with pytest.raises(checks.WrongResultError):
        mgg("traverse", "bfs", "g.h5", "--source", 0, "-o", "out.h5")
    assert not list(graph_files("out"))
    assert mgg("traverse", "bfs", "g.h5", "--source", 0, "-o", "out.h5", "--no-check") == 0


def graph_files(name: str):
    from pathlib import Path

    return Path().glob(f"*{name}*")
