"""Data of edges and names of nodes in graph files: written, read in slices, checked; or refused by name."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from mgg_hpc.data import row_files, schema
from mgg_hpc.data.graph import Graph, from_edges
from mgg_hpc.data.row_files import kind_of_names, longest_name, read_names, rows_of_names
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.verify import verify
from mgg_hpc.data.writer import write, write_bounds
from mgg_hpc.tools.files import describe

from .graphs import flip_byte, refused, rows_of_edges, same, write_with

NODES, LISTED = 30, 200


@pytest.fixture
def graph(rng) -> Graph:
    """Directed, with duplicates, self loops and weights, and data of edges in every kind of type."""
    edge = {
        "number": np.arange(LISTED),
        "flow-rate": rng.standard_normal((LISTED, 3)).astype(np.float32),
        "half": rng.standard_normal((LISTED, 2, 2)).astype(np.float16),
        "class": rng.integers(7, size=LISTED).astype(np.uint8),
    }
    weight = rng.standard_normal(LISTED).astype(np.float32)
    return from_edges(*rng.integers(NODES, size=(2, LISTED)), NODES, weight=weight, edge=edge)


def test_a_file_has_the_data_of_its_edges(graph, path):
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


def test_what_is_not_finite_is_named(graph, path):
    graph.edge["flow-rate"][77, 2] = np.inf
    row = int(rows_of_edges(graph.indptr)[77])
    said = rf"/edge/flow-rate has inf in row {row} \(entry 77, column 2\); expected finite numbers"
    with refused(said):
        write(path, graph)
    flow = graph.edge.pop("flow-rate")
    write_with(path, graph, {"edge/flow-rate": flow})
    with open_graph(path) as opened, refused(said):
        opened.slice(row, row + 1)


DATA = {
    "a long name": ({"x" * 65: np.zeros(LISTED, np.int8)}, "named 'xxx"),
    "a blank": ({"a b": np.zeros(LISTED, np.int8)}, "named 'a b'; expected 1 to 64 letters, digits, _ and -"),
    "weights": ({"weight": np.zeros(LISTED, np.float32)}, "named 'weight'; expected weights in /graph/weight"),
    "doubles": (
        {"d": np.zeros(LISTED)},
        r"/edge/d is float64 \[200\]; expected float32, float16 or integers \[200, ...\]",
    ),
    "too few": ({"d": np.zeros((LISTED - 1, 2), np.float32)}, r"/edge/d is float32 \[199, 2\]"),
    "no columns": ({"d": np.zeros((LISTED, 0), np.float32)}, r"/edge/d is float32 \[200, 0\]"),
    "many": ({str(i): np.zeros(LISTED, np.int8) for i in range(257)}, "has 257 kinds of data of edges; expected 256"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_data_that_the_format_has_not(graph, path, case):
    edge, said = DATA[case]
    with refused(said):
        write(path, replace(graph, edge=edge))
    assert not path.exists()


def test_as_many_kinds_as_the_format_takes_and_directions_that_differ(rng, path):
    graph = from_edges(*rng.integers(NODES, size=(2, LISTED)), NODES, symmetric=True)
    edge = {f"d{i}": np.arange(i, i + graph.edges, dtype=np.int16) for i in range(256)}
    write(path, replace(graph, edge=edge))
    assert any("reverse" in fact for fact in verify(path))
    with open_graph(path) as opened:
        found = opened.slice(0, NODES).edge
    assert found.keys() == edge.keys() and all(same(found[name], values) for name, values in edge.items())


# --- names of nodes

WORDS = ["a", "", "größer", "", "日本", "x y", "🜚", ""]


def eight() -> Graph:
    return from_edges(np.arange(8), (np.arange(8) + 1) % 8, 8)


def as_csr(words: list[bytes]) -> dict[str, np.ndarray]:
    text = np.frombuffer(b"".join(words), np.uint8)
    return {schema.NAME_OFFSETS: np.cumsum([0, *map(len, words)]), schema.NAME_TEXT: text}


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_names_are_read_in_slices(path, monkeypatch, rows):
    monkeypatch.setattr(row_files, "NAMED_ROWS", rows)
    monkeypatch.setattr(row_files, "BLOCK_BYTES", 2 * rows)
    for kind, arrays, wanted in [
        ("name", as_csr([word.encode() for word in WORDS]), [word.encode() for word in WORDS]),
        ("id", {schema.NODE_ID: np.arange(8) * 10**12}, list(range(0, 8 * 10**12, 10**12))),
    ]:
        write_with(path, eight(), arrays)
        assert any("UTF-8" in fact for fact in verify(path)) == (kind == "name")
        with open_graph(path) as opened:
            assert kind_of_names(opened.contents) == kind
            for low in range(8):
                for high in range(low, 9):
                    assert read_names(opened, low, high).tolist() == wanted[low:high]
            absent = [b"b", "grö🜚er".encode()] if kind == "name" else [-1, 5]
            found = rows_of_names(opened, wanted + absent)
            assert found.keys() == set(wanted) and all(wanted[row] == name for name, row in found.items())
            assert rows_of_names(opened, []) == {}
    write(path, eight(), force=True)
    with open_graph(path) as opened:
        assert kind_of_names(opened.contents) == "" and read_names(opened, 0, 8) is None


def test_one_long_name_takes_little_memory_to_search(path):
    words = [b"%d" % row for row in range(4000)]
    words[1234] = b"x" * 50_000
    write_with(path, from_edges(np.arange(4000), np.arange(4000), 4000), as_csr(words))
    tracemalloc.start()
    with open_graph(path) as opened:
        assert rows_of_names(opened, [b"77", b"3999", words[1234], b"4000"]) == {
            b"77": 77,
            b"3999": 3999,
            words[1234]: 1234,
        }
        assert longest_name(opened, 0, 4000) == 50_000 and longest_name(opened, 2000, 4000) == 4
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # names of one length would take 200 MB


LETTERS = [b"a"] * 8
WRONG = {
    "no text": ({schema.NAME_OFFSETS: np.arange(9)}, "/node/name/text is missing; names of nodes are offsets"),
    "no offsets": ({schema.NAME_TEXT: np.zeros(9, np.uint8)}, "/node/name/offsets is missing"),
    "both": (as_csr(LETTERS) | {schema.NODE_ID: np.arange(8)}, "has both /node/id and /node/name/text"),
    "other ids": ({schema.NODE_ID: np.arange(9)}, r"/node/id is int64 \[9\]; expected int64 \[8\]"),
    "decreasing": (
        as_csr(LETTERS) | {schema.NAME_OFFSETS: np.array([0, 1, 2, 1, 4, 5, 6, 7, 8])},
        "/node/name/offsets decreases at row 2",
    ),
    "short": (as_csr([b""] * 8) | {schema.NAME_TEXT: np.zeros(1, np.uint8)}, "/node/name/offsets ends with 0"),
    "bytes": (as_csr([*LETTERS[:5], b"a\xff", b"", b"b"]), "/node/name/text is not UTF-8 in row 5"),
    "within a letter": (as_csr([*LETTERS[:6], b"\xc3", b"\xa9"]), "/node/name/text is not UTF-8 in row 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_names_that_are_none_are_refused(path, case):
    arrays, reason = WRONG[case]
    write_with(path, eight(), arrays)
    with refused(rf"g\.h5: .*{reason}"):
        verify(path)
    with refused(rf"g\.h5: .*{reason}"), open_graph(path) as opened:
        read_names(opened, 0, 8)
