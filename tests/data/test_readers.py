"""Digits, archives and edge lists, against slow readings of the same."""

from __future__ import annotations

import gzip
import itertools
import re
import zipfile

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import edge_list
from mgg_hpc.data.readers.digits import nearest, read_digits
from mgg_hpc.data.readers.edge_list import read_edge_list
from mgg_hpc.data.readers.node_arrays import read_node_arrays
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.errors import InputError

from .graphs import edge_set, random_graph


def test_digits_are_joined_to_their_nearest():
    graph = read_digits(seed=3)
    pixels, y = load_digits(return_X_y=True)
    assert graph.x.dtype == np.float32 and np.array_equal(graph.x, pixels)
    assert np.array_equal(graph.y, y) and (graph.classes, graph.directed, graph.name) == (10, False, "digits")
    pairs = edge_set(graph)
    assert all((v, u) in pairs and u != v for u, v in pairs) and len(pairs) == graph.edges
    # scikit-learn's own search, as distances: it may take another of equally near images.
    distances, _ = NearestNeighbors(n_neighbors=9).fit(pixels).kneighbors(pixels)
    for row in range(len(y)):
        own = np.sort([((pixels[row] - pixels[u]) ** 2).sum() ** 0.5 for u, v in pairs if v == row])
        assert len(own) >= 8 and np.allclose(own[:8], distances[row, 1:])
        if row == 20:
            break
    for label in range(10):
        assert [np.count_nonzero(mask & (y == label)) for mask in (graph.train, graph.val)] == [20, 30]
    assert np.array_equal(graph.test, ~graph.train & ~graph.val)


def test_each_edge_of_the_digits_is_one_of_the_nearest():
    """Of each pair at least one end counts the other among its 8 nearest."""
    graph = read_digits()
    pixels = load_digits().data
    limit = NearestNeighbors(n_neighbors=9).fit(pixels).kneighbors(pixels)[0][:, -1]
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    distance = np.sqrt(((pixels[rows] - pixels[graph.indices]) ** 2).sum(axis=1))
    assert (distance <= np.maximum(limit[rows], limit[graph.indices]) + 1e-9).all()


def test_a_split_follows_its_seed():
    first, again, other = read_digits(seed=1), read_digits(seed=1), read_digits(seed=2)
    assert np.array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)


def test_ties_go_to_the_lower_id():
    points = np.array([[0], [1], [-1], [1], [5]])
    assert sorted(nearest(points, 2)[0].tolist()) == [1, 2]
    assert sorted(nearest(points, 1)[1].tolist()) == [3]


# --- archives


def save(path, graph: Graph, **changed) -> None:
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "x": graph.x, "y": graph.y}
    arrays |= {f"{name}_mask": getattr(graph, name) for name in ("train", "val", "test")} | changed
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_archive_is_read(multilabel, symmetric, rng, tmp_path):
    graph = random_graph(rng, multilabel=multilabel, symmetric=symmetric, weighted=True)
    save(tmp_path / "some.npz", graph, weight=graph.weight)
    found = read_npz(tmp_path / "some.npz")
    for field in ("indptr", "indices", "weight", "x", "y", "train", "val", "test"):
        assert np.array_equal(getattr(found, field), getattr(graph, field)), field
        assert getattr(found, field).dtype == getattr(graph, field).dtype
    pairs = edge_set(graph)
    assert found.directed == any((v, u) not in pairs for u, v in pairs)
    assert (found.name, found.classes) == ("some", 5 if multilabel else graph.y.max() + 1)


def test_other_types_are_converted(rng, tmp_path):
    graph = random_graph(rng)
    wide = {
        "x": graph.x.astype(">f8"),
        "y": graph.y.astype(np.uint8),
        "indices": graph.indices.astype(np.uint64),
    }
    save(tmp_path / "g.npz", graph, **wide, indptr=np.asfortranarray(graph.indptr.astype(">i4")))
    found = read_npz(tmp_path / "g.npz")
    for field, dtype in [("x", np.float32), ("y", np.int64), ("indices", np.int32), ("indptr", np.int64)]:
        assert np.array_equal(getattr(found, field), getattr(graph, field))
        assert getattr(found, field).dtype == dtype and getattr(found, field).dtype.isnative


@pytest.mark.data
def test_real_archives(data_folder):
    cora = read_npz(data_folder / "cora" / "cora.npz")
    assert (cora.nodes, cora.edges, cora.features, cora.classes, cora.directed) == (
        2708,
        10556,
        1433,
        7,
        False,
    )
    assert [mask.sum() for mask in (cora.train, cora.val, cora.test)] == [140, 500, 1000]
    assert len(cora.x.data) == 49216
    blog = read_npz(data_folder / "blogcatalog_asu" / "blogcatalog_asu.npz")
    assert (blog.nodes, blog.classes, blog.multilabel, blog.train) == (10312, 39, True, None)


@pytest.mark.data
def test_a_real_archive_with_several_splits(data_folder):
    path = data_folder / "tolokers" / "tolokers.npz"
    with np.load(path) as arrays:
        for split in (0, 7):
            found = read_npz(path, split=split)
            for name in ("train", "val", "test"):
                assert np.array_equal(getattr(found, name), arrays[f"{name}_masks"][split])
    with pytest.raises(InputError, match=r"has splits 0 \.\. 9; there is no split 10"):
        read_npz(path, split=10)


@pytest.mark.data
def test_the_directed_original_of_a_real_archive(data_folder):
    path = data_folder / "cnr_2000" / "cnr_2000.npz"
    whole, original = read_npz(path), read_npz(path, directed=True)
    assert (whole.edges, whole.directed) == (5477938, False)
    assert (original.edges, original.directed) == (3216152, True)


BAD_ARRAYS = {
    "indptr missing": ({"indptr": None}, "the array indptr is missing"),
    "decreasing": ({"indptr": np.array([0] + [5, 3] * 20)}, "/graph/indptr decreases at row 1"),
    "out of range": ({"indices": np.full(7, 40)}, r"indices has 40 at entry 0; expected 0 \.\. 39"),
    "float ids": ({"indices": np.zeros(7)}, r"indices is float64 \[7\]; expected int \[any\]"),
    "short mask": ({"val_mask": np.zeros(39, bool)}, r"val_mask is bool \[39\]; expected bool \[40\]"),
    "other rows": ({"x": np.zeros((39, 2))}, r"x is float64 \[39, 2\]; expected number \[40, any\]"),
    "objects": ({"x": np.array([{}] * 40)}, r"x is object \[40\]; expected number"),
    "float labels": ({"y": np.zeros(40)}, r"y is float64 \[40\]; expected integers \[nodes\]"),
    "overlapping masks": (
        {"val_mask": np.ones(40, bool), "train_mask": np.ones(40, bool)},
        "row 0 is in /node/train and /node/val",
    ),
    "NaN": ({"x": np.full((40, 2), np.nan)}, "/node/x has nan at row 0, column 0"),
}


@pytest.mark.parametrize("change", BAD_ARRAYS)
def test_an_archive_that_is_wrong(change, rng, tmp_path):
    changed, reason = BAD_ARRAYS[change]
    save(tmp_path / "g.npz", random_graph(rng), **changed)
    with pytest.raises(InputError, match=rf"g\.npz:? .*{reason}"):
        read_npz(tmp_path / "g.npz")


def test_files_that_are_no_archives(rng, tmp_path):
    with pytest.raises(InputError, match=r"none\.npz cannot be read: No such file"):
        read_npz(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(InputError, match=r"text\.npz is not a NumPy archive"):
        read_npz(tmp_path / "text.npz")
    save(tmp_path / "g.npz", random_graph(rng))
    whole = (tmp_path / "g.npz").read_bytes()
    for length in rng.integers(len(whole), size=20):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.npz is not a NumPy archive"):
            read_npz(tmp_path / "cut.npz")


def test_a_damaged_archive_never_gives_another_error(rng, tmp_path):
    save(tmp_path / "g.npz", random_graph(rng))
    whole = (tmp_path / "g.npz").read_bytes()
    refused = 0
    for _ in range(200):
        data = bytearray(whole)
        for at in rng.integers(len(data), size=4):
            data[at] = rng.integers(256)
        (tmp_path / "cut.npz").write_bytes(data)
        try:
            read_npz(tmp_path / "cut.npz")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 50


def test_an_archive_that_claims_encryption(rng, tmp_path):
    save(tmp_path / "g.npz", random_graph(rng))
    data = bytearray((tmp_path / "g.npz").read_bytes())
    data[data.find(b"PK\x01\x02") + 8] |= 1  # the flag in the first entry of the directory
    (tmp_path / "g.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"g\.npz is not a NumPy archive .*encrypted"):
        read_npz(tmp_path / "g.npz")


def test_a_size_that_is_not_there_is_not_allocated(tmp_path):
    header = (
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,)}"
    )
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("indptr.npy", header.ljust(127) + b"\n" + bytes(64))
    with pytest.raises(InputError, match=r"indptr claims int64 \[1099511627776\], which it does not hold"):
        read_npz(tmp_path / "g.npz")


# --- edge lists


@pytest.fixture(params=["one block", "small blocks", "line by line"])
def blocks(request, monkeypatch):
    """Each way in which a list may be read."""
    if request.param == "small blocks":
        monkeypatch.setattr(edge_list, "BLOCK_BYTES", 50)
    if request.param == "line by line":
        monkeypatch.setattr(edge_list, "_parse_block", lambda *_: None)


def written_edges(rng, edges: int, *, weighted: bool, separator: str, noise: bool) -> tuple[str, list]:
    """Text, and what it says: (source, destination, weight) of each line."""
    listed, lines = [], []
    for source, destination in rng.integers(30, size=(edges, 2)).tolist():
        words = [str(source), str(destination)]
        weight = 1.0
        if weighted:
            words.append(rng.choice(["0.5", "-2", "1e-3", "+.25", "3.14159265358979", "1E2"]))
            weight = float(np.float32(words[-1]))
        line = separator.join(words)
        if noise:
            line = rng.choice(["", " ", "\t"]) + line + rng.choice(["", " ", "\r"])
            lines += [rng.choice(["", "   ", "# comment 1 2", "  % 3"])] * (rng.random() < 0.2)
        lines.append(line)
        listed.append((source, destination, weight))
    return "\n".join(lines) + ("" if noise else "\n"), listed


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("separator", [" ", "\t", ",", ", ", "   "])
def test_an_edge_list_says_what_its_lines_say(packed, noise, weighted, separator, rng, tmp_path, blocks):
    text, listed = written_edges(rng, 200, weighted=weighted, separator=separator, noise=noise)
    path = tmp_path / "some.edges.txt"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    graph = read_edge_list(path)
    assert (graph.name, graph.directed, graph.edges) == ("some", True, 200)
    assert graph.nodes == 1 + max(max(u, v) for u, v, _ in listed)
    expected = sorted((v, u, w) for u, v, w in listed)
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr)).tolist()
    weights = [1.0] * 200 if graph.weight is None else graph.weight.tolist()
    assert (graph.weight is not None) == weighted
    assert sorted(zip(rows, graph.indices.tolist(), weights, strict=True)) == expected


def test_symmetric_and_simple_lists(rng, tmp_path, blocks):
    text, listed = written_edges(rng, 100, weighted=False, separator=" ", noise=False)
    path = tmp_path / "e.txt"
    path.write_text(text)
    pairs = {(u, v) for u, v, _ in listed}
    both = pairs | {(v, u) for u, v in pairs}
    for options, expected in [
        ({"symmetric": True}, both),
        ({"simple": True}, {(u, v) for u, v in pairs if u != v}),
        ({"symmetric": True, "simple": True}, {(u, v) for u, v in both if u != v}),
    ]:
        graph = read_edge_list(path, **options)
        assert edge_set(graph) == expected and graph.edges == len(expected)
        assert graph.directed != options.get("symmetric", False)
    assert read_edge_list(path, nodes=77).nodes == 77


@pytest.mark.data
def test_a_real_edge_list(data_folder, tmp_path):
    """The symmetrised tolokers graph: 519,000 lines, read from gzip."""
    with np.load(data_folder / "tolokers" / "tolokers.npz") as arrays:
        indptr, indices = arrays["indptr"], arrays["indices"]
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    upper = scipy.sparse.triu(scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, indices))))
    upper = upper.tocoo()
    text = "# from to\n" + "".join(f"{u}\t{v}\n" for u, v in zip(upper.row, upper.col, strict=True))
    (tmp_path / "e.tsv.gz").write_bytes(gzip.compress(text.encode(), 1))
    graph = read_edge_list(tmp_path / "e.tsv.gz", symmetric=True)
    assert np.array_equal(graph.indptr, indptr) and np.array_equal(graph.indices, indices)


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
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", [1, 57, 199])
@pytest.mark.parametrize("line", BAD_LINES)
def test_a_wrong_line_is_named_by_its_number(line, place, packed, tmp_path, blocks):
    bad, reason = BAD_LINES[line]
    lines = ["# header", "", *["12 3"] * 200]
    lines[2 + place] = bad
    path = tmp_path / "e.txt"
    data = "\n".join(lines).encode("latin1" if line == "not text" else "utf-8")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(InputError, match=re.escape(f"e.txt:{place + 3}: {reason}")):
        read_edge_list(path)


def test_a_first_line_of_one_column_is_wrong(tmp_path, blocks):
    (tmp_path / "e.txt").write_text("# header\n7\n8\n")
    with pytest.raises(InputError, match=r"e\.txt:2: 1 columns; expected 2: source, destination"):
        read_edge_list(tmp_path / "e.txt")


@pytest.mark.parametrize("bad", ["abc", "nan", "inf", "1e39", "0x10", "1_0", "١"])
def test_a_wrong_weight_is_named_by_its_line(bad, tmp_path, blocks):
    lines = ["0 1 0.5"] * 20
    lines[13] = f"0 1 {bad}"
    (tmp_path / "e.txt").write_text("\n".join(lines))
    with pytest.raises(InputError, match=rf"e\.txt:14: .*{bad}"):
        read_edge_list(tmp_path / "e.txt")


def test_lines_and_blocks_agree_on_random_text(rng, tmp_path, monkeypatch):
    """Any text gives the same edges or the same error, whether blocks or lines are parsed."""
    alphabet = list("0123456789") * 3 + list("  \t\n\n\n,,.-+e#%x")
    for _ in range(400):
        path = tmp_path / "e.txt"
        lines = ["1 2\n"] * rng.integers(3) + rng.choice(alphabet, size=rng.integers(1, 20)).tolist()
        path.write_text("".join(lines))
        results = []
        for parse in (edge_list._parse_block, lambda *_: None):
            with monkeypatch.context() as patched:
                patched.setattr(edge_list, "_parse_block", parse)
                try:
                    graph = read_edge_list(path)
                    weights = None if graph.weight is None else graph.weight.tolist()
                    results.append((graph.indptr.tolist(), graph.indices.tolist(), weights))
                except InputError as error:
                    results.append(str(error))
        assert results[0] == results[1], path.read_text()


def test_lists_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt cannot be read: No such file"):
        read_edge_list(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    with pytest.raises(InputError, match=r"empty\.txt holds no edges"):
        read_edge_list(tmp_path / "empty.txt")
    whole = gzip.compress(b"1 2\n" * 1000)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-6])
    with pytest.raises(InputError, match=r"cut\.txt\.gz is damaged gzip"):
        read_edge_list(tmp_path / "cut.txt.gz")
    (tmp_path / "gap.txt").write_text("0 1\n5 100000000\n")
    with pytest.raises(InputError, match="has the node id 100000000 but only 2 edges"):
        read_edge_list(tmp_path / "gap.txt")
    (tmp_path / "few.txt").write_text("0 1\n5 7\n")
    with pytest.raises(InputError, match=r"few\.txt:2: the node id 7 is too large; expected 0 \.\. 6"):
        read_edge_list(tmp_path / "few.txt", nodes=7)


# --- features and labels beside an edge list


def test_features_and_labels(rng, tmp_path):
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    for features, labels in itertools.product(
        [rng.normal(size=(9, 3)), rng.integers(5, size=(9, 3)), rng.normal(size=(9, 3)).astype(np.float16)],
        [rng.integers(4, size=9).astype(np.uint8), np.eye(9)[:, :4], np.full(9, -1)],
    ):
        np.save(x, features)
        np.save(y, labels)
        nodes, fields = read_node_arrays(x, y)
        assert nodes == 9 and fields["x"].dtype == (
            np.float16 if features.dtype == np.float16 else np.float32
        )
        assert np.array_equal(fields["x"], features.astype(fields["x"].dtype))
        assert np.array_equal(fields["y"], labels)
        assert fields["classes"] == (4 if labels.ndim == 2 else max(int(labels.max()), 0) + 1)
    assert read_node_arrays(None, None) == (None, {})


def test_features_and_labels_that_do_not_fit(rng, tmp_path):
    for array, reason in [
        (np.zeros(3), r"x\.npy is float64 \[3\]; expected numbers \[nodes, features\]"),
        (np.array([["a"]]), r"x\.npy is <U1 \[1, 1\]; expected numbers"),
        (np.array([[{}]]), r"x\.npy is not a NumPy array \(\.npy\) of numbers"),
    ]:
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(InputError, match=reason):
            read_node_arrays(tmp_path / "x.npy", None)
    np.save(tmp_path / "x.npy", np.zeros((3, 1)))
    np.save(tmp_path / "y.npy", np.zeros(4, int))
    with pytest.raises(InputError, match=r"y\.npy is int64 \[4\]; .*x\.npy has 3 rows"):
        read_node_arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(InputError, match=r"none\.npy cannot be read"):
        read_node_arrays(None, tmp_path / "none.npy")
    (tmp_path / "z.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"z\.npy is not a NumPy array"):
        read_node_arrays(None, tmp_path / "z.npy")
