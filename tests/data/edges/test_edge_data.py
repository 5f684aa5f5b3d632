"""Data of edges: sorted with the edges, written, read in slices, checked, renumbered; or refused by name."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest

from mgg_hpc.__main__ import main
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.store import GraphSlice, open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write, write_bounds
from mgg_hpc.tools.describe import describe

from ..graphs import flip_byte, refused, same

NODES, LISTED = 30, 200


def drawn(rng) -> dict[str, np.ndarray]:
    """Data of LISTED edges in every kind of type; "number" tells them apart."""
    return {
        "number": np.arange(LISTED),
        "flow-rate": rng.standard_normal((LISTED, 3)).astype(np.float32),
        "half": rng.standard_normal((LISTED, 2, 2)).astype(np.float16),
        "class": rng.integers(7, size=LISTED).astype(np.uint8),
    }


@pytest.fixture
def ends(rng) -> np.ndarray:
    return rng.integers(NODES, size=(2, LISTED))


@pytest.fixture
def graph(rng, ends) -> Graph:
    """Directed, with duplicates, self loops and weights."""
    weight = rng.standard_normal(LISTED).astype(np.float32)
    return from_edges(*ends, NODES, weight=weight, edge=drawn(rng))


def destinations(graph: Graph | GraphSlice) -> np.ndarray:
    return np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))


@pytest.mark.parametrize(
    "options", [{}, {"drop_duplicates": True}, {"drop_self_loops": True}, {"symmetric": True}]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_data_goes_where_its_edge_goes(rng, ends, options, weighted):
    """Of duplicates the first one's stays; both directions of an edge get the same."""
    data = drawn(rng)
    weight = data["flow-rate"][:, 0] if weighted else None
    graph = from_edges(*ends, NODES, weight=weight, edge=data, **options)
    number = graph.edge["number"]
    pairs = list(zip(*ends.tolist(), strict=True))
    wanted: dict[tuple[int, int], list[int]] = {}
    for i, (u, v) in enumerate(pairs):
        if u == v and options.get("drop_self_loops"):
            continue
        wanted.setdefault((u, v), []).append(i)
        if options.get("symmetric"):
            wanted.setdefault((v, u), []).append(i)
    found: dict[tuple[int, int], list[int]] = {}
    for u, v, i in zip(graph.indices.tolist(), destinations(graph).tolist(), number.tolist(), strict=True):
        found.setdefault((u, v), []).append(i)
    if {"symmetric", "drop_duplicates"} & options.keys():
        wanted = {pair: numbers[:1] for pair, numbers in wanted.items()}
    assert found == wanted
    for name, values in data.items():
        assert same(graph.edge[name], values[number])
    assert same(graph.weight, None if weight is None else weight[number])


def test_a_file_has_the_data_of_its_edges(graph, rng, path):
    write(path, graph)
    write_bounds(path, 2, np.array([0, 11, NODES]), "given", [1, 2])
    with open_graph(path) as opened:
        assert opened.edge_data == tuple(sorted(graph.edge))
        for lo, hi in [(0, NODES), (4, 4), (NODES, NODES), (3, 17)]:
            run = slice(int(graph.indptr[lo]), int(graph.indptr[hi]))
            part = opened.slice(lo, hi)
            assert part.edge.keys() == graph.edge.keys()
            assert all(same(part.edge[name], values[run]) for name, values in graph.edge.items())
        assert opened.slice(3, 17, edge_data=["class"]).edge.keys() == {"class"}
        assert opened.slice(3, 17, edge_data=()).edge == {}
    facts = verify(path)
    assert "edge/flow-rate is finite" in facts and "edge/half is finite" in facts
    assert describe(path)["edge_data"]["half"] == {"type": "float16", "shape": [2, 2]}
    flip_byte(path, "edge/class", 5)
    with open_graph(path) as opened, refused("/edge/class is damaged: the digest of block 0"):
        opened.slice(0, NODES)


def test_directions_of_an_undirected_graph_may_differ(rng, ends, path):
    graph = from_edges(*ends, NODES, symmetric=True)
    data = rng.standard_normal((graph.edges, 2)).astype(np.float32)
    write(path, replace(graph, edge={"flow": data}))
    assert any("reverse" in fact for fact in verify(path))


def test_what_is_not_finite_is_named(graph, path):
    values = graph.edge["flow-rate"].copy()
    values[77, 2] = np.inf
    row = int(destinations(graph)[77])
    said = rf"/edge/flow-rate has inf in row {row} \(entry 77, column 2\); expected finite numbers"
    with refused(said):
        write(path, replace(graph, edge={"flow-rate": values}))
    write(path, graph)
    with h5py.File(path, "r+") as file:
        file["edge/flow-rate"][77, 2] = np.inf
    with refused(said):
        verify(path)
    with open_graph(path) as opened, refused(said):
        opened.slice(row, row + 1)


@pytest.mark.parametrize(
    ("edge", "said"),
    [
        ({"a b": np.zeros(LISTED, np.int8)}, "named 'a b'; expected 1 to 64 letters, digits, _ and -"),
        ({"": np.zeros(LISTED, np.int8)}, "named ''"),
        ({"x" * 65: np.zeros(LISTED, np.int8)}, "named 'xxx"),
        ({"a/b": np.zeros(LISTED, np.int8)}, "named 'a/b'"),
        ({"weight": np.zeros(LISTED, np.float32)}, "named 'weight'; expected weights in /graph/weight"),
        (
            {"d": np.zeros(LISTED)},
            r"/edge/d is float64 \[200\]; expected float32, float16 or integers \[200, ...\]",
        ),
        ({"d": np.zeros(LISTED, bool)}, "/edge/d is bool"),
        ({"d": np.zeros((LISTED - 1, 2), np.float32)}, r"/edge/d is float32 \[199, 2\]"),
        ({"d": np.zeros((LISTED, 0), np.float32)}, r"/edge/d is float32 \[200, 0\]"),
        (
            {str(i): np.zeros(LISTED, np.int8) for i in range(257)},
            "has 257 kinds of data of edges; expected 256",
        ),
    ],
)
def test_data_that_the_format_has_not(graph, path, edge, said):
    with refused(said):
        write(path, replace(graph, edge=edge))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda edge: edge.create_group("more"), "/edge/more is not an array"),
        (lambda edge: edge.create_dataset("a b", data=[1]), "named 'a b'"),
        (lambda edge: edge.create_dataset("more", data=np.zeros(3, "i4")), "/digest/edge/more is missing"),
        (lambda edge: edge.__setitem__("more", h5py.SoftLink("/graph/weight")), "/edge/more is a link"),
        (lambda edge: edge.__delitem__("class") or edge.create_dataset("class", data=np.zeros(3, "u1")),
         r"/edge/class is uint8 \[3\]; expected float32, float16 or integers"),
    ],
)  # fmt: skip
def test_files_with_other_things_among_it_are_refused(graph, path, change, said):
    write(path, graph)
    with h5py.File(path, "r+") as file:
        change(file["edge"])
    with refused(said):
        open_graph(path)


def test_files_of_version_1_load_as_they_did(graph, path):
    """The version has no data of edges: a group of that name is passed over."""
    write(path, graph)
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 1
        del file.attrs["symmetric"]
    with open_graph(path) as opened:
        part = opened.slice(0, NODES)
        assert same(part.indices, graph.indices) and same(part.weight, graph.weight)
        assert part.edge == {}
    verify(path)


def test_as_many_names_as_the_format_takes(graph, path):
    edge = {f"d{i}": np.full(LISTED, i, np.int16) for i in range(256)}
    write(path, replace(graph, edge=edge))
    with open_graph(path) as opened:
        assert all((values == int(name[1:])).all() for name, values in opened.slice(0, NODES).edge.items())
        assert len(opened.edge_data) == 256


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_renumbered_rows_keep_the_data_of_their_edges(rng, ends, path, directed, weighted):
    """Each edge, by the imported ids of its ends, has what it had; an undirected graph's directions differ."""
    weight = np.arange(LISTED, dtype=np.float32) if weighted else None
    graph = from_edges(*ends, NODES, weight=weight, edge=drawn(rng), symmetric=not directed)
    graph = replace(graph, edge={**graph.edge, "number": np.arange(graph.edges)})
    write(path, graph)
    assert main(["partition", str(path), "--order", "degree"]) == 0
    with open_graph(path) as opened:
        moved = opened.slice(0, NODES)
    assert (moved.ids != np.arange(NODES)).any()
    number = moved.edge["number"]
    assert same(np.sort(number), np.arange(graph.edges))
    assert same(moved.ids[moved.indices], graph.indices[number].astype(np.int64))
    assert same(moved.ids[destinations(moved)], destinations(graph)[number])
    assert same(moved.weight, None if graph.weight is None else graph.weight[number])
    assert all(same(values, graph.edge[name][number]) for name, values in moved.edge.items())
    assert moved.edge.keys() == graph.edge.keys()
