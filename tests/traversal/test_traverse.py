"""`mgg traverse`: what it prints, writes and refuses; each number under its label, times and sums of all ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from command import mgg, refused
from jobs import blocks, directed_weighted, renumbered

from mgg_hpc.data import writer
from mgg_hpc.data.graph import from_edges
from mgg_hpc.runtime import node_names
from mgg_hpc.tools import traverse
from mgg_hpc.traversal import checks, part, runs
from mgg_hpc.traversal.runs import Run


@pytest.fixture
def graph(tmp_path, monkeypatch, rng):
    """g.h5, whose rows have another order than its nodes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    made = blocks(120)
    writer.write("g.h5", renumbered(made, rng.permutation(120)))
    return made


def of_file(name: str = "out.h5") -> dict[str, np.ndarray]:
    with h5py.File(name) as file:
        return {key: file[key][:] for key in file} | {"source": file.attrs.get("source")}


# ---- the command ----------------------------------------------------------------------------------------


def test_results_have_the_users_numbering(graph, capsys):
    assert mgg("traverse", "bfs", "g.h5", "--source", 3, "-o", "out.h5") == 0
    out = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"source 3: \d+ of 120 nodes reached, deepest level \d+ \(\d+\.\d{3} ms\)", out[0])
    assert out[1:] == ["out.h5: parent [120]", "out.h5: depth [120]"]
    found = of_file()
    assert found["source"].tolist() == [3] and found["depth"][3] == 0 and found["parent"][3] == 3
    first = graph.indices[graph.indptr[3] : graph.indptr[4]]
    assert set(np.flatnonzero(found["depth"] == 1)) == set(first.tolist()) - {3}


def test_the_first_nodes_have_their_names(tmp_path, monkeypatch, capsys):
    """After a renumbering, too, and in the order of their first appearance where ranks are equal."""
    monkeypatch.chdir(tmp_path)
    Path("e.txt").write_text("a hub\nb hub\nc hub\nd hub\nx y\n")
    assert mgg("import", "e.txt", "--map-ids", "--symmetric", "-o", "g.h5") == 0
    for again in (False, True):
        if again:
            assert mgg("partition", "g.h5", "--order", "degree") == 0
        capsys.readouterr()
        assert mgg("traverse", "pagerank", "g.h5", "--repeats", 2) == 0
        head, *first, _, took = capsys.readouterr().out.splitlines()
        assert head == "the first of 7 nodes by rank:" and took.startswith("in ")
        assert [line.split()[0] for line in first] == ["hub", "x", "y", "a", "b"]
        ranks = [float(line.split()[1]) for line in first]
        assert ranks == sorted(ranks, reverse=True) and ranks[1] == pytest.approx(1 / 7, rel=1e-4)
        assert mgg("traverse", "pagerank", "g.h5", "--json") == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        nodes = [(1, "hub"), (5, "x"), (6, "y"), (0, "a"), (2, "b")]
        assert [(each["node"], each["name"]) for each in run["first"]] == nodes


def test_several_sources_have_a_column_each(graph):
    assert mgg("traverse", "sssp", "g.h5", "--source", 3, "--source", 8, "-o", "out.h5") == 0
    assert mgg("traverse", "sssp", "g.h5", "--source", 8, "-o", "one.npy") == 0
    with h5py.File("out.h5") as file:
        about = dict(file.attrs)
    assert (
        about["format"] == "mgg-traversal"
        and about["source"].tolist() == [3, 8]
        and len(about["seconds"]) == 2
    )
    distance = of_file()["distance"]
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
        whole, other = of_file(f"{kind}.h5"), of_file(f"{kind}-{hot}.h5")
        for name in whole.keys() - {"parent", "source"}:  # of several parents, whichever comes first
            np.testing.assert_allclose(other[name], whole[name], rtol=1e-5)


def test_json(graph, capsys):
    assert mgg("traverse", "cc", "g.h5", "--repeats", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == 120 and told["checked"] and len(told["runs"]) == 2
    assert all(run["seconds"] > 0 and run["source"] is None for run in told["runs"])
    assert mgg("traverse", "bfs", "g.h5", "--sources", 5, "--json") == 0
    assert len({run["source"] for run in json.loads(capsys.readouterr().out)["runs"]}) == 5
    assert mgg("traverse", "bfs", "g.h5", "-o", "out.npy", "--json") == 0
    files = {"parent": "out.parent.npy", "depth": "out.depth.npy"}
    assert json.loads(capsys.readouterr().out)["files"] == files


REFUSED = {
    "bfs g.h5 --source 120": "has nodes 0 to 119",
    "bfs g.h5 --source 1 --sources 3": "give one of them",
    "bfs absent.h5": "absent.h5",
    "bfs bare.h5": "no node has an edge",
    "sssp g.h5 --width nan": "nan is not a finite number",
    "sssp g.h5 --seed 18446744073709551616": "--seed",
    "sssp g.h5 --backend cuda --width 3": "GPUs have no buckets",
    "sssp minus.h5 --source 0": "one is -2",
    "pagerank g.h5 --tolerance nan": "not a finite number",
    "pagerank g.h5 --tolerance inf": "not a finite number",
    "pagerank g.h5 --tolerance 1e-12": "less than float32 resolves (1e-07); take --dtype float64",
    "pagerank g.h5 --iterations 2": "after 2 iterations",
    "cc g.h5 -o g.h5": "g.h5 is g.h5, which is read",
    "cc g.h5 -o bare.h5": "exists",
    "cc g.h5 --edges host": "is for --backend cuda",
    "cc g.h5 --backend cuda": "cuda",
    "cc directed.h5": "--symmetric",
}


def test_bad_input(graph, capsys):
    writer.write("directed.h5", directed_weighted())
    writer.write("minus.h5", from_edges(np.array([0, 1]), np.array([1, 2]), 3, weight=np.array([1.0, -2.0])))
    writer.write("bare.h5", from_edges(np.zeros(0, int), np.zeros(0, int), 3))
    for words, message in REFUSED.items():
        assert message.lower() in refused(capsys, "traverse", *words.split()).lower(), words
    assert mgg("traverse", "bfs", "bare.h5", "--source", 2, "-o", "out.h5") == 0
    assert of_file()["depth"].tolist() == [-1, -1, 0] and of_file()["parent"].tolist() == [-1, -1, 2]


def test_a_wrong_result_ends_the_command_and_nothing_is_written(graph, monkeypatch):
    def wrong(*_: object) -> None:
        raise checks.WrongResultError("node 1 is no child of its parent")

    monkeypatch.setattr(checks, "bfs", wrong)
    words = ("traverse", "bfs", "g.h5", "--source", 0, "-o", "out.h5")
    with pytest.raises(checks.WrongResultError):
        mgg(*words)
    assert not list(Path().glob("*out*"))
    assert mgg(*words, "--no-check") == 0


# ---- numbers of several ranks ---------------------------------------------------------------------------


class Ranks:
    """Three ranks, of which this is the second."""

    rank, size = 1, 3

    def __init__(self, first, last):
        self.others = first, last

    def Barrier(self):  # noqa: N802 - mpi4py's name
        pass

    def allgather(self, mine):
        first, last = (each(mine) for each in self.others)
        return [first, mine, last]


def test_the_hot_sources_are_those_with_most_edges_of_all_ranks(monkeypatch):
    """Of equal ones the first; of rows with no more edges than the mean none."""
    degree = np.array([5, 1, 9, 4, 0, 5], np.int32)  # 4 are no more than their own mean
    others = (np.array([1, 4]), np.array([7, 5], np.int32))
    # Another rank has eight rows before, with 12 edges and two candidates.
    comm = SimpleNamespace(
        allreduce=lambda mine: mine + (8 if mine == 6 else 12), allgather=lambda mine: [others, mine]
    )
    for most, wanted in ((9, [10, 1, 4, 8, 13, 11]), (4, [10, 1, 4, 8]), (2, [10, 1])):
        monkeypatch.setattr(part, "HOT", most)
        assert part._hot(comm, degree, 8).tolist() == wanted


def run_of(source=9):
    return Run(source, {}, seconds=0.25, edges=3_000_000, moved=5 << 20, reached=77, steps=8)


def test_a_line_for_each_run_and_a_document_of_all():
    facts = {"nodes": 11, "edges": 22, "directed": True}
    part = SimpleNamespace(name="g", comm=SimpleNamespace(size=33), **facts)
    costs = [traverse._cost(part, run_of(), verbose) for verbose in (False, True)]
    assert costs == ["250.000 ms", "250.000 ms, 12.0 million edges/s, 8 steps, 5.00 MiB crossed"]
    found = {"deepest": 55, "farthest": 6.5, "components": 1234, "largest": 66}
    reached = "source 9: 77 of 11 nodes reached"
    wanted = {
        "bfs": [f"{reached}, deepest level 55 ({costs[1]})"],
        "sssp": [f"{reached}, farthest distance 6.5 ({costs[1]})"],
        "cc": ["1,234 components; the largest has 66 of 11 nodes", *(f"in {cost}" for cost in costs)],
    }
    for kind, lines in wanted.items():
        given = costs if kind == "cc" else costs[1:]
        assert list(traverse._lines(kind, part, run_of(), found, given, {})) == lines
    answers = [{"deepest": 55}, {}]
    given = [run_of(), run_of(-1)], answers
    told = traverse._document(part, "bfs", True, *given, threads=44, weighted=False, names={})
    about = {"format": "mgg-traversal", "version": 1, "traversal": "bfs", "graph": "g", "checked": True}
    numbers = {"seconds": 0.25, "edges": 3_000_000, "reached": 77, "steps": 8, "bytes": 5 << 20}
    runs = [{"source": 9} | numbers | answers[0], {"source": None} | numbers]
    assert told == about | facts | {"weighted": False, "ranks": 33, "threads": 44, "runs": runs}


@pytest.mark.parametrize("mine", [0.5, 2.0, 9.0])
def test_times_are_of_the_slowest_rank_and_bytes_of_all(monkeypatch, mine):
    """Ranks with made-up clocks: the others take 1 and 4 s, and what this one took before does not count."""
    clock = iter([100.0, 100.0 + mine])
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    engine = SimpleNamespace(moved=1000)
    comm = Ranks(lambda given: 1.0 if given == mine else 20, lambda given: 4.0 if given == mine else 300)

    def call():
        engine.moved += 7
        return "found"

    assert runs._timed(SimpleNamespace(engine=engine, comm=comm), call) == (max(mine, 4.0), 327, "found")


def test_what_was_reached_is_of_all_ranks():
    graph = SimpleNamespace(out_degree=np.array([1, 10, 100]))
    part = SimpleNamespace(graph=graph, comm=Ranks(lambda n: n + 1000, lambda n: n + 20000))
    found = runs._run(part, 5, {"a": 1}, np.array([True, False, True]), 0.5, 6, 7)
    assert found == Run(5, {"a": 1}, 0.5, 3 * 101 + 21000, 6, 3 * 2 + 21000, 7)


@pytest.mark.parametrize("order", ["", "degree"])
@pytest.mark.parametrize(
    "names",
    [
        ["Bern", "Basel", "Chur", "Genf é", "Hub", "x", "y", "z"],
        ["700", "20", "3", "12", "1", "2", "4", "5"],
    ],
    ids=["names", "ids"],
)
def test_tables_and_sources_have_the_users_names(tmp_path, monkeypatch, capsys, rng, names, order):
    """Also those of parents and components, and in whatever order the rows lie: a hub comes first in memory."""
    monkeypatch.chdir(tmp_path)
    of_hub = [(4, 5, 1.0), (4, 6, 1.0), (4, 7, 1.0)]
    edges = rng.permutation([(0, 1, 1.5), (1, 2, 2.0), (0, 2, 5.0), (3, 3, 1.0), *of_hub])
    lines = [f"{names[int(u)]};{names[int(v)]};{length}" for u, v, length in edges]
    (tmp_path / "g.csv").write_text("\n".join([*lines, ""]))
    graph, table = tmp_path / "g.h5", tmp_path / "out.csv"
    words = ["--map-ids", "--delimiter", ";", "--symmetric", "-o", graph]
    assert mgg("import", tmp_path / "g.csv", *words) == 0
    assert not order or mgg("partition", graph, "--order", order) == 0

    def columns(*words: object) -> dict[str, dict[str, str]]:
        capsys.readouterr()
        assert mgg("traverse", *words, graph, "-o", table, "--force") == 0
        first, *rest = (line.split(",") for line in table.read_text().splitlines())
        return {row[0]: dict(zip(first[1:], row[1:], strict=True)) for row in rest}

    found = columns("sssp", "--source", names[2], "--source", names[3])
    assert set(found) == set(names)
    assert f"source {names[2]}: 3 of 8 nodes reached, farthest distance 3.5" in capsys.readouterr().out
    assert mgg("traverse", "bfs", graph, "--source", names[2], "--source", names[3], "--json") == 0
    told = json.loads(capsys.readouterr().out)["runs"]
    assert [run["source_name"] for run in told] == [names[2], names[3]]
    distance = {name: float(row[f"distance_{names[2]}"]) for name, row in found.items()}
    assert distance == dict(zip(names, [3.5, 2.0, 0.0, *[np.inf] * 5], strict=True))
    found = columns("bfs", "--source", names[0])
    none = "-1" if names[0].isdecimal() else ""
    assert [found[name]["parent"] for name in names] == [*[names[0]] * 3, *[none] * 5]
    found = columns("cc")
    for alike in (names[:3], names[3:4], names[4:]):
        (together,) = {found[name]["component"] for name in alike}
        assert together in alike
    monkeypatch.setattr(node_names, "COPIES", 1 << 40)
    if not names[0].isdecimal():
        said = refused(capsys, "traverse", "cc", graph, "-o", "more.csv")
        assert (
            "longest name of a node has 7 bytes, and with as much for each node a rank needs 57344.0" in said
        )
    kind = "id" if names[0].isdecimal() else "name"
    assert f"--source 1000: {graph} has no node with this {kind}" in refused(
        capsys, "traverse", "bfs", graph, "--source", "1000"
    )
