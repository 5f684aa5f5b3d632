"""A graph is the same by every way in: files, SciPy, networkx, PyG, DGL's interface and NumPy; weights stay weights."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from command import mgg, refused
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import mgg_hpc as mgg_

NODES = 30


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def edges(rng):
    """Sources, destinations and weights of a directed multigraph with self loops; some are listed twice."""
    source, destination = rng.integers(NODES, size=(2, 150))
    source[:6] = destination[:6]
    source[6:10], destination[6:10] = source[:4], destination[:4]
    source[10:20], destination[10:20] = source[20:30], destination[20:30]
    return source, destination, (rng.integers(1, 64, 150) / 8).astype(np.float32)


def scipy_rows(u, v, w):
    """A CSR whose entry (i, j) is an edge i -> j, parallel edges kept."""
    return compressed(v, u, w)


def compressed(u, v, w):
    """A CSR whose row v lists u."""
    order = np.lexsort((np.arange(len(u)), u, v))
    indptr = np.append(0, np.cumsum(np.bincount(v, minlength=NODES)))
    return sp.csr_matrix((w[order], u[order], indptr), (NODES, NODES))


def digraph(u, v, w):
    made = nx.MultiDiGraph()
    made.add_nodes_from(range(NODES))
    made.add_weighted_edges_from(zip(u.tolist(), v.tolist(), w.tolist(), strict=True))
    return made


def data(u, v, w):
    return Data(edge_index=torch.tensor(np.stack([u, v])), edge_weight=torch.tensor(w), num_nodes=NODES)


class Dgl:
    """What is read of a DGLGraph."""

    is_homogeneous = True

    def __init__(self, u, v, w):
        self._ends, self.ndata = (torch.tensor(u), torch.tensor(v)), {}
        self.edata = {} if w is None else {"weight": torch.tensor(w)}

    def edges(self):
        return self._ends

    def num_nodes(self):
        return NODES


Dgl.__module__ = "dgl.heterograph"


def text(u, v, w):
    with Path("e.txt").open("w") as file:
        file.writelines(f"{a} {b} {float(c)!r}\n" for a, b, c in zip(u, v, w, strict=True))
    assert mgg("import", "e.txt", "--nodes", NODES, "-o", "text.h5") == 0
    return "text.h5"


def market(u, v, w):
    with Path("m.mtx").open("w") as file:
        file.write(f"%%MatrixMarket matrix coordinate real general\n{NODES} {NODES} {len(u)}\n")
        file.writelines(f"{a + 1} {b + 1} {float(c)!r}\n" for a, b, c in zip(u, v, w, strict=True))
    assert mgg("import", "m.mtx", "-o", "market.h5") == 0
    return "market.h5"


def arrays(u, v, w):
    np.save("e.npy", np.stack([u, v])), np.save("w.npy", w)
    assert mgg("import", "e.npy", "--nodes", NODES, "--edge-data", "weight=w.npy", "-o", "arrays.h5") == 0
    return "arrays.h5"


def archive(u, v, w):
    rows = compressed(u, v, w)  # an archive's own names are of in-edges
    np.savez("a.npz", indptr=rows.indptr, indices=rows.indices, weight=rows.data)
    assert mgg("import", "a.npz", "-o", "archive.h5") == 0
    return "archive.h5"


def scipys_archive(u, v, w):
    sp.save_npz("s.npz", scipy_rows(u, v, w))
    assert mgg("import", "s.npz", "-o", "s.h5") == 0
    return "s.h5"


def pickle(u, v, w):
    mgg_.save(data(u, v, w), "first.h5")
    assert mgg("export", "first.h5", "-o", "first.pt") == 0
    mgg_.save(torch.load("first.pt", weights_only=False), "pickle.h5")
    return "pickle.h5"


def saved(take):
    def way(u, v, w):
        mgg_.save(take(u, v, w), "saved.h5")
        return "saved.h5"

    return way


def round_trip(u, v, w):
    mgg_.save(data(u, v, w), "first.h5")
    mgg_.save(mgg_.to_pyg("first.h5"), "again.h5")
    return "again.h5"


WAYS = {
    "scipy": saved(scipy_rows),
    "networkx": saved(digraph),
    "pyg": saved(data),
    "dgl": saved(Dgl),
    "text": text,
    "market": market,
    "arrays": arrays,
    "archive": archive,
    "SciPy's archive": scipys_archive,
    ".pt": pickle,
    "pyg and back": round_trip,
}


def held(path):
    """Edges and weights of a graph file, sorted; the weights are None where it has none."""
    with h5py.File(path) as file:
        indptr, indices = file["graph/indptr"][:], file["graph/indices"][:]
        weight = file["graph/weight"][:] if "graph/weight" in file else None
    destination = np.repeat(np.arange(NODES), np.diff(indptr.astype(np.int64)))
    columns = [destination, indices, *([weight] if weight is not None else [])]
    return sorted(zip(*map(np.ndarray.tolist, columns), strict=True)), weight is not None


@pytest.mark.parametrize("way", WAYS)
def test_a_multigraph_is_the_same_by_all_ways_in(way, edges):
    u, v, w = edges
    expected = sorted(zip(v.tolist(), u.tolist(), w.tolist(), strict=True))
    assert held(WAYS[way](u, v, w)) == (expected, True)


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_are_all_1_stay_weights(way, edges):
    u, v, _ = edges
    w = np.ones(len(u), np.float32)
    assert held(WAYS[way](u, v, w)) == (sorted(zip(v.tolist(), u.tolist(), w.tolist(), strict=True)), True)


@pytest.mark.parametrize("way", WAYS)
def test_layers_and_traversals_are_the_same_by_all_ways_in(way, edges, rng):
    u, v, w = edges
    path = WAYS[way](u, v, w)
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    theirs = GCNConv(5, 4)
    mine = mgg_.nn.GCNConv(5, 4)
    mine.load_state_dict(theirs.state_dict())
    given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = theirs(expected, torch.tensor(np.stack([u, v])), torch.tensor(w))
    with mgg_.open(path) as graph:
        found = mine(given, graph)
        torch.testing.assert_close(found, out, rtol=1e-5, atol=1e-5)
        found.square().sum().backward(), out.square().sum().backward()
    torch.testing.assert_close(given.grad, expected.grad, rtol=1e-4, atol=1e-4)
    whole = digraph(u, v, w)
    assert mgg("traverse", "sssp", path, "--source", 0, "-o", "d.h5") == 0
    distance = nx.single_source_dijkstra_path_length(nx.DiGraph(shortest(whole)), 0)
    with h5py.File("d.h5") as file:
        np.testing.assert_allclose(
            file["distance"][:], [distance.get(i, np.inf) for i in range(NODES)], rtol=1e-6
        )
    assert mgg("traverse", "bfs", path, "--source", 0, "-o", "b.h5") == 0
    hops = nx.single_source_shortest_path_length(whole, 0)
    with h5py.File("b.h5") as file:
        assert file["depth"][:].tolist() == [hops.get(i, -1) for i in range(NODES)]
    assert mgg("traverse", "pagerank", path, "--tolerance", 1e-10, "--dtype", "float64", "-o", "r.h5") == 0
    ranks = nx.pagerank(whole, tol=1e-14, max_iter=1000)
    with h5py.File("r.h5") as file:
        np.testing.assert_allclose(file["rank"][:], [ranks[i] for i in range(NODES)], rtol=1e-5)
    assert (
        mgg(
            "traverse",
            "pagerank",
            path,
            "--unweighted",
            "--dtype",
            "float64",
            "--tolerance",
            1e-10,
            "-o",
            "q.h5",
        )
        == 0
    )
    ranks = nx.pagerank(whole, tol=1e-14, max_iter=1000, weight=None)
    with h5py.File("q.h5") as file:
        np.testing.assert_allclose(file["rank"][:], [ranks[i] for i in range(NODES)], rtol=1e-5)


def shortest(whole):
    """The graph with the shortest of parallel edges."""
    made = nx.DiGraph()
    for a, b, c in whole.edges(data="weight"):
        if not made.has_edge(a, b) or made[a][b]["weight"] > c:
            made.add_edge(a, b, weight=c)
    return made


# ---- weights


def test_a_missing_weight_of_networkx_is_1():
    made = nx.DiGraph([(0, 1, {"weight": 2.5}), (1, 2), (2, 0, {"weight": None})])
    mgg_.save(made, "g.h5")
    with h5py.File("g.h5") as file:
        assert file["graph/weight"][:].tolist() == [1.0, 2.5, 1.0]


def test_a_networkx_graph_without_weights_has_none():
    mgg_.save(nx.path_graph(4), "g.h5")
    with h5py.File("g.h5") as file:
        assert "graph/weight" not in file


def test_lengths_are_1_without_weights_and_drawn_only_if_that_is_said(capsys):
    mgg_.save(nx.path_graph(4), "g.h5")
    assert mgg("traverse", "sssp", "g.h5", "--source", 0, "-o", "d.h5") == 0
    assert "1" in capsys.readouterr().out
    with h5py.File("d.h5") as file:
        assert file["distance"][:].tolist() == [0, 1, 2, 3]
    assert mgg("traverse", "sssp", "g.h5", "--source", 0, "--random-lengths", "-o", "r.h5") == 0
    with h5py.File("r.h5") as file:
        assert file["distance"][1] >= 8


def test_weights_of_1_are_lengths_of_1():
    made = nx.path_graph(4)
    nx.set_edge_attributes(made, 1.0, "weight")
    mgg_.save(made, "g.h5")
    assert mgg("traverse", "sssp", "g.h5", "--source", 0, "-o", "d.h5") == 0
    with h5py.File("d.h5") as file:
        assert file["distance"][:].tolist() == [0, 1, 2, 3]


# ---- files that others write


def test_what_scipys_mmwrite_writes_is_read(rng):
    for dtype in (np.uint8, np.uint32, np.int64, np.float64, np.bool_):
        matrix = sp.random(20, 20, 0.2, random_state=int(rng.integers(2**31)), format="coo")
        matrix.data = (1 + matrix.data * 100).astype(dtype)
        scipy.io.mmwrite("m.mtx", matrix)
        assert mgg("import", "m.mtx", "-o", "m.h5", "--force") == 0
        found = mgg_.to_scipy("m.h5")
        expected = matrix.tocsr().astype(np.float32)  # an entry (i, j) is an edge i -> j, here and there
        assert (found != expected).nnz == 0


def masks(shape):
    return torch.arange(shape[0] * shape[1]).reshape(shape) % 3 == 0


def test_masks_of_several_splits_are_chosen_by_split():
    made = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, y=torch.tensor([0, 1, 0]))
    made.train_mask, made.val_mask = masks((3, 10)), ~masks((3, 10))  # a node is in one mask at most
    with pytest.raises(mgg_.InputError, match="split="):
        mgg_.from_pyg(made)
    with mgg_.from_pyg(made, split=2) as graph:
        assert graph.train.tolist() == made.train_mask[:, 2].tolist()
    with pytest.raises(mgg_.InputError, match="split="):
        mgg_.save(made, "g.h5")
    mgg_.save(made, "g.h5", split=9)
    with h5py.File("g.h5") as file:
        assert (
            file["node/val_mask" if "node/val_mask" in file else "node/val"][:].tolist()
            == made.val_mask[:, 9].tolist()
        )
    for split in (10, -1):
        with pytest.raises(mgg_.InputError, match=f"no split={split}"):
            mgg_.from_pyg(made, split=split)
    made.train_mask, made.val_mask = masks((3, 1))[:, 0], ~masks((3, 1))[:, 0]
    with pytest.raises(mgg_.InputError, match="there are none"):
        mgg_.from_pyg(made, split=0)
    with pytest.raises(mgg_.InputError, match="split=0 is for masks"):
        mgg_.save(nx.path_graph(3), "n.h5", split=0)


def test_labels_of_one_column_are_classes_by_all_ways():
    y = np.array([[0], [2], [1]])
    made = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, y=torch.tensor(y))
    np.savez("a.npz", indptr=[0, 0, 1, 2], indices=[0, 1], y=y)
    np.save("y.npy", y)
    with Path("e.txt").open("w") as file:
        file.write("0 1\n1 2\n")
    assert mgg("import", "a.npz", "-o", "a.h5") == 0
    assert mgg("import", "e.txt", "--labels", "y.npy", "-o", "b.h5") == 0
    mgg_.save(made, "c.h5")
    for name in ("a.h5", "b.h5", "c.h5"):
        with h5py.File(name) as file:
            assert file["node/y"][:].tolist() == [0, 2, 1]
            assert file["node/y"].dtype == np.int64


def test_bfloat16_features_are_read_or_refused_in_one_line():
    made = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=torch.ones(3, 2, dtype=torch.bfloat16))
    try:
        mgg_.save(made, "g.h5")
    except mgg_.InputError as error:
        assert "bfloat16" in str(error)
    else:
        with h5py.File("g.h5") as file:
            assert file["node/x"][:].tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    "ids",
    [
        np.array([[0.7, 1], [1, 2]]),
        np.array([[0.0, np.nan], [1, 2]]),
        np.array([[2.0**53 + 2, 1], [1, 2]]),
        np.array([[True, False], [False, True]]),
        np.array([[-1, 1], [1, 2]]),
    ],
    ids=["fraction", "nan", "large", "bool", "negative"],
)
def test_ids_that_are_no_node_numbers_are_refused(ids, capsys):
    np.save("e.npy", ids)
    refused(capsys, "import", "e.npy", "-o", "g.h5")
    made = Data(edge_index=torch.tensor(ids), num_nodes=3)
    with pytest.raises(mgg_.InputError):
        mgg_.save(made, "g.h5")


def test_the_transposed_meaning_is_an_option(edges):
    u, v, w = edges
    market(u, v, w)
    assert mgg("import", "m.mtx", "--transpose", "-o", "t.h5") == 0
    assert held("t.h5")[0] == sorted(zip(u.tolist(), v.tolist(), w.tolist(), strict=True))


def test_directed_files_say_their_direction(capsys, edges):
    market(*edges)
    assert "->" in capsys.readouterr().out
    assert mgg("info", "market.h5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["directed"]
