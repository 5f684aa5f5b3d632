"""METIS graphs, against a reader of lines in Python."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from data.graphs import refused
from mgg_hpc.data.readers import compressed
from mgg_hpc.data.readers.metis import open_metis

from .text_graphs import PACKINGS, blocks_of, check_marks, joined, write


def random_text(
    rng: np.random.Generator, kind: str, *, nodes: int = 30, degree: float = 3, noise: bool = True
) -> str:
    """Draw a graph in a format of METIS. kind: three digits, for sizes, weights of vertices (two), weights of edges."""
    ends = rng.integers(nodes, size=(int(nodes * degree / 2), 2))
    pairs = {(min(u, v), max(u, v)): int(rng.integers(1, 100)) for u, v in ends.tolist() if u != v}
    rows: list[list[str]] = [[] for _ in range(nodes)]
    for v in range(nodes):
        rows[v] += ["7"] * (kind[0] == "1") + ["1", "20"] * (kind[1] == "1")
    for (u, v), weight in pairs.items():
        for one, other in ((u, v), (v, u)):
            rows[one] += [str(other + 1)] + [str(weight)] * (kind[2] == "1")
    lines = [f"{nodes} {len(pairs)}" + f" {kind}" * (kind != "000") + " 2" * (kind[1] == "1")]
    for row in rows:
        lines.append((rng.choice([" ", "\t", "  "]) if noise else " ").join(row))
        if noise:
            lines[-1] = rng.choice(["", " "]) + lines[-1] + rng.choice(["", " ", "\r"])
            lines += ["%" + " 1 2" * int(rng.integers(30))] * (rng.random() < 0.2)
    return "\n".join([*(["% first"] * noise), *lines]) + "\n" * bool(
        not noise or not rows[-1] or rng.integers(2)
    )


def edges_of(text: str) -> tuple[list[int], list[int], list[float] | None]:
    """Read a graph line by line."""
    lines = [line.split() for line in text.split("\n") if not line.lstrip().startswith("%")]
    head = lines.pop(0)
    kind = head[2] if len(head) > 2 else "000"
    skip = (kind[0] == "1") + 2 * (kind[1] == "1")
    sources, destinations, weights = [], [], []
    for vertex, words in enumerate(lines[: int(head[0])]):
        step = 1 + (kind[2] == "1")
        sources += [int(word) - 1 for word in words[skip::step]]
        destinations += [vertex] * len(words[skip::step])
        weights += map(float, words[skip + 1 :: 2])
    return sources, destinations, weights if kind[2] == "1" else None


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("kind", ["000", "001", "010", "011", "100", "111"])
def test_a_graph_is_what_its_lines_say(kind, packing, rng, tmp_path, small_blocks):
    text = random_text(rng, kind)
    path = write(tmp_path / "some.graph", text, packing)
    imported = open_metis(path)
    assert (imported.name, imported.directed, imported.edges.nodes) == ("some", None, 30)
    blocks = blocks_of(imported)
    assert len(blocks) > 3 and joined(blocks) == edges_of(text)
    check_marks(lambda: open_metis(path), blocks, text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["000", "111"])
def test_threads_and_blocks_change_nothing(kind, rng, tmp_path, monkeypatch):
    """Several parts of a block; a vertex whose line is longer than them, and than a line of other formats may be."""
    text = random_text(rng, kind, nodes=40_000, degree=4, noise=False)
    if kind == "000":
        lines = text.split("\n")
        lines[1] += " 2" * (compressed.LONGEST_LINE // 2)
        nodes, edges = lines[0].split()
        lines[0] = f"{nodes} {int(edges) + compressed.LONGEST_LINE // 4}"
        text = "\n".join(lines)
    path, expected = write(tmp_path / "g.graph", text), edges_of(text)
    openmp = ctypes.CDLL("libgomp.so.1")
    threads = openmp.omp_get_max_threads()
    try:
        for count, size in ((1, 8 << 20), (3, 8 << 20), (2, 300_000)):
            openmp.omp_set_num_threads(count)
            monkeypatch.setattr(compressed, "BLOCK_BYTES", size)
            assert joined(blocks_of(open_metis(path))) == expected
    finally:
        openmp.omp_set_num_threads(threads)


WRONG = {
    "nothing": ("% 1 2\n", ": the file has no first line; expected the numbers of vertices and edges"),
    "one number": ("3\n", ":1: '3'; expected 2 whole numbers: vertices, edges"),
    "a word": ("3 x\n", ":1: '3 x'; expected 2 whole numbers"),
    "another format": (
        "3 2 2\n",
        ":1: '2' is no format; expected up to three digits 0 or 1, and the number of weights",
    ),
    "five numbers": ("3 2 10 1 1\n", ":1: '10 1 1' is no format"),
    "no vertices": ("0 0\n", ":1: 0 vertices with 0 weights each"),
    "weights without their digit": ("3 2 1 1\n", ":1: 3 vertices with 1 weights each, and the format 001"),
    "many weights": ("3 2 10 9999\n", ":1: 3 vertices with 9999 weights each"),
    "a huge number": ("9" * 15 + " 1\n", ":1: a graph of 9{15} vertices needs"),
    "vertex 0": ("3 2\n2\n1 0\n2\n", r":3: '0' is not a vertex; expected 1 \.\. 3"),
    "vertex 4": ("3 2\n2\n1 4\n2\n", r":3: '4' is not a vertex; expected 1 \.\. 3"),
    "a negative vertex": ("3 2\n%\n-2\n1 3\n2\n", r":3: '-2' is not a vertex"),
    "a blank of another kind": ("3 2\n2\n1 \x1d\n2\n", r":3: '\\x1d' is not a vertex"),
    "a comma": ("3 2\n2\n1,3\n2\n", r":3: '1,3' is not a vertex"),
    "no vertex weight": (
        "3 2 10\n1 2\n\n1 2\n",
        ":3: there is no size or weight 1 of 1 of vertex 2; expected a number",
    ),
    "a wrong vertex weight": ("3 2 10\n1 2\n-1 1\n", ":3: '-1' is not the size or weight 1 of 1 of vertex 2"),
    "no edge weight": ("3 2 1\n2 1\n1 1 3\n2 1\n", ":3: there is no weight of neighbour 2 of vertex 2"),
    "a wrong edge weight": (
        "3 2 1\n2 nan\n",
        ":2: 'nan' is not the weight of neighbour 1 of vertex 1; expected a num",
    ),
    "too few lines": ("3 2\n2\n1 3\n", ": the file ends behind vertex 2; expected 3 lines of vertices"),
    "too many lines": ("3 2\n2\n1 3\n2\n\n1\n", ":6: '1' is behind the last of 3 vertices"),
    "too few edges": (
        "3 2\n2\n1\n\n",
        ": the vertices have 2 neighbours; expected 4, two for each of 2 edges",
    ),
    "too many edges": (
        "3 0\n2\n1\n\n",
        ": the vertices have 2 neighbours; expected 0, two for each of 0 edges",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(wrong, tmp_path):
    text, reason = WRONG[wrong]
    with refused(rf"g\.graph{reason}"):
        blocks_of(open_metis(write(tmp_path / "g.graph", text)))


@pytest.mark.slow
def test_the_first_wrong_word_is_named_whatever_the_threads_do(rng, tmp_path):
    lines = random_text(rng, "001", nodes=60_000, degree=4, noise=False).split("\n")
    lines[41_000], lines[50_000] = "1 x", "y"
    with refused(r"g\.graph:41001: 'x' is not the weight of neighbour 1 of vertex 41000"):
        blocks_of(open_metis(write(tmp_path / "g.graph", "\n".join(lines))))
