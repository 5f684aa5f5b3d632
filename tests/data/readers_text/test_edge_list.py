"""Edge lists, read in blocks and line by line, plain and packed."""

from __future__ import annotations

import ctypes
import itertools
import json
import re

import numpy as np
import pytest

from data.graphs import refused
from mgg_hpc.data import native
from mgg_hpc.data.readers import compressed
from mgg_hpc.data.readers.arrays.edges import WithData
from mgg_hpc.data.readers.edge_list import lists_edges_once, open_edge_list
from mgg_hpc.data.readers.npy import open_array
from mgg_hpc.errors import InputError

from .text_graphs import PACKINGS, blocks_of, check_marks, joined, listed_edges, write

SEPARATORS = [" ", "\t", ",", ", ", ";", " ;\t", "   "]


def read(path, **options):
    """Read a list whole."""
    return joined(blocks_of(open_edge_list(path, **options)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_an_edge_list_says_what_its_lines_say(
    packing, noise, columns, separator, first, rng, tmp_path, blocks
):
    listed = listed_edges(rng, 200, columns=columns, separator=separator, noise=noise, first=first)
    path = write(tmp_path / "some.edges.txt", listed.text, packing)
    imported = open_edge_list(path, first=first)
    assert (imported.name, imported.directed, imported.edges.nodes) == ("some", None, None)
    assert imported.edges.total == path.stat().st_size
    weights = listed.weights if columns > 2 else None
    assert joined(blocks_of(imported)) == (listed.sources, listed.destinations, weights)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("columns", [2, 3])
def test_a_list_goes_on_behind_each_block(packing, columns, rng, tmp_path, small_blocks):
    listed = listed_edges(rng, 60, columns=columns, noise=True)
    path = write(tmp_path / "e.txt", listed.text, packing)
    found = blocks_of(open_edge_list(path))
    assert len(found) > 5
    check_marks(lambda: open_edge_list(path), found, listed.text)


@pytest.mark.slow
def test_threads_and_blocks_change_nothing(rng, tmp_path, monkeypatch):
    """Several parts of a block, some of comments alone, against NumPy's reader."""
    columns = [rng.integers(10 ** rng.integers(1, 16), size=60_000) for _ in (0, 1)]
    weight = rng.normal(size=60_000) * 10.0 ** rng.integers(-30, 30, size=60_000)
    lines = [
        f"{u} {v} {w!r}\n" for u, v, w in zip(*(each.tolist() for each in (*columns, weight)), strict=True)
    ]
    lines[20_000:20_000] = ["# a comment between\n"] * 20_000
    path = write(tmp_path / "e.txt", "".join(lines))
    expected = np.loadtxt(path, dtype=[("u", np.int64), ("v", np.int64), ("w", np.float64)])
    openmp = ctypes.CDLL("libgomp.so.1")
    threads = openmp.omp_get_max_threads()
    try:
        for count, size in itertools.product((1, 2, 3, 7), (8 << 20, 300_000)):
            openmp.omp_set_num_threads(count)
            monkeypatch.setattr(compressed, "BLOCK_BYTES", size)
            sources, destinations, weights = read(path)
            assert np.array_equal(sources, expected["u"]) and np.array_equal(destinations, expected["v"])
            assert np.array_equal(np.float32(weights), expected["w"].astype(np.float32))
    finally:
        openmp.omp_set_num_threads(threads)


def test_weights_round_as_python_does(rng, tmp_path):
    """Decimals next to the middle between two floats of single precision, and any spelling of others."""
    middle = (
        rng.integers(0x00800000, 0x7F000000, size=2000).astype(np.int32).view(np.float32).astype(np.float64)
    )
    middle += np.spacing(middle.astype(np.float32)) / 2
    values = [*middle, *np.nextafter(middle, 0), *np.nextafter(middle, np.inf)]
    words = [
        f"{value:{form}}" for value, form in zip(values, itertools.cycle([".17e", ".25g", ".40f", "+.9E"]))
    ]
    path = write(tmp_path / "e.txt", "".join(f"0 1 {word}\n" for word in words))
    assert read(path)[2] == [np.float32(float(word)) for word in words]


BAD_LINES = {
    "a word": ("3 x", "'x' is not a node id; expected a whole number"),
    "a decimal": ("3 4.0", "'4.0' is not a node id"),
    "a negative id": ("-3 4", "the node id -3 is negative"),
    "a missing column": ("3", "1 columns; expected 2: source, destination"),
    "a column too many": ("3 4 5", "3 columns; expected 2: source, destination"),
    "two edges": ("3 4 5 6", "4 columns; expected 2"),
    "an empty column": ("3,,4", "2 columns; expected 2: source, destination"),
    "a trailing comma": ("3,4,", "2 columns; expected 2"),
    "a huge id": ("3 1000000000000000", "the node id 1000000000000000 is too large"),
    "a very huge id": ("3 99999999999999999999999999", "the node id 99999999999999999999999999 is too large"),
    "an endless id": ("3 " + "9" * 5000, "a node id of 5000 digits is too large"),
    "a comment behind": ("3 4 # x", "4 columns; expected 2"),
    "not text": ("3 \xff", "'\ufffd' is not a node id"),
    "another script's digit": ("3 \u0663", "'\u0663' is not a node id"),
    "an underscore": ("3 1_0", "'1_0' is not a node id"),
    "two separators": ("3,4;5", "'4;5' is not a node id"),
    "a comma among blanks": ("3 4,5", "'3 4' is not a node id"),
    "NUL": ("3 4\0", r"'4\x00' is not a node id"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("place", [1, 57, 199])
@pytest.mark.parametrize("line", BAD_LINES)
def test_a_wrong_line_is_named_by_its_number(line, place, packing, tmp_path, blocks):
    bad, reason = BAD_LINES[line]
    lines = ["# header", "", *["12 3"] * 200]
    lines[2 + place] = bad
    data = "\n".join(lines).encode("latin1" if line == "not text" else "utf-8")
    path = write(tmp_path / "e.txt", data, packing)
    with refused(re.escape(f"e.txt:{place + 3}: {reason}")):
        read(path)


@pytest.mark.parametrize(
    ("text", "first", "reason"),
    [
        ("# header\n7\n8\n", 0, ":2: 1 columns; expected 2: source, destination"),
        ("1 2 3 4 5\n", 0, ":1: 5 columns; expected 4: source, destination, weight and time"),
        ("1,2,3\n1,2;3\n", 0, ":2: 2 columns; expected 3: source, destination and weight"),
        ("1 2 3\n1 2,3\n", 0, ":2: 2 columns; expected 3"),
        ("1 2 3 now\n", 0, ":1: 'now' is not a time; expected a number"),
        ("1 2\n0 1\n", 1, r":2: the node id 0 is too small; expected 1 \.\. 7"),
        ("1 2\n8 1\n", 1, r":2: the node id 8 is too large; expected 1 \.\. 7"),
        ("0 1\n5 7\n", 0, r":2: the node id 7 is too large; expected 0 \.\. 6"),
    ],
)
def test_other_wrong_lines(text, first, reason, tmp_path, blocks):
    with refused(rf"e\.txt{reason}"):
        read(write(tmp_path / "e.txt", text), first=first, nodes=7)


@pytest.mark.parametrize(
    "bad", ["abc", "nan", "inf", "-inf", "1e39", "0x10", "1_0", "+-1", "1e", ".", "-", "\u0661"]
)
def test_a_wrong_weight_is_named_by_its_line(bad, tmp_path, blocks):
    lines = ["0 1 0.5"] * 20
    lines[13] = f"0 1 {bad}"
    with refused(rf"e\.txt:14: .*{re.escape(bad)}"):
        read(write(tmp_path / "e.txt", "\n".join(lines)))


def test_lines_and_blocks_agree_on_random_text(rng, tmp_path, monkeypatch):
    """Any text gives the same edges or the same error, whether blocks or lines are parsed."""
    alphabet = list("0123456789") * 3 + list("  \t\n\n\n,,;.-+e#%x\r\x0b\0")
    for _ in range(400):
        path = tmp_path / "e.txt"
        lines = ["1 2\n"] * rng.integers(3) + rng.choice(alphabet, size=rng.integers(1, 20)).tolist()
        write(path, "".join(lines))
        results = []
        for parse in (native.load().parse_edges, lambda *_: (0, 0)):
            with monkeypatch.context() as patched:
                patched.setattr(native.load(), "parse_edges", parse)
                try:
                    results.append(read(path))
                except InputError as error:
                    results.append(str(error))
        assert results[0] == results[1], path.read_text()


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ids", ["numbers", "names"])
def test_first_lines_of_konect(ids, packing, tmp_path, blocks):
    for kind in ("sym", "asym"):
        path = write(tmp_path / "out.txt", f"% {kind} unweighted\n% 1 2 2\n0 1\n", packing)
        assert read(path, ids=ids) == ([0], [1], None)
        assert lists_edges_once(path) == (kind == "sym")
    write(tmp_path / "out.txt", "% bip unweighted\n1 1\n", packing)
    with refused(r"out\.txt:1: '% bip' is a bipartite graph.*number the second side behind the first"):
        read(tmp_path / "out.txt", ids=ids)
    assert not lists_edges_once(write(tmp_path / "out.txt", "% symbols\n0 1\n", packing))


@pytest.mark.parametrize(
    "line", ["source,target", "src;dst", "From To", "id_1,id_2,weight", '"Source","Target"']
)
def test_headers_need_a_mark(line, tmp_path, blocks):
    for ids in ("numbers", "names"):
        path = write(tmp_path / "e.txt", f"# comment\n{line}\n1,2\n")
        with refused(
            r"e\.txt:2: .*; headers need a # in front$" if ids == "numbers" else ":2: .*headers need a #"
        ):
            read(path, ids=ids)
    assert read(write(tmp_path / "e.txt", "source,x\nx,target\n"), ids="names") == ([0, 1], [1, 2], None)


def test_quotes_are_not_read(tmp_path, blocks):
    with refused(r"""e\.txt:2: '"2"' is not a node id; expected a whole number; quotes are not read"""):
        read(write(tmp_path / "e.txt", '1,2\n"2","3"\n'))
    with refused(r"e\.txt:2: 3 columns; expected 2: source, destination; quotes are not read"):
        read(write(tmp_path / "e.txt", 'a,b\n"c, d",e\n'), ids="names")


def test_a_limit_says_where_it_is_from(tmp_path, blocks):
    path = write(tmp_path / "e.txt", "0 1\n1 3\n")
    with refused(r":2: the node id 3 is too large; expected 0 \.\. 2, since x\.npy has 3 rows$"):
        read(path, nodes=3, counted="x.npy has 3 rows")
    with refused("names 3 nodes; expected 4, since x.npy has 4 rows"):
        read(path, nodes=4, counted="x.npy has 4 rows", ids="names")


def test_data_go_on_behind_each_block(rng, tmp_path, small_blocks):
    listed, data = listed_edges(rng, 60), rng.integers(1000, size=(60, 2))
    path = write(tmp_path / "e.txt", listed.text)
    np.save(tmp_path / "d.npy", data)
    stream = WithData(open_edge_list(path).edges, {"d": open_array(tmp_path / "d.npy")})
    found, at = list(stream.blocks()), 0
    assert len(found) > 5
    for block in found:
        at += len(block)
        rest = list(stream.blocks(json.loads(json.dumps(block.mark))))
        assert [u for each in rest for u in each.sources] == listed.sources[at:]
        assert np.array_equal(np.concatenate([data[:0], *(each.data["d"] for each in rest)]), data[at:])
