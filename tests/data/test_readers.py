"""Digits, archives and Planetoid's files, against slow readings of the same; and its pickles and its download."""

from __future__ import annotations

import functools
import http.server
import io
import itertools
import pickle
import struct
import threading
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from jobs import dense
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import planetoid
from mgg_hpc.data.readers.digits import nearest, read_digits
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.data.readers.pickles import KNOWN, read_pickle
from mgg_hpc.data.readers.planetoid import download_planetoid, read_planetoid
from mgg_hpc.errors import InputError

from .graphs import edge_set, random_graph, refused, rows_of_edges, same_graph


def test_digits_are_joined_to_their_nearest():
    """As scikit-learn's search finds them: it may take another of equally near images."""
    graph = read_digits(seed=3)
    pixels, y = load_digits(return_X_y=True)
    assert graph.x.dtype == np.float32 and np.array_equal(graph.x, pixels)
    assert np.array_equal(graph.y, y) and (graph.classes, graph.directed, graph.name) == (10, False, "digits")
    limit = (
        NearestNeighbors(n_neighbors=9).fit(pixels).kneighbors(pixels)[0][:, -1]
    )  # the first is the image itself
    distance = cdist(pixels, pixels)
    joined = np.zeros(distance.shape, bool)
    joined[rows_of_edges(graph.indptr), graph.indices] = True
    assert joined.sum() == graph.edges and (joined == joined.T).all() and not joined.diagonal().any()
    assert (joined.sum(axis=1) >= 8).all()
    np.fill_diagonal(distance, np.inf)
    nearer = distance < limit[:, None] - 1e-9
    assert not (nearer & ~joined).any()
    # At least one end of each edge counts the other among its 8 nearest.
    assert (distance <= np.maximum(limit[:, None], limit) + 1e-9)[joined].all()
    for label in range(10):
        assert [np.count_nonzero(mask & (y == label)) for mask in (graph.train, graph.val)] == [20, 30]
    assert np.array_equal(graph.test, ~graph.train & ~graph.val)


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
@pytest.mark.parametrize("wide", [False, True])
def test_an_archive_is_read(multilabel, symmetric, wide, rng, tmp_path):
    """Of other types too, which are converted."""
    graph = random_graph(rng, multilabel=multilabel, symmetric=symmetric, weighted=True)
    other = {
        "x": graph.x.astype(">f8"),
        "y": graph.y.astype(np.uint8),
        "indices": graph.indices.astype(np.uint64),
        "indptr": np.asfortranarray(graph.indptr.astype(">i4")),
    }
    save(tmp_path / "some.npz", graph, weight=graph.weight, **(other if wide and not multilabel else {}))
    found = read_npz(tmp_path / "some.npz")
    pairs = edge_set(graph)
    directed = any((v, u) not in pairs for u, v in pairs)
    classes = 5 if multilabel else graph.y.max() + 1
    same_graph(found, replace(graph, directed=directed, classes=classes))
    assert found.name == "some"


@pytest.mark.data
def test_real_archives(data_folder):
    cora = read_npz(data_folder / "cora" / "cora.npz")
    assert (cora.nodes, cora.edges, cora.features) == (2708, 10556, 1433)
    assert (cora.classes, cora.directed) == (7, False)
    assert [mask.sum() for mask in (cora.train, cora.val, cora.test)] == [140, 500, 1000]
    assert len(cora.x.data) == 49216
    blog = read_npz(data_folder / "blogcatalog_asu" / "blogcatalog_asu.npz")
    assert (blog.nodes, blog.classes, blog.multilabel, blog.train) == (10312, 39, True, None)
    web = data_folder / "cnr_2000" / "cnr_2000.npz"
    whole, original = read_npz(web), read_npz(web, directed=True)
    assert (whole.edges, whole.directed) == (5477938, False)
    assert (original.edges, original.directed) == (3216152, True)
    split = read_npz(data_folder / "tolokers" / "tolokers.npz", split=7)
    with np.load(data_folder / "tolokers" / "tolokers.npz") as arrays:
        for name in ("train", "val", "test"):
            assert np.array_equal(getattr(split, name), arrays[f"{name}_masks"][7])


@pytest.mark.parametrize("name", ["train_mask", "train_masks"])
@pytest.mark.parametrize("by_node", [True, False])
def test_splits_are_columns_or_rows(name, by_node, rng, tmp_path):
    kinds = rng.integers(3, size=(4, 6))
    masks = {split: kinds == i for i, split in enumerate(("train", "val", "test"))}
    path, suffix = tmp_path / "a.npz", name.removeprefix("train")
    arrays = {f"{split}{suffix}": mask.T if by_node else mask for split, mask in masks.items()}
    np.savez(path, indptr=np.zeros(7, np.int64), indices=np.zeros(0, np.int32), y=np.zeros(6, int), **arrays)
    for split in range(4):
        found = read_npz(path, split=split)
        for part, mask in masks.items():
            assert np.array_equal(getattr(found, part), mask[split])
    with refused(r"has splits 0 \.\. 3; there is no split 4"):
        read_npz(path, split=4)
    if name == "train_mask":
        with refused("train_mask holds several splits; choose one, as by --split 0"):
            read_npz(path)


BAD_ARRAYS = {
    "indptr missing": ({"indptr": None}, "the array indptr is missing"),
    "ids that are bool": ({"indices": np.zeros(7, bool)}, r"indices is bool \[7\]; expected number \[any\]"),
    "short mask": ({"val_mask": np.zeros(39, bool)}, r"val_mask is bool \[39\]; expected bool \[40\]"),
    "other rows": ({"x": np.zeros((39, 2))}, r"x is float64 \[39, 2\]; expected number \[40, any\]"),
    "objects": ({"x": np.array([{}] * 40)}, r"x is object \[40\]; expected number"),
    "float labels": ({"y": np.full(40, 0.5)}, "y has the label 0.5 at row 0; expected a class"),
    "overlap": (dict.fromkeys(["train_mask", "val_mask"], np.ones(40, bool)), "row 0 is in /node/train and"),
}


@pytest.mark.parametrize("change", BAD_ARRAYS)
def test_an_archive_that_is_wrong(change, rng, tmp_path):
    changed, reason = BAD_ARRAYS[change]
    save(tmp_path / "g.npz", random_graph(rng), **changed)
    with refused(rf"g\.npz:? .*{reason}"):
        read_npz(tmp_path / "g.npz")


# --- Planetoid's files


class Python2Pickler(pickle._Pickler):
    """Writes all texts and bytes as Python 2 did."""

    def save_text(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(data)) + data)

    dispatch = pickle._Pickler.dispatch | dict.fromkeys((str, bytes), save_text)


def python2_dumps(value: Any) -> bytes:
    """Pickle as Python 2 and the NumPy and SciPy of 2016, whose modules had other names."""
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return (
        out.getvalue()
        .replace(b"cnumpy._core.", b"cnumpy.core.")
        .replace(b"scipy.sparse._csr", b"scipy.sparse.csr")
    )


def one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.int32)[y]


PICKLERS = {"Python 2": python2_dumps, "Python 3": functools.partial(pickle.dumps, protocol=2)}


@pytest.fixture(params=PICKLERS)
def small(request, rng, tmp_path):
    """1,200 nodes, 6 of them in the test range but in no file; duplicate and one-way entries, self loops."""
    nodes, known, trained, classes = 1200, 1000, 30, 4
    test = rng.permutation(np.delete(np.arange(known, nodes), [3, 50, 51, 99, 100, 150])).tolist()
    x = np.where(rng.random((nodes, 9)) < 0.2, rng.random((nodes, 9)), 0).astype(np.float32)
    y = rng.integers(classes, size=nodes)
    neighbours = {node: rng.integers(nodes, size=rng.integers(6)).tolist() for node in range(nodes)}
    neighbours[7] = [7, 8, 8]  # a self loop and a duplicate
    csr = scipy.sparse.csr_matrix(x)
    parts = {
        "allx": csr[:known],
        "ally": one_hot(y[:known], classes),
        "x": csr[:trained],
        "y": one_hot(y[:trained], classes),
        "tx": csr[test],
        "ty": one_hot(y[test], classes),
        "graph": defaultdict(list, neighbours),
    }
    for part, value in parts.items():
        (tmp_path / f"ind.small.{part}").write_bytes(PICKLERS[request.param](value))
    (tmp_path / "ind.small.test.index").write_text("".join(f"{node}\n" for node in test))
    return tmp_path, x, y, neighbours, test


def test_nodes_are_where_their_numbers_say(small):
    folder, x, y, neighbours, test = small
    graph = read_planetoid(folder, "small")
    facts = graph.name, graph.nodes, graph.features, graph.classes, graph.directed
    assert facts == ("small", 1200, 9, 4, False)
    missing = sorted(set(range(1000, 1200)) - set(test))
    assert len(missing) == 6
    expected_x, expected_y = x.copy(), y.copy()
    expected_x[missing], expected_y[missing] = 0, 0
    assert np.array_equal(dense(graph.x), expected_x)
    assert np.array_equal(graph.y, expected_y)
    assert np.flatnonzero(graph.train).tolist() == list(range(30))
    assert np.flatnonzero(graph.val).tolist() == list(range(30, 530))
    assert np.flatnonzero(graph.test).tolist() == sorted(test)
    pairs = {(u, v) for u, row in neighbours.items() for v in row if u != v}
    assert edge_set(graph) == pairs | {(v, u) for u, v in pairs}
    assert graph.edges == len(edge_set(graph))


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and one that breaks off."""

    def do_GET(self):
        if "broken" not in self.path:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        return self.wfile.write(b"x" * 10)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """The address of a folder."""
    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.slow
def test_a_graph_is_downloaded(small, server, monkeypatch):
    folder = small[0]
    same_graph(download_planetoid("small", base=f"{server}/"), read_planetoid(folder, "small"))
    monkeypatch.setattr(planetoid, "LARGEST", 1 << 20)
    (folder / "ind.large.x").write_bytes(bytes(3 << 20))
    for name, base, reason in [
        ("other", server, rf"{server}/ind.other.x is not there: 404"),
        ("large", server, "is larger than 1 MiB"),
        ("broken", server, r"x (broke off after 10 of 1000 bytes|cannot be reached)"),
        ("cora", "http://127.0.0.1:9", r"http://127\.0\.0\.1:9/ind\.cora\.x cannot be reached .*refused"),
        ("cora", "no address", r"no address/ind\.cora\.x is not an address"),
        ("../secret", server, r"'\.\./secret' is not the name"),
    ]:
        with refused(reason):
            download_planetoid(name, base=base)


class Caller:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_cannot_call_anything(tmp_path):
    path = tmp_path / "p"
    mark = tmp_path / "mark"
    for protocol, call in itertools.product(range(5), [
        Caller(open, str(mark), "w"),
        Caller(eval, "1"),
        Caller(np.load, "x"),
        Caller(scipy.sparse.coo_matrix, (1, 1)),
    ]):  # fmt: skip
        path.write_bytes(pickle.dumps([call], protocol=protocol))
        with refused(rf"p is not a pickle of arrays: it asks for [\w.]+\.{call.call[0].__name__}$"):
            read_pickle(path)
    assert not mark.exists()


def test_a_pickle_cannot_change_what_it_names(tmp_path):
    """State for a class or function that the reader provides, as a dictionary and as attributes."""
    path = tmp_path / "p"
    for module, name in KNOWN:
        for state in [b"}(U\x04evilK\x01u", b"(N}(U\x04evilK\x01ut", b"(N}(U\x0c__setstate__Nut"]:
            path.write_bytes(b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.")
            with pytest.raises(InputError):
                read_pickle(path)
        assert not hasattr(KNOWN[module, name], "evil")


def test_damaged_pickles_give_one_kind_of_error(small, rng):
    path = small[0] / "ind.small.allx"
    whole = path.read_bytes()
    for _ in range(300):
        data = bytearray(whole[: rng.integers(len(whole))] if rng.random() < 0.3 else whole)
        for at in rng.integers(max(1, len(data)), size=3):
            data[at : at + 1] = bytes([rng.integers(256)])
        path.write_bytes(data)
        try:
            read_planetoid(small[0], "small")
        except InputError as error:
            assert "\n" not in str(error) and "ind.small." in str(error)


def fifth(word: str):
    """Another fifth line."""
    return lambda lines: [*lines[:4], word, *lines[5:]]


NO_NUMBER = r"ind\.small\.graph lists a neighbour that is no node number"
BROKEN = {
    "a word": ("test.index", fifth("12x"), r"test\.index:5: '12x' is not a test node's number"),
    "a high number": ("test.index", fifth("99999999"), r"test\.index:5: '99999999' is not"),
    "many digits": ("test.index", fifth("9" * 60), r":5: '9{39}\.\.\.' is not a test node's number"),
    "many lines": ("test.index", lambda lines: lines * 30, "test.index is larger than a list of 194 numbers"),
    "few lines": ("test.index", lambda lines: lines[:-1], r"test\.index lists 193 nodes; expected 194"),
    "a line twice": ("test.index", lambda lines: [*lines[:-1], lines[0]], r"test\.index lists 193 nodes"),
    "few labels": ("ally", one_hot(np.zeros(999, int), 4), "disagree about the number of nodes"),
    "no columns": ("allx", np.zeros((2**27, 0), np.int32), "allx holds a matrix without entries"),
    "a list": ("graph", [0, 1], "does not hold a dictionary"),
    "another node": ("graph", {0: [1200]}, r"ind\.small\.graph names a node outside 0 \.\. 1199"),
    "a text": ("graph", {0: ["a"]}, NO_NUMBER),
    "lists": ("graph", {1: [[1, 2], [3, 4]]}, NO_NUMBER),
    "a large number": ("graph", {1: [2**70]}, NO_NUMBER),
    "a digit": ("graph", {"1": [1]}, NO_NUMBER),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_do_not_fit_together(small, case):
    part, content, reason = BROKEN[case]
    path = small[0] / f"ind.small.{part}"
    if part == "test.index":
        path.write_text("\n".join(content(path.read_text().split())))
    else:
        path.write_bytes(python2_dumps(content))
    with refused(reason):
        read_planetoid(small[0], "small")


@pytest.mark.parametrize(
    ("folder", "reason"),
    [(".", r"ind\.small\.x is missing; Planetoid's graphs are 8 files"), ("none", "none is not a folder")],
)
def test_folders_without_a_graph(folder, reason, tmp_path):
    with refused(reason):
        read_planetoid(tmp_path / folder, "small")
