"""`mgg partition`: the bytes of a file renumbered by hand, whatever is in it and however little fits, and refusals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest
from command import mgg, refused
from data.graphs import random_graph
from jobs import renumbered
from tiers import long_except

from mgg_hpc.data import schema
from mgg_hpc.data.assembly import build_graph, runs, work
from mgg_hpc.data.edge_stream import EdgeBlock, Imported, Rows
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.readers import graph_file
from mgg_hpc.data.schema import Layout
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import Partition, write, write_bounds
from mgg_hpc.plan.row_ranges import edge_balanced, edge_counts
from mgg_hpc.tools import partition
from mgg_hpc.tools.partition import original_pattern

pytestmark = pytest.mark.usefixtures("here")

ORDERS = ["degree", "rcm", "community", "visits"]
MORE = {"visits": ("--fanouts", "2,1", "--batch-size", "5")}
CONTENTS = {
    "dense": {},
    "sparse": {"sparse": True, "symmetric": False, "weighted": True},
    "permuted": {"multilabel": True, "half": True, "wide_ids": True, "permuted": True},
}


@pytest.fixture
def little_memory(monkeypatch):
    """Blocks of some entries, so that there are many of them."""
    monkeypatch.setattr(graph_file, "BLOCK_EDGES", 16)
    monkeypatch.setattr(graph_file, "BLOCK_BYTES", 50)


def facts(path: str, capsys) -> dict:
    capsys.readouterr()
    assert mgg("info", path, "--json") == 0
    return json.loads(capsys.readouterr().out)


# ---- what is written ------------------------------------------------------------------------------------


def by_hand(graph: Graph, rows: np.ndarray, ids: np.ndarray | None) -> Graph:
    """A graph with its rows in another order, which have these ids of the user."""
    moved = renumbered(dataclasses.replace(graph, permutation=None), rows)
    return dataclasses.replace(moved, indices=moved.indices.astype(graph.indices.dtype), permutation=ids)


def by_edges(indptr: np.ndarray) -> Partition:
    bounds = edge_balanced(indptr, 3)
    return Partition(bounds, "edges", edge_counts(indptr, bounds).tolist())


def chances(graph: Graph, ids: np.ndarray, fanouts: list[int], batch: int) -> np.ndarray:
    """Chances that a batch reads rows, by the formula of `scores.visits`, edge by edge."""
    count = int(graph.train.sum())
    parts = min(4, math.ceil(count / batch))
    part = np.array([(int(each) * 0x9E3779B97F4A7C15 % 2**64 >> 32) % parts for each in ids])
    chance = np.zeros(graph.nodes)
    for chosen in (graph.train & (part == each) for each in range(parts)):
        found = min(1.0, batch / max(1, chosen.sum())) * chosen
        for fanout in fanouts:
            missed = 1 - found
            for row, (begin, end) in enumerate(itertools.pairwise(graph.indptr)):
                for source in graph.indices[begin:end]:
                    missed[source] *= 1 - min(1, fanout / (end - begin)) * found[row]
            found = 1 - missed
        chance += chosen.sum() / count * found
    return chance


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("method", ["given", *ORDERS])
def test_the_bytes_are_those_of_a_renumbering_by_hand(rng, content, method, little_memory, capsys):
    """And again where the order is undone, one that came with the file too."""
    graph = random_graph(rng, **CONTENTS[content])
    data = {"number": np.arange(graph.edges), "flow": rng.random((graph.edges, 3)).astype(np.float16)}
    graph = dataclasses.replace(graph, edge=data)
    write("g.h5", graph)
    identity = facts("g.h5", capsys)["uuid"]
    ids = np.arange(40) if graph.permutation is None else graph.permutation
    part = rng.integers(0, 3, 40)
    np.save("a.npy", part)
    words = (
        ("--assignment", "a.npy")
        if method == "given"
        else ("-n", "3", "--order", method, *MORE.get(method, ()))
    )
    assert mgg("partition", "g.h5", *words) == 0
    assert re.match(r"g.h5: nodes renumbered \(.*\) in \d+\.\d s\n", capsys.readouterr().out)
    with open_graph("g.h5") as opened:
        found = opened.stored(schema.PERMUTATION)
    assert sorted(found) == list(range(40)) != found.tolist()
    order = np.argsort(ids)[found]
    degree = np.diff(graph.indptr)
    keys = {"degree": lambda row: (-degree[row], ids[row]), "given": lambda row: part[ids[row]]}
    if method in keys:
        assert order.tolist() == sorted(range(40), key=keys[method])
    if method == "visits":
        assert np.diff(chances(graph, ids, [2, 1], 5)[order]).max() < 1e-6
    moved = by_hand(graph, order, found)
    bounds = np.searchsorted(np.sort(part), range(4))
    given = Partition(bounds, "given", edge_counts(moved.indptr, bounds).tolist())
    label = "given-3" if method == "given" else method
    partition = given if method == "given" else by_edges(moved.indptr)
    write("wanted.h5", moved, order=label, identity=identity, partitions=[partition])
    assert Path("g.h5").read_bytes() == Path("wanted.h5").read_bytes()
    assert mgg("verify", "g.h5") == mgg("info", "g.h5") == 0
    assert f"40, renumbered ({label})" in capsys.readouterr().out
    assert mgg("partition", "g.h5", *words) == 0
    assert f"g.h5: the nodes are in this order already ({label})\n" in capsys.readouterr().out
    assert Path("g.h5").read_bytes() == Path("wanted.h5").read_bytes()

    assert mgg("partition", "g.h5", "--order", "none") == 0
    plain = graph if graph.permutation is None else by_hand(graph, np.argsort(ids), None)
    partitions = [] if method == "given" else [by_edges(plain.indptr)]
    write("plain.h5", plain, partitions=partitions)
    assert Path("g.h5").read_bytes() == Path("plain.h5").read_bytes()


@pytest.mark.parametrize("content", CONTENTS)
def test_windows_of_any_size_give_the_same_rows(rng, content, little_memory):
    write("g.h5", random_graph(rng, **CONTENTS[content]))
    order = rng.permutation(40)
    with open_graph("g.h5") as opened:
        found = [
            graph_file.renumbered(opened, order, order, memory=size).rows for size in (1, 64, 700, 1 << 20)
        ]
        assert found[0].keys() > {schema.Y, *schema.MASKS, schema.PERMUTATION}
        for path, rows in found[-1].items():
            whole = np.concatenate(list(rows.pieces()))
            assert whole.shape == rows.layout.shape and whole.dtype == rows.layout.dtype
            for each in found[:-1]:
                np.testing.assert_array_equal(np.concatenate(list(each[path].pieces())), whole)


class SomeEdges:
    """An `EdgeStream` of six edges among five nodes."""

    where, nodes, total = "e", 5, 6

    def blocks(self, mark=None, progress=None):
        yield EdgeBlock(np.array([0, 1, 2, 3, 3, 2]), np.array([4, 4, 4, 1, 2, 0]))


def test_names_and_numbers_of_nodes_go_along():
    """The user's ids of nodes are rows like others: here of nodes with names of different lengths."""
    names, numbers = ["a", "", "long name", "b7", "é"], np.array([90, 80, 70, 60, 50])
    text = [each.encode() for each in names]
    arrays = {
        schema.NODE_ID: numbers,
        schema.NAME_OFFSETS: np.concatenate([[0], np.cumsum([len(each) for each in text])]),
        schema.NAME_TEXT: np.frombuffer(b"".join(text), np.uint8),
    }
    for paths in ([schema.NODE_ID], [schema.NAME_OFFSETS, schema.NAME_TEXT]):
        rows = {
            path: Rows(Layout(arrays[path].dtype, arrays[path].shape), lambda path=path: iter([arrays[path]]))
            for path in paths
        }
        build_graph(Imported("g", SomeEdges(), rows), Path("g.h5"), memory=1 << 30, force=True)
        assert mgg("partition", "g.h5", "--order", "degree") == 0
        with open_graph("g.h5") as opened:
            ids = opened.stored(schema.PERMUTATION)
            assert ids.tolist() == [4, 0, 1, 2, 3]
            if schema.NODE_ID in paths:
                assert opened.stored(schema.NODE_ID).tolist() == numbers[ids].tolist()
            else:
                ends, held = (opened.stored(path) for path in (schema.NAME_OFFSETS, schema.NAME_TEXT))
                found = [held[low:high].tobytes().decode() for low, high in itertools.pairwise(ends)]
                assert found == [names[each] for each in ids]


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_orders_see_the_symmetric_pattern_under_the_ids_of_the_user(rng, directed, permuted, little_memory):
    graph = random_graph(rng, symmetric=not directed, permuted=permuted)
    write("g.h5", graph)
    ids = np.arange(40) if graph.permutation is None else graph.permutation
    rows = np.repeat(np.arange(40), np.diff(graph.indptr))
    wanted = csr_from_edges(ids[graph.indices], ids[rows], 40, symmetric=directed)
    with open_graph("g.h5") as opened, original_pattern(opened, memory=1 << 30) as pattern:
        indptr, indices = pattern.whole(np.int32)
        np.testing.assert_array_equal(indptr, wanted[0])
        np.testing.assert_array_equal(indices, wanted[1])
        assert pattern.weight[ids].tolist() == (1 + np.diff(graph.indptr)).tolist()
    assert [path.name for path in Path().iterdir()] == ["g.h5"]


def test_blocks_of_edges_are_of_few_bytes_whatever_data_weigh(rng, monkeypatch):
    """Of 32 MiB at most, with 16 KiB for each of 2,500 edges here; of one edge where that takes more."""
    indptr, indices, _ = csr_from_edges(*rng.integers(0, 40, (2, 2500)), 40)
    weight = rng.random(2500).astype(np.float32)
    flow = np.repeat(np.arange(2500, dtype=np.uint16)[:, None], 8192, axis=1)
    write("g.h5", Graph("g", indptr, indices, weight=weight, edge={"flow": flow}))
    with open_graph("g.h5") as opened:
        blocks = list(graph_file.NumberedEdges(opened, None).blocks())
        arrays = [(each.sources, each.weight, each.data["flow"]) for each in blocks]
        assert max(sum(part.nbytes for part in each) for each in arrays) <= 32 << 20
        assert len(blocks) <= 4
        np.testing.assert_array_equal(np.concatenate([each[0] for each in arrays]), indices)
        np.testing.assert_array_equal(np.concatenate([each[2] for each in arrays]), flow)
        without = list(graph_file.NumberedEdges(opened, None, data=False).blocks())
        assert [len(each) for each in without] == [2500]
        monkeypatch.setattr(graph_file, "EDGES_BYTES", 16 << 10)
        found = [len(each) for each in graph_file.NumberedEdges(opened, None).blocks(mark=2490)]
        assert found == [1] * 10


def test_rows_that_are_not_sorted_are_seen_sorted(rng, little_memory):
    indptr, indices = (
        np.array([0, 3, 3, 30, 34]),
        np.concatenate([[2, 0, 1], rng.integers(0, 4, 27), [3, 2, 1, 0]]),
    )
    write("g.h5", Graph("g", indptr, indices.astype(np.int32)))
    with open_graph("g.h5") as opened:
        found = list(graph_file.slices(opened))
    wanted = [sorted(indices[low:high]) for low, high in itertools.pairwise(indptr)]
    assert np.concatenate([each[2] for each in found]).tolist() == np.concatenate(wanted).tolist()


def test_bounds_follow_the_rows(rng, capsys):
    """Ranges by edges are found again for the new rows; others go, and it is said."""
    write("g.h5", random_graph(rng, nodes=200, edges=2000, symmetric=False))
    assert mgg("partition", "g.h5", "-n", "3") == 0
    write_bounds("g.h5", 5, np.array([0, 9, 40, 41, 42, 200]), "by hand", [1, 2, 3, 4, 5])
    capsys.readouterr()
    assert mgg("partition", "g.h5", "-n", "4", "--order", "degree") == 0
    out = capsys.readouterr().out
    assert "dropped the bounds of 5 parts" in out and "g.h5: 4 parts by edges" in out
    with open_graph("g.h5") as opened:
        indptr = opened.indptr()
        assert sorted(opened.partitions) == [3, 4]
        for parts, (method, counts) in opened.partitions.items():
            bounds = edge_balanced(indptr, parts)
            assert opened.bounds(parts).tolist() == bounds.tolist()
            assert (method, counts) == ("edges", edge_counts(indptr, bounds).tolist())
    assert mgg("verify", "g.h5") == 0
    written = Path("g.h5").read_bytes()
    assert mgg("partition", "g.h5", "-n", "2") == 0  # without --order the order stays
    assert facts("g.h5", capsys)["order"] == "degree"
    assert mgg("partition", "g.h5", "-n", "6", "--order", "degree") == 0  # already so: only the ranges come
    assert [part["parts"] for part in facts("g.h5", capsys)["partitions"]] == [2, 3, 4, 6]
    assert Path("g.h5").read_bytes() != written


@pytest.mark.parametrize("nodes, edges", [(1, []), (1, [0, 0]), (5, [])])
@pytest.mark.parametrize("method", ["none", *ORDERS[:3]])
def test_graphs_of_next_to_nothing(nodes, edges, method, capsys):
    indptr = np.append(np.zeros(nodes, np.int64), len(edges))
    write("g.h5", Graph("g", indptr, np.array(edges, np.int32)))
    assert mgg("partition", "g.h5", "-n", "2", "--order", method) == 0
    assert mgg("verify", "g.h5") == 0
    assert facts("g.h5", capsys)["edges"] == len(edges)


def test_what_is_printed_is_what_was_gained(rng, capsys):
    graph = random_graph(rng, nodes=3000, edges=9000)
    write("g.h5", graph)
    assert mgg("partition", "g.h5", "--order", "community") == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # not a terminal
    found = re.findall(r"([\d.]+)%? before, ([\d.]+)%? after", printed.out)
    with open_graph("g.h5") as opened:
        rows = opened.slice(0, 3000)
    for at, part in enumerate((graph, rows)):
        lengths = np.abs(np.repeat(np.arange(3000), np.diff(part.indptr)) - part.indices)
        assert float(found[0][at]) == pytest.approx(np.log2(1 + lengths).mean(), abs=0.051)
        assert float(found[1][at]) == pytest.approx(100 * (lengths <= 1024).mean(), abs=0.051)


@pytest.mark.parametrize("method", ["metis", "ldg"])
def test_a_partitioner_s_parts_are_ranges_of_the_file(rng, method, capsys):
    """Its bounds are recorded with its name, an order holds within its parts, and asking again changes nothing."""
    graph = random_graph(rng, nodes=400, edges=3000)
    write("g.h5", graph)
    before = Path("g.h5").read_bytes()
    assert mgg("partition", "g.h5", "-n", "4", "--method", method, "--order", "degree") == 0
    assert f"g.h5: 4 parts by {method}" in capsys.readouterr().out
    with open_graph("g.h5") as opened:
        bounds, degree, ids = opened.bounds(4), np.diff(opened.indptr()), opened.stored(schema.PERMUTATION)
        assert (opened.order, opened.partitions[4][0]) == (f"{method}-4", method)
        assert opened.partitions[4][1] == edge_counts(opened.indptr(), bounds).tolist()
    for low, high in itertools.pairwise(bounds):
        wanted = sorted(ids[low:high], key=lambda row: (-np.diff(graph.indptr)[row], row))
        assert (
            ids[low:high].tolist() == wanted and degree[low:high].tolist() == sorted(degree[low:high])[::-1]
        )
    written = Path("g.h5").read_bytes()
    assert mgg("verify", "g.h5") == 0
    assert mgg("partition", "g.h5", "-n", "4", "--method", method) == 0
    assert f"in this order already ({method}-4)" in capsys.readouterr().out
    assert Path("g.h5").read_bytes() == written
    assert mgg("partition", "g.h5", "-n", "2", "--order", "none") == 0
    assert f"dropped the bounds of 4 parts, made by the method {method}" in capsys.readouterr().out
    with open_graph("g.h5") as opened:
        assert list(opened.partitions) == [2]
    assert len(Path("g.h5").read_bytes()) > len(before)


# ---- what is refused, and commands that are stopped ------------------------------------------------------


REFUSED = {
    "g.h5": "nothing to do; expected -n with a number of parts",
    "g.h5 -n 0": "0 is not in the range",
    "g.h5 --order visits": "--order visits needs --fanouts",
    "g.h5 --order visits --fanouts 3,0": "each at least 1, or -1 for all edges",
    "g.h5 --order degree --fanouts 3": "are of --order visits",
    "plain.h5 --order visits --fanouts 3": "is for graphs with a split",
    "g.h5 --order size": "'size' is not one of 'none', 'degree'",
    "g.h5 --order rcm --memory 100M": "and has 100 MiB: give more by --memory",
    "g.h5 --method ldg": "--method ldg needs -n",
    "g.h5 -n 2 --method given": "--method given needs --assignment",
    "g.h5 --assignment a.npy --method metis": "--assignment does not go with --method metis",
    "none.h5 --order rcm": "none.h5 does not exist",
    "cut.h5 --order rcm": "cut.h5 is not a graph file",
    "damaged.h5 --order rcm": "/node/x is damaged",
    "g.h5 --assignment none.npy": "none.npy cannot be read: No such file",
    "g.h5 --assignment text.npy -n 2": "text.npy is not a NumPy array",
    "g.h5 --assignment short.npy": "short.npy is int64 [39]; expected the part of each node, integers [40]",
    "g.h5 --assignment float.npy": "float.npy is float64 [40]; expected the part of each node",
    "g.h5 --assignment high.npy -n 4": "high.npy: row 39 has the part 4; expected 0 .. 3",
    "g.h5 --assignment low.npy": "low.npy: row 39 has the part -1; expected 0 .. 0",
}


def test_wrong_input_is_one_line(rng, capsys, monkeypatch):
    write("g.h5", random_graph(rng))
    write("plain.h5", Graph("plain", np.zeros(3, np.int64), np.zeros(0, np.int32)))
    Path("cut.h5").write_bytes(Path("g.h5").read_bytes()[:-100])
    shutil.copyfile("g.h5", "damaged.h5")
    with h5py.File("damaged.h5", "r+") as file:
        file["node/x"][3, 1] += 1
    Path("text.npy").write_text("0 1")
    np.save("short.npy", np.zeros(39, np.int64))
    np.save("float.npy", np.zeros(40))
    np.save("high.npy", np.append(np.zeros(39, np.int64), 4))
    np.save("low.npy", np.append(np.zeros(39, np.int64), -1))
    for words, message in REFUSED.items():
        assert message in refused(capsys, "partition", *words.split()), words
    monkeypatch.setitem(sys.modules, "mgg_hpc._graph", None)
    monkeypatch.delattr("mgg_hpc._graph", raising=False)
    assert "does not load" in refused(capsys, "partition", "g.h5", "--order", "community")
    monkeypatch.setattr("os.sysconf", lambda _: 4)
    line = refused(capsys, "partition", "g.h5", "--order", "rcm")
    assert "takes 293 MiB of memory at least, and has 0 MiB: give more by --memory" in line


@pytest.mark.parametrize("large", long_except([4096, 10**9, 10**13, 2**63 + 5], 2**63 + 5))
def test_an_assignment_has_as_many_parts_as_ranks_may_be(rng, large, capsys):
    """As -n has them. Parts that are few enough may have large numbers, of any type of integers."""
    write("g.h5", random_graph(rng))
    parts = np.zeros(40, np.uint64)
    parts[[7, 9]] = 4095, large
    np.save("a.npy", parts)
    said = refused(capsys, "partition", "g.h5", "--assignment", "a.npy")
    assert f"a.npy: row 9 has the part {large}; expected 0 .. 4095, for at most 4,096 parts" in said
    parts[9] = 0
    np.save("a.npy", parts)
    assert mgg("partition", "g.h5", "--assignment", "a.npy") == 0
    with open_graph("g.h5") as opened:
        assert list(opened.partitions) == [4096]


@pytest.mark.parametrize("dataset", ["graph/indices", "graph/indptr", "node/y", "order/permutation"])
def test_a_damaged_file_is_named_and_stays(rng, dataset, capsys):
    write("g.h5", random_graph(rng, permuted=True))
    with h5py.File("g.h5", "r+") as file:
        values = file[dataset][:]
        other = [0, 0] if (values[[3, 4]] == 1).all() else [1, 1]
        values[[3, 4]] = values[[4, 3]] if dataset == "order/permutation" else other
        file[dataset][:] = values
    before = Path("g.h5").read_bytes()
    assert dataset in refused(capsys, "partition", "g.h5", "--order", "rcm")
    assert Path("g.h5").read_bytes() == before and [path.name for path in Path().iterdir()] == ["g.h5"]


@pytest.mark.parametrize("phase", ["reading", "sorting", "writing"])
def test_an_interrupted_renumbering_leaves_nothing(rng, monkeypatch, capsys, little_memory, phase):
    """Ctrl-C while edges lie in a folder beside the file, with which no later command would go on."""
    monkeypatch.setattr(runs, "LEAST_EDGES", 40)
    monkeypatch.setattr(runs, "MOST_EDGES", 40)
    write("g.h5", random_graph(rng))
    before, seen = Path("g.h5").read_bytes(), []

    def interrupted(name, done, total):
        if name == phase and work.folder_of(Path("g.h5")).is_dir():
            seen.append(name)
            raise KeyboardInterrupt

    monkeypatch.setattr(partition, "phases", lambda: nullcontext(interrupted))
    assert mgg("partition", "g.h5", "--order", "degree") == 1
    assert capsys.readouterr().err.strip() == "mgg: error: interrupted" and seen == [phase]
    assert [path.name for path in Path().iterdir()] == ["g.h5"] and Path("g.h5").read_bytes() == before


@pytest.mark.slow
def test_a_killed_command_leaves_the_file_whole(rng):
    """Killed at any instant, the file is the old one or the new one, and sound."""
    write("g.h5", random_graph(rng, nodes=20_000, edges=300_000))
    before = Path("g.h5").read_bytes()
    script = """
        import time
        from mgg_hpc.__main__ import main
        from mgg_hpc.data import writer
        replace_texts = writer.replace_texts
        def slowly(*arguments):
            replace_texts(*arguments)
            print("written", flush=True)
            time.sleep(60)
        writer.replace_texts = slowly
        main(["partition", "g.h5", "--order", "degree"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert Path("g.h5").read_bytes() == before
    (left,) = [path for path in Path().iterdir() if path.name != "g.h5"]
    assert left.name.startswith(".g.h5.") and left.suffix == ".tmp"  # what `mgg clean` removes
