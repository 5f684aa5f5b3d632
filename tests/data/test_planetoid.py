"""Planetoid's files: their order of nodes, their gaps, their pickles and their download."""

from __future__ import annotations

import contextlib
import functools
import http.server
import pickle
import threading

import numpy as np
import pytest
import scipy.sparse
from jobs import dense

from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import planetoid
from mgg_hpc.data.readers.pickles import KNOWN, read_pickle
from mgg_hpc.data.readers.planetoid import download_planetoid, read_planetoid
from mgg_hpc.errors import InputError

from . import python2_pickle
from .graphs import edge_set, refused


def one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.int32)[y]


def write_files(folder, name, x, y, classes, neighbours, *, known, trained, test, dumps) -> None:
    """ind.<name>.* of a graph whose rows ``x`` (CSR) and labels ``y`` are in node order."""
    parts = {
        "allx": x[:known],
        "ally": one_hot(y[:known], classes),
        "x": x[:trained],
        "y": one_hot(y[:trained], classes),
        "tx": x[test],
        "ty": one_hot(y[test], classes),
        "graph": neighbours,
    }
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(dumps(value))
    (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in test))


PICKLERS = {"Python 2": python2_pickle.dumps, "Python 3": functools.partial(pickle.dumps, protocol=2)}


@pytest.fixture(params=PICKLERS)
def small(request, rng, tmp_path):
    """1,200 nodes, 6 of them in the test range but in no file; duplicate and one-way entries, self loops."""
    nodes, known, trained, classes = 1200, 1000, 30, 4
    test = rng.permutation(np.delete(np.arange(known, nodes), [3, 50, 51, 99, 100, 150])).tolist()
    x = np.where(rng.random((nodes, 9)) < 0.2, rng.random((nodes, 9)), 0).astype(np.float32)
    y = rng.integers(classes, size=nodes)
    neighbours = {node: rng.integers(nodes, size=rng.integers(6)).tolist() for node in range(nodes)}
    neighbours[7] = [7, 8, 8]  # a self loop and a duplicate
    options = {"known": known, "trained": trained, "test": test, "dumps": PICKLERS[request.param]}
    write_files(tmp_path, "small", scipy.sparse.csr_matrix(x), y, classes, neighbours, **options)
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


def assert_same(found: Graph, expected: Graph) -> None:
    for field in ("indptr", "indices", "y", "train", "val", "test"):
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field
    for field in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(found.x, field), getattr(expected.x, field)), field
    assert (found.classes, found.directed) == (expected.classes, expected.directed)


@contextlib.contextmanager
def serving(handler):
    """Answer requests on the loopback; yields the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """The address that serves the folder."""
    with serving(functools.partial(QuietHandler, directory=str(tmp_path))) as address:
        yield address


@pytest.mark.slow
def test_a_graph_is_downloaded(small, server):
    folder = small[0]
    assert_same(download_planetoid("small", base=f"{server}/"), read_planetoid(folder, "small"))
    (folder / "ind.small.ty").unlink()
    with refused(rf"{server}/ind.small.ty is not there: 404"):
        download_planetoid("small", base=server)


@pytest.mark.slow
def test_downloads_that_fail(server, tmp_path, monkeypatch):
    for name, base, reason in [
        ("cora", "http://127.0.0.1:9", r"http://127\.0\.0\.1:9/ind\.cora\.x cannot be reached .*refused"),
        ("cora", "no address", r"no address/ind\.cora\.x is not an address"),
        ("../secret", server, r"'\.\./secret' is not the name"),
    ]:
        with refused(reason):
            download_planetoid(name, base=base)
    monkeypatch.setattr(planetoid, "LARGEST", 1 << 20)
    (tmp_path / "ind.cora.x").write_bytes(bytes(3 << 20))
    with refused("is larger than 1 MiB"):
        download_planetoid("cora", base=server)


@pytest.mark.slow
def test_a_download_that_breaks_off(tmp_path):
    class Short(QuietHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)

    with serving(Short) as address, refused(r"x (broke off after 10 of 1000 bytes|cannot be reached)"):
        download_planetoid("cora", base=address)


class Caller:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_cannot_call_anything(tmp_path):
    path = tmp_path / "p"
    mark = tmp_path / "mark"
    for protocol in range(5):
        for call, name in [
            (Caller(open, str(mark), "w"), "open"),
            (Caller(eval, "1"), "eval"),
            (Caller(np.load, "x"), "load"),
            (Caller(scipy.sparse.coo_matrix, (1, 1)), "coo_matrix"),
        ]:
            path.write_bytes(pickle.dumps([call], protocol=protocol))
            with refused(rf"p is not a pickle of arrays: it asks for [\w.]+\.{name}$"):
                read_pickle(path)
    assert not mark.exists()


OBJECTS = [
    np.array([{}], dtype=object),
    np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
    np.array(["text"]),
]


@pytest.mark.parametrize("value", OBJECTS, ids=["objects", "records", "text"])
def test_arrays_are_of_numbers(value, tmp_path):
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=2))
    with refused("an array of type"):
        read_pickle(tmp_path / "p")


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


def test_files_that_do_not_fit_together(small):
    folder = small[0]
    with refused(r"ind\.other\.x is missing; Planetoid's graphs are 8 files"):
        read_planetoid(folder, "other")
    with refused("none is not a folder"):
        read_planetoid(folder / "none", "small")
    index = folder / "ind.small.test.index"
    lines = index.read_text().splitlines()
    for changed, reason in [
        ([*lines[:4], "12x", *lines[5:]], r"test\.index:5: '12x' is not a test node's number"),
        ([*lines[:4], "999", *lines[5:]], r"test\.index:5: '999' is not"),
        ([*lines[:4], "99999999", *lines[5:]], r"test\.index:5: '99999999' is not"),
        (lines[:-1], r"test\.index lists 193 nodes; expected 194"),
        ([*lines[:-1], lines[0]], r"test\.index lists 193 nodes"),
    ]:
        index.write_text("\n".join(changed))
        with refused(reason):
            read_planetoid(folder, "small")
    index.write_text("\n".join(lines))
    (folder / "ind.small.ally").write_bytes(python2_pickle.dumps(one_hot(np.zeros(999, int), 4)))
    with refused("disagree about the number of nodes"):
        read_planetoid(folder, "small")


def test_neighbours_are_nodes(small):
    graph = small[0] / "ind.small.graph"
    for content, reason in [
        ({0: [1200]}, r"ind\.small\.graph names a node outside 0 \.\. 1199"),
        ({0: ["a"]}, "a neighbour that is no node number"),
        ([0, 1], "does not hold a dictionary"),
    ]:
        graph.write_bytes(python2_pickle.dumps(content))
        with refused(reason):
            read_planetoid(small[0], "small")
