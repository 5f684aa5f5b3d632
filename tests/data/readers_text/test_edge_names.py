"""Edge lists between nodes whose ids are any words."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from data.graphs import refused
from mgg_hpc.data import schema
from mgg_hpc.data.readers import node_names
from mgg_hpc.data.readers.edge_list import open_edge_list

from .text_graphs import PACKINGS, blocks_of, joined, write

NAMES = ["zoë", "New York", "7", "007", "-3", "+3", "-0", "0", "9223372036854775807", "9223372036854775808",
         "-9223372036854775808", "日本", "a-much-longer-name-than-a-word-of-the-machine", "x" * 5000, "1e5",
         "\U0001f600", "12345678", "123456789012345", "1234567890123456", "100000000000000000000"]  # fmt: skip


def rows_of(words: list[str]) -> tuple[list[int], list[str]]:
    """Number words in order of first appearance."""
    rows: dict[str, int] = {}
    return [rows.setdefault(word, len(rows)) for word in words], list(rows)


def kept(imported) -> list[str] | list[int]:
    """The names of all rows, as they go to the file."""
    rows = {path: np.concatenate(list(each.pieces())) for path, each in imported.rows().items()}
    for path, each in imported.rows().items():
        assert (each.layout.dtype, each.layout.shape) == (rows[path].dtype, rows[path].shape)
    if schema.NODE_ID in rows:
        return rows[schema.NODE_ID].tolist()
    text, offsets = rows[schema.NAME_TEXT].tobytes(), rows[schema.NAME_OFFSETS].tolist()
    return [text[low:high].decode() for low, high in itertools.pairwise(offsets)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("separator", [" ", ",", " ;\t"])
def test_rows_are_in_order_of_first_appearance(
    separator, weighted, packing, rng, tmp_path, monkeypatch, blocks
):
    monkeypatch.setattr(node_names, "PIECE", 7)
    names = [name for name in NAMES if separator.strip() or " " not in name]
    words = rng.choice(names, size=300).tolist()
    weights = rng.normal(size=150).astype(np.float32).tolist() if weighted else None
    lines = [separator.join(words[at : at + 2]) for at in range(0, 300, 2)]
    if weights is not None:
        lines = [f"{line}{separator}{weight!r}" for line, weight in zip(lines, weights, strict=True)]
    lines[10:10] = ["# a comment", "", "  "]
    imported = open_edge_list(write(tmp_path / "e.txt", "\n".join(lines), packing), ids="names")
    rows, named = rows_of(words)
    assert joined(blocks_of(imported)) == (rows[::2], rows[1::2], weights)
    assert imported.edges.nodes == len(named) and kept(imported) == named


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [False, True])
def test_many_names_and_any_number_of_threads(numbers, rng, tmp_path, monkeypatch):
    """Tables that grow, and several parts of a block; ids that are numbers are kept as such."""
    words = rng.integers(-(10**17), 10**17, size=20_000)[rng.integers(20_000, size=80_000)].tolist()
    words = words if numbers else [f"node/{word}" if word % 3 else str(word) for word in words]
    text = "".join(f"{u}\t{v}\n" for u, v in zip(words[::2], words[1::2], strict=True))
    path = write(tmp_path / "e.txt", text)
    rows, named = rows_of(words)
    openmp = ctypes.CDLL("libgomp.so.1")
    threads = openmp.omp_get_max_threads()
    try:
        for count in (1, 3):
            openmp.omp_set_num_threads(count)
            imported = open_edge_list(path, ids="names")
            assert joined(blocks_of(imported)) == (rows[::2], rows[1::2], None)
            assert kept(imported) == named
    finally:
        openmp.omp_set_num_threads(threads)


def test_names_are_read_again_where_the_edges_were_not(tmp_path):
    """As by a process that goes on with another one's build."""
    imported = open_edge_list(write(tmp_path / "e.txt", "b a\na c\n"), ids="names")
    assert kept(imported) == ["b", "a", "c"]


BAD_LINES = {
    "a column too many": (b"a b c", "3 columns; expected 2: source, destination"),
    "one column": (b"a", "1 columns; expected 2"),
    "not UTF-8": (b"a \xff", "'\ufffd' is not a name; expected UTF-8 without control characters"),
    "a surrogate": (b"a \xed\xa0\x80", "is not a name"),
    "a needlessly long letter": (b"a \xc0\xaf", "is not a name"),
    "another long letter": (b"a \xe0\x80\xaf", "is not a name"),
    "a letter beyond the last": (b"a \xf4\x90\x80\x80", "is not a name"),
    "a letter that is cut": (b"a \xe6\x97", "is not a name"),
    "NUL": (b"a b\0", r"'b\\x00' is not a name"),
    "a bell": (b"\7a b", r"'\\x07a' is not a name"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_wrong_line_is_named_by_its_number(line, tmp_path):
    bad, reason = BAD_LINES[line]
    path = write(tmp_path / "e.txt", b"# header\n" + b"a b\n" * 70_000 + bad + b"\n" + b"a b\n" * 70_000)
    with refused(rf"e\.txt:70002: .*{reason}"):
        blocks_of(open_edge_list(path, ids="names"))


def test_delimiters_and_weights_of_names(tmp_path):
    for text, reason in [
        ("a,b\nc d\n", ":2: 1 columns; expected 2: source, destination"),
        ("a,b\nc,,d\n", ":2: 2 columns; expected 2"),
        ("a b 1\nb c x\n", ":2: 'x' is not a weight"),
        ("a b 1\nb c 1e39\n", ":2: the weight 1e39 is not finite"),
    ]:
        with refused(rf"e\.txt{reason}"):
            blocks_of(open_edge_list(write(tmp_path / "e.txt", text), ids="names"))
    found = open_edge_list(write(tmp_path / "e.txt", "a b\nx,y z;w\n"), ids="names")
    blocks_of(found)
    assert kept(found) == ["a", "b", "x,y", "z;w"]


def test_another_number_of_names_than_expected(tmp_path):
    path = write(tmp_path / "e.txt", "a b\n")
    assert len(blocks_of(open_edge_list(path, ids="names", nodes=2))) == 1
    with refused(r"e\.txt names 2 nodes; expected 3"):
        blocks_of(open_edge_list(path, ids="names", nodes=3))
