"""Renumbered files: the bytes of the graph renumbered by hand, whatever is in it and however little fits."""

from __future__ import annotations

import dataclasses
import itertools
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
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.data.readers import graph_file
from mgg_hpc.data.schema import Layout
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.streams import EdgeBlock, Imported, Rows
from mgg_hpc.data.writer import Partition, write
from mgg_hpc.plan.ranges import edge_balanced, edge_counts
from mgg_hpc.tools.partition import renumber
from mgg_hpc.tools.partition.structure import original_pattern

CONTENTS = {
    "dense": {},
    "sparse": {"sparse": True, "symmetric": False, "weighted": True},
    "permuted": {"multilabel": True, "half": True, "wide_ids": True, "permuted": True},
}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def little_memory(monkeypatch):
    """Blocks of some entries, so that there are many of them."""
    monkeypatch.setattr(graph_file, "BLOCK_EDGES", 16)
    monkeypatch.setattr(graph_file, "BLOCK_BYTES", 50)


class SomeEdges:
    """An `EdgeStream` of six edges among five nodes."""

    where, nodes, total = "e", 5, 6

    def blocks(self, mark=None, progress=None):
        yield EdgeBlock(np.array([0, 1, 2, 3, 3, 2]), np.array([4, 4, 4, 1, 2, 0]))


def with_edge_data(rng, graph: Graph) -> Graph:
    data = {"number": np.arange(graph.edges), "flow": rng.random((graph.edges, 3)).astype(np.float16)}
    return dataclasses.replace(graph, edge=data)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("method", ["given", "degree"])
def test_the_bytes_are_those_of_a_renumbering_by_hand(rng, content, method, little_memory):
    graph = with_edge_data(rng, random_graph(rng, **CONTENTS[content]))
    write("g.h5", graph)
    with open_graph("g.h5") as opened:
        identity = opened.uuid
    ids = np.arange(40) if graph.permutation is None else graph.permutation
    degree = np.diff(graph.indptr)
    if method == "degree":
        order = np.array(sorted(range(40), key=lambda row: (-degree[row], ids[row])))
        assert mgg("partition", "g.h5", "-n", "3", "--order", "degree") == 0
    else:
        part = rng.integers(0, 3, 40)
        np.save("a.npy", part)
        order = np.array(sorted(range(40), key=lambda row: part[ids[row]]))
        assert mgg("partition", "g.h5", "--assignment", "a.npy") == 0
    moved = renumbered(dataclasses.replace(graph, permutation=None), order)
    indices = moved.indices.astype(graph.indices.dtype)
    moved = dataclasses.replace(moved, indices=indices, permutation=ids[order])
    bounds = edge_balanced(moved.indptr, 3)
    if method == "given":
        bounds = np.array([sum(part < each) for each in range(4)])
    name = "edges" if method == "degree" else "given"
    partition = Partition(bounds, name, edge_counts(moved.indptr, bounds).tolist())
    label = "degree" if method == "degree" else "given-3"
    write("wanted.h5", moved, order=label, identity=identity, partitions=[partition])
    assert Path("g.h5").read_bytes() == Path("wanted.h5").read_bytes()


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

    monkeypatch.setattr(renumber, "phases", lambda: nullcontext(interrupted))
    assert mgg("partition", "g.h5", "--order", "degree") == 1
    assert capsys.readouterr().err.strip() == "mgg: error: interrupted" and seen == [phase]
    assert [path.name for path in Path().iterdir()] == ["g.h5"] and Path("g.h5").read_bytes() == before


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


def test_a_wrong_assignment_is_one_line(rng, capsys):
    write("g.h5", random_graph(rng))
    np.save("short.npy", np.zeros(39, np.int64))
    np.save("float.npy", np.zeros(40))
    np.save("high.npy", np.append(np.zeros(39, np.int64), 4))
    np.save("low.npy", np.append(np.zeros(39, np.int64), -1))
    Path("text.npy").write_text("0 1")
    for arguments, message in [
        ("--assignment none.npy", "none.npy cannot be read: No such file"),
        ("--assignment text.npy -n 2", "text.npy is not a NumPy array"),
        ("--assignment short.npy", "short.npy is int64 [39]; expected the part of each node, integers [40]"),
        ("--assignment float.npy", "float.npy is float64 [40]; expected the part of each node"),
        ("--assignment high.npy -n 4", "high.npy: row 39 has the part 4; expected 0 .. 3"),
        ("--assignment low.npy", "low.npy: row 39 has the part -1; expected 0 .. 0"),
    ]:
        assert message in refused(capsys, "partition", "g.h5", *arguments.split())


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
