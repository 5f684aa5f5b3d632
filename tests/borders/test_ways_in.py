"""A graph is the same by every way in: files, SciPy, networkx, PyG, DGL's interface and NumPy; weights stay weights."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path

import h5py
import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from command import mgg, refused
from torch_geometric.data import Data, TemporalData
from torch_geometric.nn import GCNConv
from torch_geometric.utils import from_networkx as from_nx

import mgg_hpc as mgg_
from mgg_hpc.data.graph import from_edges
from mgg_hpc.data.libraries import from_dgl, from_networkx, from_pyg, from_scipy

pytestmark = pytest.mark.usefixtures("here")

NODES = 30


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


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_multigraph_is_the_same_by_all_ways_in(way, ones, edges):
    """Weights that are all 1 stay weights."""
    u, v, w = edges
    w = np.ones_like(w) if ones else w
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
    exact = ("--tolerance", 1e-10, "--dtype", "float64", "-o", "r.h5", "--force")
    for options, weight in (((), "weight"), (("--unweighted",), None)):
        assert mgg("traverse", "pagerank", path, *exact, *options) == 0
        ranks = nx.pagerank(whole, tol=1e-14, max_iter=1000, weight=weight)
        with h5py.File("r.h5") as file:
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


# ---- files that others write


def test_what_scipys_mmwrite_writes_is_read(rng):
    for dtype in (np.uint8, np.uint32, np.int64, np.float64, np.bool_):
        matrix = sp.random(20, 20, 0.2, random_state=int(rng.integers(2**31)), format="coo")
        matrix.data = (1 + matrix.data * 100).astype(dtype)
        # Of bool SciPy fails to look for skew symmetry.
        scipy.io.mmwrite("m.mtx", matrix, symmetry="general" if dtype is np.bool_ else None)
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


# Labels of three nodes, and what they are by all ways; None where they are refused.
LABELS = {
    "integers": (np.array([0, 2, -1]), [0, 2, -1]),
    "0 and 1 in one column": (np.array([[0], [1], [1]]), [0, 1, 1]),
    "unsigned": (np.array([0, 2, 1], np.uint64), [0, 2, 1]),
    "bool": (np.array([False, True, True]), [0, 1, 1]),
    "whole floats": (np.array([0.0, 2, -1]), [0, 2, -1]),
    "several": (np.array([[0, 1], [1, 1], [0, 0]]), [[0, 1], [1, 1], [0, 0]]),
    "several, bool": (np.array([[True, False]] * 3), [[1, 0]] * 3),
    "fractions": (np.array([0.5, 1, 2]), None),
    "several fractions": (np.array([[0.5, 1], [1, 1], [0, 0]]), None),
    "NaN": (np.array([0, np.nan, 1]), None),
    "too many classes": (np.array([0, 1, 2**40]), None),
    "half floats that round": (np.array([0, 1, 2050], np.float16), None),
    "complex": (np.array([0, 1j, 1]), None),
}
PATH = torch.tensor([[0, 1], [1, 2]])


def path_data(**fields):
    return Data(edge_index=PATH, num_nodes=3, **fields)


def path_dgl(**fields):
    made = Dgl(PATH[0].numpy(), PATH[1].numpy(), None)
    made.num_nodes = lambda: 3
    made.ndata = fields
    return made


def path_archive(y):
    np.savez("a.npz", indptr=[0, 0, 1, 2], indices=[0, 1], y=y)
    return mgg("import", "a.npz", "-o", "g.h5")


def path_list(y):
    np.save("e.npy", PATH.numpy()), np.save("y.npy", y)
    return mgg("import", "e.npy", "--labels", "y.npy", "-o", "g.h5")


def there_and_back(y):
    mgg_.save(path_data(y=torch.tensor(y)), "first.h5")
    assert mgg("export", "first.h5", "-o", "b.npz") == 0 == mgg("import", "b.npz", "-o", "second.h5")
    mgg_.save(mgg_.to_pyg("second.h5"), "g.h5")


LABELLED = {
    "pyg": lambda y: mgg_.save(path_data(y=torch.tensor(y)), "g.h5"),
    "dgl": lambda y: mgg_.save(path_dgl(label=torch.tensor(y)), "g.h5"),
    "scipy": lambda y: mgg_.save(from_scipy(sp.eye_array(3), y=y), "g.h5"),
    "networkx": lambda y: mgg_.save(from_networkx(nx.path_graph(3), y=y), "g.h5"),
    "archive": path_archive,
    "array": path_list,
    "there and back": there_and_back,
}


@pytest.mark.parametrize("way", LABELLED)
@pytest.mark.parametrize("name", LABELS)
def test_labels_are_the_same_by_all_ways(name, way):
    y, expected = LABELS[name]
    if expected is None and y.ndim == 1 and y.dtype.kind == "f" and way in ("pyg", "there and back"):
        with pytest.warns(UserWarning, match="not classes: taken without labels"):
            assert from_pyg(path_data(y=torch.tensor(y))).y is None
        return
    if expected is None:
        with contextlib.suppress(mgg_.InputError):
            assert LABELLED[way](y) == 2
        assert not Path("g.h5").exists()
        return
    assert not LABELLED[way](y)
    with h5py.File("g.h5") as file:
        found, classes = file["node/y"][:], file.attrs["classes"]
    assert found.tolist() == expected and found.dtype == (np.int64 if found.ndim == 1 else np.float32)
    assert classes == (found.max() + 1 if found.ndim == 1 else 2)


# ---- what is left out, cast or refused


def weighted(**attributes):
    return nx.DiGraph([(0, 1, attributes), (1, 2, {"weight": 3})])


def of_edge(name):
    return from_edges(*PATH.numpy(), 3, name="g", edge={name: np.array([4, 5])})


LARGE = torch.tensor([2.0**24 + 1, 7.5], dtype=torch.float64)
# Graphs, and the one warning about each.
SAID = {
    "attributes of PyG": (
        lambda: from_pyg(path_data(pos=PATH, edge_label=torch.ones(2), edge_kind=torch.ones(3), name="g")),
        "left out 4 attributes: .*'pos'",
    ),
    "weights of nodes": (lambda: from_pyg(path_data(weight=torch.ones(3))), "1 attribute: 'weight'"),
    "a regression and a position": (
        lambda: from_pyg(path_data(y=torch.rand(3), pos=PATH)), "without labels; left out 1 attribute: 'pos'",
    ),
    "as many weights as nodes": (
        lambda: from_pyg(from_nx(nx.DiGraph([(0, 1, {"weight": 2}), (1, 0, {"weight": 3})]))), "as nodes",
    ),
    "ndata of DGL": (lambda: from_dgl(path_dgl(feat=torch.ones(3, 1), h=torch.ones(3))), "1 ndata: 'h'"),
    "attributes of nodes": (lambda: from_networkx(nx.karate_club_graph()), "1 attribute of nodes: 'club'"),
    "attributes of edges": (lambda: from_networkx(weighted(capacity=3)), "1 attribute of edges: 'capacity'"),
    "weights": (lambda: from_networkx(weighted(weight=2**24 + 1)), "1 of the weights was rounded"),
    "large weights": (
        lambda: from_scipy(sp.csr_array(np.array([[2**63 - 1, 2**62 + 1], [2**60, 1]]))), "2 of the weights were",
    ),
    "data of edges": (lambda: from_pyg(path_data(edge_attr=LARGE)), "1 of the edge data attr was rounded"),
    "features": (lambda: from_scipy(sp.eye_array(2), LARGE[:, None]), "1 of the features was rounded"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_left_out_or_rounded_is_said_once(name):
    make, words = SAID[name]
    with pytest.warns(UserWarning, match=words) as said:
        make()
    assert len([each for each in said if each.category is UserWarning and "from_" in str(each.message)]) == 1


def test_nothing_is_said_of_what_is_taken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = path_data(
            x=torch.ones(3, 1), y=PATH[0].new_zeros(3), edge_attr=torch.ones(2), edge_kind=PATH[0]
        )
        assert from_pyg(made).edge.keys() == {"attr", "kind"}
        assert from_networkx(weighted(weight=2)).weight.tolist() == [2, 3]
        assert from_dgl(path_dgl(feat=torch.ones(3, 1))).features == 1
        assert from_pyg(path_data(x=torch.ones(3, 2, **BFLOAT))).x.tolist() == [[1, 1]] * 3


def test_data_of_edges_have_one_order(monkeypatch):
    """PyG lists a set of names, in another order in each process."""
    made = path_data(edge_attr=torch.ones(2), edge_kind=PATH[0])
    for names in (made.keys(), made.keys()[::-1]):
        monkeypatch.setattr(type(made), "keys", lambda self, names=names: names)
        assert list(from_pyg(made).edge) == ["attr", "kind"]


BFLOAT = {"dtype": torch.bfloat16}
# Graphs that are refused, and words of the message.
REFUSED = {
    "two kinds of weights": (
        lambda: from_pyg(path_data(weight=torch.ones(2), edge_weight=torch.ones(2))), "edge_weight and weight",
    ),
    "temporal": (
        lambda: from_pyg(TemporalData(src=PATH[0], dst=PATH[1], t=PATH[0])), "TemporalData has no edge_index",
    ),
    "bfloat16 ids": (
        lambda: from_pyg(Data(edge_index=torch.tensor([[0], [256]], **BFLOAT), num_nodes=300)), "256 in bfloat16",
    ),
    "float16 ids": (
        lambda: from_pyg(Data(edge_index=torch.tensor([[0], [2048]]).half(), num_nodes=3000)), "float16",
    ),
    "bfloat16 labels": (
        lambda: from_pyg(path_data(y=torch.tensor([[0], [1], [300]], **BFLOAT))), "300 in bfloat16",
    ),
    "float8": (lambda: from_pyg(path_data(x=torch.ones(3, 2).to(torch.float8_e5m2))), "x: .*float8"),
    "complex features": (lambda: from_scipy(sp.eye_array(3), sp.csr_array(np.eye(3) * 1j)), "x is sparse compl"),
    "weights that vanish": (lambda: from_scipy(sp.eye_array(3) * 1e-60), "weight 1e-60 of edge 0 is 0"),
    "a mask of numbers": (
        lambda: from_pyg(path_data(train_mask=torch.tensor([0, 1, 2]).byte())), "the train mask has 2",
    ),
    "a mask of ids": (lambda: from_scipy(sp.eye_array(2), train=np.array([0, 1])), "mask is int64"),
    "a weight that is a list": (lambda: from_networkx(weighted(weight=[1, 2])), "weights: expected"),
    "weights that are lists": (
        lambda: from_networkx(nx.Graph([(0, 1, {"weight": [1, 2]})])), r"weights are int64 \[1, 2\]",
    ),
    "ragged features": (lambda: from_networkx(nx.path_graph(2), [[1, 2], [3]]), "x: expected an array"),
    "masked labels": (
        lambda: from_scipy(sp.eye_array(2), y=np.ma.array([1, 0], mask=[0, 1])), "entries are masked",
    ),
    "igraph": (
        lambda: from_networkx(type("Graph", (), {"is_directed": lambda self: False})()), "and got Graph",
    ),
    "an object": (lambda: from_pyg(type("Own", (), {"edge_index": PATH})()), "Own has no edge_index"),
    "a dict": (lambda: from_pyg({"edge_index": PATH}), "dict has no edge_index"),
    "sparse data of edges": (
        lambda: from_pyg(path_data(edge_attr=torch.eye(2).to_sparse())), "edge data attr: .*torch.sparse_coo",
    ),
    "a split that is text": (lambda: from_pyg(path_data(train_mask=masks((3, 2))), split="0"), "split='0' is str"),
    "a split that is a float": (lambda: from_pyg(path_data(train_mask=masks((3, 2))), split=1.0), "is float"),
    "to_scipy of a graph": (lambda: mgg_.to_scipy(nx.path_graph(3)), "expected a graph file's path, and got Graph"),
    "to_pyg of nothing": (lambda: mgg_.to_pyg(None), "expected a graph file's path, and got NoneType"),
    **{
        f"edge data {name}": (lambda name=name: mgg_.to_pyg(of_edge(name)), f"edge data (named )?{name}")
        for name in ("index", "weight", "label", "label_index", "attrs")
    },
    **{
        ending: (lambda ending=ending: mgg_.save(nx.path_graph(3), f"q{ending}"), f"end in {ending}; name it q.h5")
        for ending in (".npz", ".npy", ".pt", ".mtx", ".csv", ".txt", ".parquet")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_objects_that_are_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(mgg_.InputError, match=words) as refusal:
        make()
    assert "\n" not in str(refusal.value) and not list(Path().iterdir())


def test_edge_data_named_attr_goes_there_and_back():
    assert from_pyg(mgg_.to_pyg(of_edge("attr"))).edge["attr"].tolist() == [4, 5]


# ---- archives

MATRIX = sp.csr_array(([0.5, 0.25, 2.0], [1, 2, 0], [0, 1, 2, 3]))
CSR = {"data": MATRIX.data, "indices": MATRIX.indices, "indptr": MATRIX.indptr}
COO = {"data": MATRIX.data, "row": MATRIX.tocoo().row, "col": MATRIX.tocoo().col}
ROUND, WEIGHTS, Y = np.array([[0, 1, 2], [1, 2, 0]]), [0.5, 0.25, 2.0], {"y": [0, 1, 2]}
RING = [(0, 1, 0.5), (1, 2, 0.25), (2, 0, 2.0)]
# Arrays, options, and the edges, or words of the message that refuses them.
ARCHIVES = {
    "SciPy's cookbook": (CSR | {"shape": (3, 3)}, (), RING),
    "SciPy's cookbook, transposed": (
        CSR | {"shape": (3, 3)},
        ("--transpose",),
        [(v, u, w) for u, v, w in RING],
    ),
    "SciPy's cookbook, COO": (COO | {"shape": (3, 3)}, (), RING),
    "no shape": (CSR, (), "no shape"),
    "oblong": (CSR | {"shape": (3, 4)}, (), "as many columns as rows"),
    "PyG's names": ({"edge_index": ROUND, "edge_weight": WEIGHTS, **Y}, (), RING),
    "edges": ({"edges": ROUND.T, "edge_weight": WEIGHTS, **Y}, (), RING),
    "two weights": (
        {"edges": ROUND.T, "edge_weight": WEIGHTS, "weight": WEIGHTS, **Y},
        (),
        "edge_weight and weight",
    ),
    "two edges": ({"edges": [[0, 1], [0, 2]], **Y}, (), [(0, 1), (0, 2)]),
    "two edges, by column": ({"edges": np.asfortranarray([[0, 1], [0, 2]]), **Y}, (), [(0, 1), (0, 2)]),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_under_names_of_others(name, capsys):
    arrays, options, expected = ARCHIVES[name]
    np.savez("a.npz", **arrays)
    if isinstance(expected, str):
        assert expected in refused(capsys, "import", "a.npz", *options, "-o", "g.h5")
        return
    assert mgg("import", "a.npz", *options, "-o", "g.h5") == 0
    assert ("are edges i -> j" in capsys.readouterr().out) == ("data" in arrays and not options)
    with h5py.File("g.h5") as file:
        destination = np.repeat(np.arange(3), np.diff(file["graph/indptr"][:])).tolist()
        columns = [file["graph/indices"][:].tolist(), destination]
        columns += [file["graph/weight"][:].tolist()] if "graph/weight" in file else []
    assert sorted(zip(*columns, strict=True)) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "expected"), [("masks", [True, False, False]), ("mask", [True, True, False])]
)
def test_as_many_splits_as_nodes_are_in_the_order_of_the_name(name, expected):
    train = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], bool)  # [S, N] of Platonov et al., [N, S] of PyG
    splits = {f"train_{name}": train} | {
        f"{split}_{name}": np.zeros((3, 3), bool) for split in ("val", "test")
    }
    np.savez("a.npz", edges=ROUND.T, **Y, **splits)
    assert mgg("import", "a.npz", "--split", 0, "-o", "g.h5") == 0
    with h5py.File("g.h5") as file:
        assert file["node/train"][:].tolist() == expected


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
