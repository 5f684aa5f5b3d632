"""Features, labels and masks from files of their own, against what NumPy and pyarrow wrote."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import zstandard
from pyarrow import parquet

from mgg_hpc.data.readers.arrays.node_rows import of_array
from mgg_hpc.data.readers.node_arrays import node_rows

from ..graphs import refused
from .streamed import whole

NODES = 50


def _text(path, array, separator=",") -> None:
    rows = np.asarray(array).reshape(len(array), -1).tolist()
    text = "".join(separator.join(map(repr, row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(text.encode()))
    else:
        path.write_text(text)


def _parquet(path, array) -> None:
    columns = np.asarray(array).reshape(len(array), -1).T
    table = pa.table({f"c{number}": column for number, column in enumerate(columns)})
    parquet.write_table(table, path, row_group_size=17)


def _lists(path, array) -> None:
    columns = np.asarray(array).reshape(len(array), -1)
    parquet.write_table(pa.table({"x": pa.array(columns.tolist())}), path)


def _fixed(path, array) -> None:
    flat = pa.array(np.asarray(array).reshape(-1))
    width = np.asarray(array).size // len(array)
    parquet.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)}), path)


FILES = {
    "x.npy": np.save,
    "x.csv": _text,
    "x.csv.gz": _text,
    "x.tsv.zst": lambda path, array: _text(path, array, "\t"),
    "x.txt": lambda path, array: _text(path, array, "  "),
    "semicolons.csv": lambda path, array: _text(path, array, " ; "),
    "x.parquet": _parquet,
    "lists.parquet": _lists,
    "fixed.parquet": _fixed,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", FILES)
def test_features_are_those_of_the_file(rng, tmp_path, blocks, name, dtype):
    x = rng.normal(size=(NODES, int(rng.integers(1, 9)))) * 10.0 ** rng.integers(-6, 4)
    x = x.astype(rng.choice([np.float32, np.float64]))
    FILES[name](tmp_path / name, x)
    nodes, rows, fields = node_rows(features=tmp_path / name, dtype=dtype)
    found = whole(rows["node/x"])
    assert (nodes, list(rows), fields, found.dtype) == (NODES, ["node/x"], {}, dtype)
    np.testing.assert_array_equal(found, x.astype(dtype))


@pytest.mark.parametrize("name", FILES)
def test_labels_are_those_of_the_file(rng, tmp_path, blocks, name):
    y = rng.integers(-1, 7, NODES)
    FILES[name](tmp_path / name, y)
    nodes, rows, fields = node_rows(labels=tmp_path / name)
    np.testing.assert_array_equal(whole(rows["node/y"]), y)
    assert (nodes, fields) == (NODES, {"classes": y.max() + 1, "multilabel": False})
    several = rng.integers(2, size=(NODES, 3))
    FILES[name](tmp_path / name, several)
    nodes, rows, fields = node_rows(labels=tmp_path / name)
    np.testing.assert_array_equal(whole(rows["node/y"]), several.astype(np.float32))
    assert (nodes, fields) == (NODES, {"classes": 3, "multilabel": True})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["numbers", "zeros and ones"])
def test_masks_are_those_of_the_files(rng, tmp_path, blocks, name, kind):
    masks, files = rng.integers(3, size=NODES) == np.arange(3)[:, None], []
    for number, mask in enumerate(masks):
        (tmp_path / str(number)).mkdir()
        files.append(tmp_path / str(number) / name)
        FILES[name](files[-1], np.flatnonzero(mask) if kind == "numbers" else mask.astype(int))
    np.save(tmp_path / "y.npy", np.zeros(NODES, int))
    _, rows, _ = node_rows(labels=tmp_path / "y.npy", masks=files)
    np.testing.assert_array_equal([whole(rows[f"node/{split}"]) for split in ("train", "val", "test")], masks)


def test_a_line_of_names_and_empty_lines(tmp_path, blocks):
    (tmp_path / "x.csv").write_text(
        "\n a, 1b,c d\r\n" * 1 + "\n\n1,2,3\r\n" + " \n" * 60 + " 4 , +5e0 , -.6 \n\n"
    )
    _, rows, _ = node_rows(features=tmp_path / "x.csv")
    np.testing.assert_array_equal(whole(rows["node/x"]), np.array([[1, 2, 3], [4, 5, -0.6]], np.float32))


def test_sparse_features_stay_sparse(rng, tmp_path, blocks):
    x = sp.random_array((NODES, 9), density=0.2, rng=rng, format="csr")
    sp.save_npz(tmp_path / "x.npz", x)
    nodes, rows, fields = node_rows(features=tmp_path / "x.npz")
    found = {path.rpartition("/")[2]: whole(each) for path, each in rows.items()}
    assert (nodes, fields) == (NODES, {"sparse_shape": (NODES, 9)})
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(found[name], getattr(x, name).astype(found[name].dtype))
    with refused(r"x\.npz: sparse features are stored as float32"):
        node_rows(features=tmp_path / "x.npz", dtype="float16")
    sp.save_npz(tmp_path / "x.npz", x.tocsc())
    with refused(r"x\.npz is a matrix in the form csc; expected csr"):
        node_rows(features=tmp_path / "x.npz")


BAD = {
    "nan": (r"has nan at row 33, column 2; expected finite numbers", np.nan, "float32"),
    "inf": (r"has -inf at row 33, column 2; expected finite numbers", -np.inf, "float16"),
    "large for a half": (
        r"has 65520\.0 at row 33, column 2, which float16 does not hold",
        65520.0,
        "float16",
    ),
    "large for a single": (r"has 1e\+300 at row 33, column 2, which float32 does not hold", 1e300, "float32"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", BAD)
def test_values_that_are_not_finite_are_named_with_row_and_column(rng, tmp_path, blocks, name, kind):
    reason, value, dtype = BAD[kind]
    x = rng.normal(size=(NODES, 4))
    x[33, 2] = value
    FILES[name](tmp_path / name, x)
    with refused(f"{name} {reason}"):
        whole(node_rows(features=tmp_path / name, dtype=dtype)[1]["node/x"])


def _table(**columns) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


WRONG = {
    "x.csv": [
        (b"1,2\n3,4,5\n", ":2: 3 columns; expected 2, as in the first line"),
        (b"1,2\n\n3,four\n", ":3: 'four' in column 1 is not a number"),
        (b"1,2,3\n3,4;5\n", ":2: 2 columns; expected 3"),
        (b"1 2\n3  \n", ":2: 1 columns; expected 2"),
        (b"1,2\n3,1_0\n", ":2: '1_0' in column 1 is not a number"),
        (b"1,2\n3,\xff\n", ":2: .* in column 1 is not a number"),
        (b"1,2\n3,\n", " has nan at row 1, column 1; expected finite"),
        (b"", " is of no nodes"),
        (b"a,b\n", " is of no nodes"),
        (b"1" + b",1" * 200_000 + b"\n" * 2_000_000, None),
        (b"1" * (10 << 20), ":1: the line is longer than"),
    ],
    "x.parquet": [
        (_table(a=["text"]), ": the column 'a' is of string; expected numbers"),
        (_table(a=[[1, 2], [1]]), " has lists of several lengths from row 0 on"),
        (_table(a=[[1], [1, 2, 3]]), " has another number of numbers at row 1"),
        (_table(a=[1.0, None]), " has nan at row 1, column 0"),
        (_table(), " holds no rows"),
        (_table(a=np.zeros(0)), " holds no rows"),
        (_table(a=pa.array([], pa.list_(pa.float32()))), " holds no rows"),
        (b"PAR1" * 5, " is not a Parquet file|cannot be read"),
    ],
    "x.dat": [(b"1,2\n", ": its name does not tell what it is; expected .npy, .csv")],
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_tables(tmp_path, name):
    for content, reason in WRONG[name]:
        (tmp_path / name).write_bytes(content)
        if reason is None:
            assert len(whole(node_rows(features=tmp_path / name)[1]["node/x"])) == 1
            continue
        with refused(rf"{name}({reason})"):
            whole(node_rows(features=tmp_path / name)[1]["node/x"])


def test_labels_and_masks_that_are_none(tmp_path):
    np.save(tmp_path / "y.npy", np.array([0, 1, -2]))
    with refused(r"y\.npy has the label -2 at row 2; expected a class, 0 \.\."):
        node_rows(labels=tmp_path / "y.npy")
    (tmp_path / "y.csv").write_text("0\n1.5\n")
    with refused(r"y\.csv has the label 1\.5 at row 1"):
        node_rows(labels=tmp_path / "y.csv")
    (tmp_path / "y.csv").write_text('0\n""\n')
    with refused(r"y\.csv has the label nan at row 1"):
        node_rows(labels=tmp_path / "y.csv")
    np.save(tmp_path / "y.npy", np.zeros(3))
    with refused(r"y\.npy is float64 \[3\]; expected integers \[nodes\], or 0 and 1"):
        node_rows(labels=tmp_path / "y.npy")
    np.save(tmp_path / "y.npy", np.zeros(3, int))
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    with refused(r"y\.npy has 3 rows; .*x\.npy has 4"):
        node_rows(features=tmp_path / "x.npy", labels=tmp_path / "y.npy")
    np.save(tmp_path / "m.npy", np.array([0, 3]))
    with refused(r"m\.npy has 3 at row 1; expected node numbers, 0 \.\. 2"):
        node_rows(labels=tmp_path / "y.npy", masks=[tmp_path / "m.npy"] * 3)
    with refused("masks need features or labels"):
        node_rows(masks=[tmp_path / "m.npy"] * 3)
    np.save(tmp_path / "m.npy", np.zeros(4, bool))
    with refused(r"m\.npy is bool \[4\]; expected bool \[3\], or node numbers"):
        node_rows(labels=tmp_path / "y.npy", masks=[tmp_path / "m.npy"] * 3)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(r"x\.parquet: Parquet's files need pyarrow, .* pip install 'mgg-hpc\[parquet\]'"):
        node_rows(features=tmp_path / "x.parquet")


def test_a_line_of_other_blanks_is_a_word(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\x0b\n1 2\n")
    with refused(r"x\.csv:2: 2 columns; expected 1, as in the first line"):
        node_rows(features=tmp_path / "x.csv")


@pytest.mark.parametrize("rows", [0, 1, 5, 17])
def test_an_array_in_memory_comes_in_pieces(rng, blocks, rows):
    array = np.asfortranarray(rng.standard_normal((rows, 3)))
    given = of_array(array)
    found = list(given.pieces())
    assert given.layout.shape == (rows, 3) and all(piece.flags.c_contiguous for piece in found)
    assert len(found) == (-(-rows // 2) if blocks else min(rows, 1))
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 3)), *found]), array)
