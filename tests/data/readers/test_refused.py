"""What is wrong with a file is said in one line, which names the file and the place in it."""

from __future__ import annotations

import gzip
import os
import re
import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from data.graphs import random_graph, refused
from mgg_hpc.data.readers.array_edges import open_edge_arrays
from mgg_hpc.data.readers.edge_list import open_edge_list
from mgg_hpc.data.readers.matrix_market import open_matrix_market
from mgg_hpc.data.readers.metis import open_metis
from mgg_hpc.data.readers.node_arrays import is_text, node_rows
from mgg_hpc.data.readers.npz import open_npz, read_npz

from .formats import (
    FORMATS,
    PACKINGS,
    TABLES,
    archive,
    edges_of,
    opened,
    read_all,
    saved,
    table,
    whole,
    write,
)

names = partial(open_edge_list, map_ids=True)
MATRIX = "%%MatrixMarket matrix coordinate real general\n"

# A wrong line by a good one that stands before it; what is said of it.
LINES = {
    "12 3": [
        (b"3 x", "'x' is not a node id; expected a whole number"),
        (b"-3 4", "the node id -3 is negative"),
        (b"3", "1 column; expected 2: source, destination"),
        (b"3 4 5", "3 columns; expected 2: source, destination"),
        (b"3 4 # x", "4 columns; expected 2"),
        (b"3,,4", "1 column; expected 2: source, destination; --delimiter says"),
        (b"3 4,5", "'4,5' is not a node id"),
        (b"3 0.5", "'0.5' is not a node id; expected a whole number"),
        (b"3 0.9999999999999999999999", "'0.9999999999999999999999' is not a node id"),
        (b"3 nan", "'nan' is not a node id"),
        (b"3 9007199254740993.0", "the node id 9007199254740993.0 is too large"),
        (b"3 1e99999999", "the node id 1e99999999 is too large"),
        (b"3 1000000000000000", "the node id 1000000000000000 is too large"),
        (b"0 " + b"9" * 300, "the node id 9999999999999999999999999999999999999999...9 is too large"),
        (b"3 " + b"9" * 5000, "a node id of 5000 digits is too large"),
        (b"0 " + b"x" * 100_000, "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is not a node id"),
        (b"3 \xff", "'\ufffd' is not a node id"),
        ("3 \u0663".encode(), "'\u0663' is not a node id"),
        (b"3 1_0", "'1_0' is not a node id"),
        (b"3 4\0", r"'4\x00' is not a node id"),
        (b'"3",4', "a quote that is not closed, or that more follows"),
    ],
    "0 1 5": [
        *((f"0 1 {word}".encode(), word) for word in ("abc", "nan", "-inf", "1e39", "0x10", "1_0", "+-1")),
        *((f"0 1 {word}".encode(), f"'{word}' is not a weight") for word in ("1e", ".", "-", "\u0661")),
        (b"0 1 5\0", r"'5\x00' is not a weight"),
        (b"0 1 " + b"9" * 100_000, "999999999999999999999999999999999999999..."),
    ],
    "a b": [
        (b"a b c", "3 columns; expected 2: source, destination"),
        (b"a", "1 column; expected 2"),
        (b"a \xff", "'\ufffd' is not a name; expected UTF-8 without control characters"),
        *((b"a " + word, "is not a name") for word in  # a surrogate, letters too long, beyond the last, cut
          (b"\xed\xa0\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xe6\x97")),
        (b"a b\0", r"'b\x00' is not a name"),
        (b"\7a b", r"'\x07a' is not a name"),
    ],
    "a,b": [
        (b"c d", "1 column; expected 2: source, destination"),
        (b"c,,d", "2 columns; expected 2"),
        (b'"c, d,e', "a quote that is not closed, or that more follows"),
        (b'"c, d",e,f', "3 columns; expected 2: source, destination"),
    ],
    "a b 1": [(b"b c x", "'x' is not a weight"), (b"b c 1e39", "the weight 1e39 is not finite")],
}  # fmt: skip
BAD_LINES = [(good, *row) for good, rows in LINES.items() for row in rows]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("place", [1, 57, 199])
@pytest.mark.parametrize("at", range(len(BAD_LINES)))
def test_a_wrong_line_is_named_by_its_number(at, place, packing, tmp_path, blocks):
    good, line, reason = BAD_LINES[at]
    lines = [b"# header", b"", *[good.encode()] * 200]
    lines[2 + place] = line
    path = write(tmp_path / "e.txt", b"\n".join(lines), packing)
    with refused(rf"e\.txt:{place + 3}: .*{re.escape(reason)}") as caught:
        edges_of((names if "a" in good else open_edge_list)(path))
    assert len(str(caught.value)) < 250 + len(str(tmp_path))


CR = r": a carriage return \(\\r\) with no newline"
of_7, from_1 = partial(open_edge_list, nodes=7), partial(open_edge_list, nodes=7, first=1)
WRONG = [
    (open_edge_list, [
        ("# header\n7\n8\n", ":2: 1 column; expected 2: source, destination"),
        ("1 2 3 4 5\n", ":1: 5 columns; expected 4: source, destination, weight and time"),
        ("1,2,3\n1,2;3\n", ":2: 2 columns; expected 3: source, destination and weight"),
        ("1 2 3 now\n", ":1: 'now' is not a time; expected a number"),
        ("0 1\n".encode("utf-16"), ":1: .*is not a node id"),
        ("1 2\r\n1 2\r3 4\n", ":2" + CR),
        ("# comment\r1 2\n", ":1" + CR),
        ("#\nsource,target\n1,2\n", ":2: .*; --header if it names the columns"),
        ("% bip unweighted\n1 1\n", ":1: '% bip' is a bipartite graph.*after the first"),
    ]),
    (names, [
        ("1 2\r\n1\r2\n", ":2" + CR),
        ("From To\na b\n", ":1: .*; --header if it names the columns"),
        ("% bip unweighted\n1 1\n", ":1: '% bip' is a bipartite graph"),
    ]),
    (open_matrix_market, [
        ("", ":1: '' begins no matrix; expected '%%MatrixMarket matrix coordinate real general' or alike"),
        ("%%MatrixMarket matrix array real general\n", ":1: the matrix is 'matrix array'; expected"),
        (MATRIX.replace("real", "complex"), ":1: the matrix is 'complex'; expected pattern or integer or"),
        (MATRIX.replace("general", "skew-symmetric"), ":1: the matrix is 'skew-symmetric'; expected general"),
        (MATRIX + "% 1 1 1\n", ": the file ends before its sizes"),
        (MATRIX + "3 3\n", ":2: '3 3'; expected 3 whole numbers: rows, columns, entries"),
        (MATRIX + "9" * 15 + " " + "9" * 15 + " 1\n", ":2: a graph of 9{15} nodes needs"),
        (MATRIX + "3 4 1\n1 1 1\n", ":2: the matrix is 3 x 4; expected as many columns as rows"),
        (MATRIX + "0 0 0\n", ":2: the matrix is 0 x 0"),
        (MATRIX + "3 3 1\n0 1 1\n", r":3: the node id 0 is too small; expected 1 \.\. 3"),
        (MATRIX + "3 3 1\n1 4 1\n", r":3: the node id 4 is too large; expected 1 \.\. 3"),
        (MATRIX + "3 3 1\n1 1\n", ":3: 2 columns; expected 3: row, column and value"),
        (MATRIX + "3 3 1\n1 1 x\n", ":3: 'x' is not a value; expected a number"),
        (MATRIX + "3 3 3\n1 1 1\n\n2 2 1\n", ": the file ends after 2 entries; expected 3"),
        (MATRIX + "3 3 2\n1 1 1\n\n2 2 1\n%\n3 3 1\n", ":7: an entry after the last of 2"),
        (MATRIX.replace("general", "symmetric") + "3 3 9\n" + "2 1 5\n" * 3 + "% c\n1 3 5\n" + "2 1 5\n" * 5,
         ":7: '1 3 5' is above the diagonal; a symmetric matrix lists"),
    ]),
    (open_metis, [
        ("% 1 2\n", ": the file has no first line; expected the numbers of vertices and edges"),
        ("3\n", ":1: '3'; expected 2 whole numbers: vertices, edges"),
        ("3 2 2\n", ":1: '2' is no format; expected up to three digits 0 or 1, and the number of weights"),
        ("0 0\n", ":1: 0 vertices with 0 weights each"),
        ("3 2 1 1\n", ":1: 3 vertices with 1 weights each, and the format 001"),
        ("3 2 10 9999\n", ":1: 3 vertices with 9999 weights each"),
        ("9" * 15 + " 1\n", ":1: a graph of 9{15} vertices needs"),
        ("3 2\n2\n1 0\n2\n", r":3: '0' is not a vertex; expected 1 \.\. 3"),
        ("3 2\n2\n1 4\n2\n", r":3: '4' is not a vertex; expected 1 \.\. 3"),
        ("3 2\n%\n-2\n1 3\n2\n", r":3: '-2' is not a vertex"),
        ("3 2\n2\n1 \x1d\n2\n", r":3: '\\x1d' is not a vertex"),
        ("9 0\r\n" + "\r\n" * 7 + "% c\r\r\n\r\n\r\n", ":9" + CR),
        ("3 2 10\n1 2\n\n1 2\n", ":3: there is no size or weight 1 of 1 of vertex 2; expected a number"),
        ("3 2 10\n1 2\n-1 1\n", ":3: '-1' is not the size or weight 1 of 1 of vertex 2"),
        ("3 2 1\n2 1\n1 1 3\n2 1\n", ":3: there is no weight of neighbour 2 of vertex 2"),
        ("3 2 1\n2 nan\n", ":2: 'nan' is not the weight of neighbour 1 of vertex 1; expected a num"),
        ("3 2\n2\n1 3\n", ": the file ends after vertex 2; expected 3 lines of vertices"),
        ("3 2\n2\n1 3\n2\n\n1\n", ":6: '1' comes after the last of 3 vertices"),
        ("3 2\n2\n1\n\n", ": the vertices have 2 neighbours; expected 4, two for each of 2 edges"),
        ("3 0\n2\n1\n\n", ": the vertices have 2 neighbours; expected 0, two for each of 0 edges"),
    ]),
    (partial(open_edge_list, nodes=10**15), [("0 1\n", ": a graph of 10{15} nodes needs [0-9,.]+ GiB of memory")]),
    (from_1, [("1 2\n0 1\n", r":2: the node id 0 is too small; expected 1 \.\. 7")]),
    (from_1, [("1 2\n8 1\n", r":2: the node id 8 is too large; expected 1 \.\. 7")]),
    (of_7, [("0 1\n5 7\n", r":2: the node id 7 is too large; expected 0 \.\. 6")]),
    (partial(of_7, counted="x has 7 rows"), [("0 7\n", r":1: .*expected 0 \.\. 6, since x has 7 rows; --first 1 if")]),
    (partial(names, nodes=3), [("a b\n", " names 2 nodes; expected 3$")]),
    (partial(names, nodes=4, counted="x has 4 rows"), [("a b\n", " names 2 .*4, since x has 4 rows")]),
]  # fmt: skip
TEXTS = [(open_, *row) for open_, rows in WRONG for row in rows]


@pytest.mark.parametrize("at", range(len(TEXTS)))
def test_what_is_wrong_with_a_text_is_named(at, tmp_path, blocks):
    open_, text, reason = TEXTS[at]
    for packing in PACKINGS:
        with refused(rf"e{reason}"):
            edges_of(open_(write(tmp_path / "e", text, packing)))


# --- arrays


def test_a_file_that_becomes_shorter(tmp_path):
    path = write(tmp_path / "e.npy", np.zeros((2, 40), int))
    imported = open_edge_arrays(path)
    os.truncate(path, 700)
    with refused(r"e\.npy became shorter while it was read"):
        edges_of(imported)


ARCHIVES = {
    "decreasing": ({"indptr": np.array([0] + [5, 3] * 20)}, r"/indptr decreases at row 1 \(from 5 to 3\)"),
    "not from 0": ({"indptr": np.arange(1, 42)}, "/indptr starts with 1; expected 0"),
    "too short": ({"indptr": np.arange(41)}, "/indptr ends with 40; expected the 200 stored entries"),
    "too long": ({"indptr": np.arange(41) * 30}, "/indptr (ends with|has) "),
    "an id": ({"indices": np.repeat([0, 40, 0], [150, 1, 49])}, r"has 40 at entry 150; expected 0 \.\. 39"),
    "a negative id": ({"indices": np.repeat([-1, 0], [1, 199])}, r"has -1 at entry 0; expected 0 \.\. 39"),
    "no node": ({"indptr": np.zeros(1, int)}, "indptr is of no nodes"),
    "edge data": ({"edge/a": np.zeros(199)}, r"edge/a is float64 \[199\]; expected any number \[200\]"),
    "a name": ({"edge/a b": np.zeros(200)}, "data of edges is named 'a b'"),
    "ids": ({"node/id": np.zeros(41, int)}, r"node/id is int64 \[41\]; expected int \[40\]"),
    "infinite": ({"x": np.full((40, 2), np.inf)}, "x has inf at row 0, column 0; expected finite numbers"),
    "labels": ({"y": np.repeat([0, -2, 1], [17, 1, 22])}, "y has the label -2 at row 17; expected a class"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_is_wrong_with_an_archive_is_named(rng, tmp_path, blocks, name):
    changed, reason = ARCHIVES[name]
    archive(tmp_path / "g.npz", random_graph(rng, symmetric=False), **changed)
    with refused(rf"g\.npz.*{reason}"):
        read_all(open_npz(tmp_path / "g.npz"))


# --- tables of nodes


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (np.nan, "float32", "nan at row 33, column 2; expected finite numbers"),
        (-np.inf, "float16", "-inf at row 33, column 2; expected finite numbers"),
        (65520.0, "float16", r"65520\.0 at row 33, column 2, which float16 does not hold"),
        (1e300, "float32", r"1e\+300 at row 33, column 2, which float32 does not hold"),
    ],
)
def test_values_that_are_not_finite_are_named(rng, tmp_path, blocks, ending, value, dtype, reason):
    x = rng.normal(size=(50, 4))
    x[33, 2] = value
    path = write(tmp_path / f"x.{ending}", TABLES[ending](x))
    line = re.sub("row 33", "line 34", reason) if is_text(path) else reason
    with refused(f"x.{ending} has {line}"):
        whole(node_rows(features=path, dtype=dtype)[1]["node/x"])


NO_EDGES = r" is \w+ \[.*\]; expected integers \[2, edges\] or \[edges, 2\]"
NEGATIVE = np.where(np.arange(40) == 23, [[1], [-5]], 7)
FILES = [
    ("x.csv", b"1,2\n3,4,5\n", ":2: 3 columns; expected 2, as in the first line"),
    ("x.csv", b"1,2\n3,four\n", ":2: 'four' in column 1 is not a number"),
    ("x.csv", b"1,2\n\n3,4\n", ":2: an empty line between rows"),
    ("x.csv", b"\x0b\n1 2\n", ":2: 2 columns; expected 1, as in the first line"),
    ("x.csv", b"1,2\n3,1_0\n", ":2: '1_0' in column 1 is not a number"),
    ("x.csv", b"1,2\n3,\xff\n", ":2: .* in column 1 is not a number"),
    ("x.csv", b"1,2\n3,\n", " has nan at line 2, column 1; expected finite"),
    ("x.csv", b"# c\na,b\n1,2\n# c\n3,inf\n", " has inf at line 5, column 1; expected finite"),
    ("x.csv", b"a,1\nb,2\n", ":1: 'a' in column 0 is not a number; leave out a column of names: rows are in the ord"),
    ("x.csv", b"3,5\n0,5\n2,5\n1,5\n", ": the first column has the numbers of all 4 rows, as ids of nodes; leave i"),
    ("x.csv", b"1 5\n" * 997 + b"3 5\n4 5\n2 5\n1 5\n", None),
    ("x.csv", b"user_id,age\n7,5\n9,4\n", ":1: the column 'user_id' would be a feature; leave it out: rows are"),
    ("x.parquet", table({"user_id": [7, 9], "age": [5, 4]}), ": the column 'user_id' would be a feature"),
    ("x.parquet", table({"n": [3, 4, 2, 1], "age": [5.5, 4, 3, 3]}), ": the first column has the numbers of all 4"),
    ("x.csv", b"", " is of no nodes"),
    ("x.csv", b"a,b\n", " is of no nodes"),
    ("x.csv", b"1" * (10 << 20), ":1: the line is longer than"),
    ("x.parquet", table({"a": ["text"]}), ": the column 'a' is of string; expected numbers"),
    ("x.parquet", table({"a": [[1, 2], [1]]}), " has a list of another length at row 1"),
    ("x.parquet", table({"a": [[1], [1, 2, 3]]}), " has a list of another length at row 1"),
    ("x.parquet", table({"a": [1.0, None]}), " has nan at row 1, column 0"),
    ("x.parquet", table({}), " holds no rows"),
    ("x.parquet", table({"a": pa.array([], pa.list_(pa.float32()))}), " holds no rows"),
    ("x.parquet", b"PAR1" * 5, " is not a Parquet file|cannot be read"),
    ("x.dat", b"1,2\n", ": its name does not tell what it is; expected .npy, .csv"),
    ("list.txt", None, " cannot be read: No such file"),
    ("list.txt", {}, " cannot be read: Is a directory"),
    ("list.txt", b"BZh91AY", " is packed by bzip2; expected text, plain or packed by gzip or zstd"),
    ("list.txt", b"\xfd7zXZ\0\0", " is packed by xz"),
    ("list.txt", b"PK\3\4abcd", " is packed by zip"),
    ("edges.npy", None, " cannot be read: No such file"),
    ("edges.npy", saved(np.save, np.zeros((2, 40), int))[:-1], r" claims int64 \[2, 40\], 640 bytes; the file "),
    *(("edges.npy", np.zeros(shape, int), NO_EDGES) for shape in (4, (3, 3), (2, 2, 2), ())),
    ("edges.npy", np.zeros((2, 4), bool), NO_EDGES),
    ("edges.npy", np.array([[0, 1, 0.7], [1, 2, 0]]), ": edge 2 has the source 0.7; expected whole numbers below"),
    ("edges.npy", np.array([[0, 2**24, 1]] * 2, np.float32), ": edge 1 has the source 16777216.0; expected whole"),
    ("edges.npy", np.array([[0, 1, np.nan]] * 2), ": edge 2 has the source nan"),
    ("edges.npy", NEGATIVE, r": edge 23 has the destination -5; expected 0 \.\."),
    ("edges.npy", NEGATIVE.T, r": edge 23 has the destination -5; expected 0 \.\."),
    ("edges.npy", np.array([[0, 2**63]] * 2, np.uint64), ": edge 1 has the source 9223372036854775808"),
    ("scipy.npz", saved(sp.save_npz, sp.csr_array((3, 4))), r".* matrix is \[3, 4\]; expected as many columns as"),
    ("scipy.npz", saved(sp.save_npz, sp.eye_array(4).todia()), " is a matrix in the form 'dia'; expected csr"),
    ("scipy.npz", saved(sp.save_npz, sp.csr_array(np.eye(3) * 1j)), r".*data is complex128 \[3\]; expected numbers"),
    ("scipy.npz", saved(sp.save_npz, sp.coo_array(([1.0], ([0], [0])), (2**60, 2**60))), ".* nodes needs .* GiB"),
    ("scipy.npz", saved(np.savez, format=b"csr", data=[], indices=[], indptr=[], shape=(-1, -1)), ".*negative"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(FILES)))
def test_what_is_wrong_with_an_array_or_a_table_is_named(tmp_path, blocks, at):
    name, content, reason = FILES[at]
    path = tmp_path / name if content is None else write(tmp_path / name, content)
    with refused(rf"{name}({reason})") if reason else nullcontext():
        if name.startswith("x."):
            whole(node_rows(features=path)[1]["node/x"])
        else:
            edges_of(opened(path))


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(r"x\.parquet: Parquet's files need pyarrow, .* pip install 'mgg-hpc\[parquet\]'"):
        node_rows(features=tmp_path / "x.parquet")


def test_node_files_that_do_not_go_together(rng, tmp_path):
    with refused(r"y\.npy: masks need features or labels"):
        node_rows(masks=[tmp_path / "y.npy"] * 3)
    sp.save_npz(tmp_path / "m.npz", sp.eye_array(3).tocsr())
    with refused(r"m\.npz is a matrix of SciPy; make a graph file of it first"):
        read_npz(tmp_path / "m.npz")
    path = write(tmp_path / "nodes.npz", FORMATS["nodes.npz"](rng, 0).content)
    with refused(r"x\.npz: sparse features are stored as float32"):
        opened(path, dtype="float16")


# Of a folder's files one has other contents (None: it is missing).
FEATURES = "1,2,3,4,5\n" * 29
FOLDERS = [
    ("nodes.npy", "y.npy", np.repeat([0, -2, 1], [17, 1, 32]), r" has the label -2 at row 17; expected a class, 0"),
    ("nodes.csv", "y.csv", "0\n" * 49 + "1.5\n", r" has the label 1\.5 at line 50"),
    ("nodes.csv", "y.csv", "0\n" * 49 + '""\n', " has the label nan at line 50"),
    ("nodes.csv", "y.csv", "colour\n" + "0\n" * 49 + "red\n", ":51: 'red' in column 0 is not a number; classes are 0"),
    ("nodes.csv", "y.csv", "0,1\n" * 49 + "7,1\n", r" has '\[7.0, 1.0\]' at line 50; expected 0 and 1, several labels"),
    ("nodes.npy", "y.npy", np.full(50, 0.5), " has the label 0.5 at row 0; expected a class"),
    ("nodes.npy", "y.npy", np.zeros(49, int), r" has 49 rows; .*x\.npy has 50"),
    ("nodes.npy", "val.npy", np.array([0, 50]), r" has 50 at row 1; expected node numbers, 0 \.\. 49"),
    ("nodes.npy", "val.npy", np.zeros(51, bool), r" is bool \[51\]; expected bool \[50\], or node numbers"),
    ("nodes.npz", "x.npz", saved(sp.save_npz, sp.eye_array(50).tocsc()), " is a matrix in the form csc; expected csr"),
    ("nodes.npz", "x.npz", saved(sp.save_npz, sp.csr_array(np.full((50, 1), np.inf))), ".* has inf at entry 0"),
    ("nodes.npz", "x.npz", saved(np.savez, x=np.eye(50)), " is no matrix of SciPy"),
    ("ogbn_arxiv", "raw/num-node-list.csv.gz", None, " is missing"),
    ("ogbn_arxiv", "raw/num-node-list.csv.gz", "30\n30\n", " has several numbers"),
    ("ogbn_arxiv", "raw/num-node-list.csv.gz", "50\n", "|csv.gz has more rows; expected 50"),
    ("ogbn_arxiv", "raw/num-node-list.csv.gz", "9" * 15, ".* GiB of memory"),
    ("ogbn_arxiv", "raw/num-edge-list.csv.gz", "199", "|edge.csv.gz has more edges; expected 199"),
    ("ogbn_arxiv", "raw/num-edge-list.csv.gz", "201", "|edge.csv.gz has 200 edges; expected 201"),
    ("ogbn_arxiv", "raw/edge.csv.gz", None, " cannot be read: No such file"),
    ("ogbn_arxiv", "raw/edge.csv.gz", "0,1\n" * 100 + "60,1\n", ":101: the node id 60"),
    ("ogbn_arxiv", "raw/node-feat.csv.gz", FEATURES + "1,2,x,4,5\n", ":30: 'x' in column 2 is not a number"),
    ("ogbn_arxiv", "raw/node-feat.csv.gz", FEATURES + "1,2,,4,5\n" + FEATURES + "1,2,3,4,5\n",
     " has nan at line 30, column 2; expected"),
    ("ogbn_arxiv", "raw/node-feat.csv.gz", "1,2\n" * 30 + "1,2,3\n", ":31: 3 columns; expected 2"),
    ("ogbn_arxiv", "raw/node-label.csv.gz", "1\n" * 59 + "1.5\n", r" has the label 1\.5 at line 60; expected a class"),
    ("ogbn_arxiv", "raw/num-node-dict.csv.gz", "a,b\n1,2\n", "|raw has nodes of several types"),
    ("ogbn_arxiv", "split/time/valid.csv.gz", "0\n60\n", r" has 60\.0 at line 2; expected node numbers, 0 \.\. 59"),
    ("ogbn_arxiv", "split/time/test.csv.gz", None, " is missing"),
    ("ogbn_arxiv", "split/other/train.csv.gz", "0\n", "|split has several splits: other, time"),
    ("ogbn_arxiv", "raw/", None, "|has no folder raw; expected a dataset of OGB"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("at", range(len(FOLDERS)))
def test_what_is_wrong_with_a_folder_is_named(rng, tmp_path, at):
    format_, file, content, reason = FOLDERS[at]
    files = {
        name: data for name, data in FORMATS[format_](rng, 200).content.items() if not name.startswith(file)
    }
    if isinstance(content, str):
        content = (gzip.compress if file.endswith(".gz") else bytes)(content.encode())
    files |= {} if content is None else {file: content}
    with refused(reason.removeprefix("|") if reason[0] == "|" else re.escape(file) + reason):
        read_all(opened(write(tmp_path / format_, files)))
