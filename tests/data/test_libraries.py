"""Graphs of other libraries in memory, real ones where it is installed: edges compared one by one; and back again."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from command import mgg
from jobs import dense
from torch_geometric.data import Data, HeteroData

from mgg_hpc.data import libraries
from mgg_hpc.data.export import whole
from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.data.libraries import from_dgl, from_networkx, from_pyg, from_scipy
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write

from .graphs import random_graph, refused, rows_of_edges, same_graph

NODES = 23


def edges_of(graph):
    """Sorted (source, destination, weight) of each edge."""
    weight = np.ones(graph.edges) if graph.weight is None else graph.weight
    return sorted(
        zip(graph.indices.tolist(), rows_of_edges(graph.indptr).tolist(), weight.tolist(), strict=True)
    )


@pytest.fixture
def drawn(rng):
    """Edges with duplicates and loops, their weights, and what nodes have."""
    source, destination = rng.integers(0, NODES, (2, 90))
    source[:3], destination[:3] = source[3:6], destination[3:6]
    destination[6:9] = source[6:9]
    train = rng.random(NODES) < 0.4
    return SimpleNamespace(
        source=source,
        destination=destination,
        weight=rng.integers(1, 9, 90).astype(np.float32) / 4,
        x=rng.standard_normal((NODES, 5)),
        y=rng.integers(0, 4, NODES),
        train=train,
        val=~train,
    )


def check(graph, drawn, weight):
    """Edges, features, labels and masks are those that were drawn."""
    wanted = zip(drawn.source.tolist(), drawn.destination.tolist(), weight.tolist(), strict=True)
    assert edges_of(graph) == sorted(wanted)
    assert graph.directed and graph.nodes == NODES
    np.testing.assert_array_equal(graph.x, drawn.x.astype(np.float32))
    np.testing.assert_array_equal(graph.y, drawn.y)
    assert graph.classes == drawn.y.max() + 1
    for name in ("train", "val"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(drawn, name))
    assert graph.test.dtype == bool and not graph.test.any()


def pyg_data(drawn, weight):
    data = Data(
        x=torch.from_numpy(drawn.x),
        y=torch.from_numpy(drawn.y)[:, None],
        edge_index=torch.from_numpy(np.stack([drawn.source, drawn.destination])),
        train_mask=torch.from_numpy(drawn.train),
        val_mask=torch.from_numpy(drawn.val),
    )
    if weight is not None:
        data.edge_weight = torch.from_numpy(weight).requires_grad_()
    return data


def dgl_graph(ends, num_nodes):
    """What from_dgl asks of a DGLGraph, as DGL 1.1 and 2.1 have it."""
    return SimpleNamespace(
        is_homogeneous=True, edges=lambda: ends, num_nodes=lambda: num_nodes, ndata={}, edata={}
    )


def dgl_data(drawn, weight, **changes):
    made = dgl_graph((torch.from_numpy(drawn.source), torch.from_numpy(drawn.destination)), NODES)
    made.ndata |= {"feat": torch.from_numpy(drawn.x), "label": torch.from_numpy(drawn.y)}
    made.ndata |= {"train_mask": torch.from_numpy(drawn.train.astype(np.uint8))}
    made.ndata |= {"val_mask": torch.from_numpy(drawn.val)}
    made.edata |= {} if weight is None else {"weight": torch.from_numpy(weight)}
    vars(made).update(changes)
    return made


@pytest.mark.parametrize("library", ["pyg", "dgl"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pyg_and_dgl(rng, drawn, library, weighted):
    """Data of edges go with them: doubles become float32, booleans uint8; of duplicates the first comes first."""
    weight, number, columns = drawn.weight if weighted else None, np.arange(90), rng.standard_normal((90, 2))
    if library == "pyg":
        data = pyg_data(drawn, weight)
        data.edge_attr = torch.from_numpy(np.column_stack([number, columns]))
        graph = from_pyg(data)
        found = graph.edge["attr"][:, 1:]
        order, wanted = graph.edge["attr"][:, 0].astype(int), columns.astype(np.float32)
    else:
        dgl = dgl_data(drawn, weight)
        dgl.edata |= {"number": torch.from_numpy(number), "odd": torch.from_numpy(number % 2 == 1)}
        graph = from_dgl(dgl)
        order, found, wanted = graph.edge["number"], graph.edge["odd"], (number % 2).astype(np.uint8)
        assert graph.edge.keys() == {"number", "odd"}
    check(graph, drawn, drawn.weight if weighted else np.ones(90))
    assert (graph.weight is None) == (not weighted)
    np.testing.assert_array_equal(order, np.lexsort((number, drawn.source, drawn.destination)))
    np.testing.assert_array_equal(found, wanted[order], strict=True)


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_matrix, sp.coo_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_entries_of_scipy_are_edges_from_row_to_column(drawn, form, weighted):
    _, first = np.unique(drawn.destination * NODES + drawn.source, return_index=True)
    kept = {name: getattr(drawn, name)[first] for name in ("source", "destination", "weight")}
    values = kept["weight"] if weighted else np.ones(len(first), bool)
    matrix = form((values, (kept["source"], kept["destination"])), shape=(NODES, NODES))
    graph = from_scipy(matrix, drawn.x, drawn.y, train=drawn.train, val=drawn.val)
    check(graph, SimpleNamespace(**vars(drawn) | kept), values)
    assert (graph.weight is None) == (not weighted)
    assert from_scipy(matrix.astype(float)).weight is not None  # also where all are 1
    assert edges_of(from_scipy(matrix.T, transpose=True)) == edges_of(graph)


def test_zeros_of_a_matrix():
    """They are edges of weight 0, but for those that fill blocks; False is no edge."""
    stored = sp.csr_array((np.array([0.0, 2.0]), np.array([1, 0]), np.array([0, 1, 2])), shape=(2, 2))
    assert edges_of(from_scipy(stored)) == [(0, 1, 0), (1, 0, 2)]
    assert edges_of(from_scipy(stored.tobsr((2, 2)))) == [(1, 0, 2)]
    with refused("from_scipy: 1 entry stored as False"):
        from_scipy(stored.astype(bool))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["DiGraph", "MultiDiGraph", "Graph", "MultiGraph"])
def test_networkx(drawn, kind, weighted):
    """Nodes are numbered as they come, whatever their names are; undirected edges go both ways."""
    names = [f"node {i}" for i in range(NODES)]
    given = getattr(networkx, kind)()
    given.add_nodes_from(names)
    for u, v, w in zip(drawn.source, drawn.destination, drawn.weight, strict=True):
        given.add_edge(names[u], names[v], **({"weight": float(w)} if weighted else {}))
    number = {name: i for i, name in enumerate(names)}
    wanted = [(number[u], number[v], w) for u, v, w in given.edges(data="weight", default=1.0)]
    if not given.is_directed():
        wanted += [(v, u, w) for u, v, w in wanted if u != v]
    graph = from_networkx(given, drawn.x, drawn.y, train=drawn.train)
    assert edges_of(graph) == sorted(wanted)
    assert graph.directed == given.is_directed()
    assert not graph.val.any() and graph.classes == drawn.y.max() + 1
    given.add_edge(names[0], names[1], **({} if weighted else {"weight": 2.0}))
    if given.is_multigraph():  # a weight that an edge lacks is 1, as in networkx
        wanted += [(0, 1, 1.0 if weighted else 2.0)] + [(1, 0, 1.0 if weighted else 2.0)] * (
            not given.is_directed()
        )
        assert edges_of(from_networkx(given)) == sorted(wanted)


def test_sparse_features_stay_sparse(drawn):
    x = sp.coo_array(np.where(drawn.x > 0, drawn.x, 0))
    found = from_scipy(sp.csr_array((NODES, NODES)), x).x
    assert isinstance(found, SparseRows)
    np.testing.assert_array_equal(dense(found), x.toarray().astype(np.float32))


def ends_of(*ids: float) -> Data:
    return Data(edge_index=torch.tensor([ids, ids]), num_nodes=3)


def several_labels() -> HeteroData:
    made = HeteroData(a={"y": torch.ones(2)}, b={"y": torch.ones(2)})
    made["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    return made


def test_types_of_edges_become_data_of_edges(rng):
    """And each edge keeps its own type and data, among edges of other types between the same nodes."""
    made, x = HeteroData(), torch.from_numpy(rng.normal(size=(9, 3)).astype(np.float32))
    made["a"].x, made["a"].y = x, torch.from_numpy(rng.integers(3, size=9))
    wanted = set()
    for number, name in enumerate(("likes", "knows", "sees")):
        index, value = rng.integers(9, size=(2, 12)), rng.normal(size=12).astype(np.float32)
        _, first = np.unique(index, axis=1, return_index=True)
        index, value = index[:, first], value[first]
        made["a", name, "a"].edge_index = torch.from_numpy(index)
        made["a", name, "a"].edge_attr = torch.from_numpy(value)[:, None]
        wanted |= set(zip(*index.tolist(), [number] * len(value), value.tolist(), strict=True))
    made["a", "sees", "a"].time = torch.zeros(1)
    with pytest.warns(UserWarning, match="time"):
        graph = from_pyg(made)
    source, target = graph.indices, rows_of_edges(graph.indptr)
    kinds, values = graph.edge["type"].reshape(-1).tolist(), graph.edge["attr"].reshape(-1).tolist()
    assert set(zip(source.tolist(), target.tolist(), kinds, values, strict=True)) == wanted
    assert len(source) == len(wanted)
    np.testing.assert_array_equal(graph.x, x)


REFUSED = {
    "no type, PyG": (lambda d: from_pyg(HeteroData()), "from_pyg: HeteroData has no edge_index"),
    "several labels, PyG": (lambda d: from_pyg(several_labels()), "a, b have y, .* labels of one type of nodes"),
    "no DGL graph": (lambda d: from_dgl(networkx.Graph()), "from_dgl: expected a homogeneous DGLGraph"),
    "ids": (lambda d: from_dgl(dgl_data(d, d.weight, num_nodes=lambda: 5)), r"node id \d+ is not in 0 .. 4"),
    "weights": (lambda d: from_dgl(dgl_data(d, None, edata={"weight": torch.ones(4)})), r"weights are float32 \[4\]"),
    "edge data": (lambda d: from_dgl(dgl_data(d, None, edata={"flow": torch.ones(4)})), r"edge data flow .* \[4\]"),
    "a name": (lambda d: from_dgl(dgl_data(d, None, edata={"a b": torch.ones(90)})), "from_dgl: data .* named 'a b'"),
    "a list": (lambda d: from_networkx([(0, 1)]), "from_networkx: expected a networkx graph, and got list"),
    "an array": (lambda d: from_scipy(np.eye(3)), "from_scipy: expected a SciPy sparse matrix .* got ndarray"),
    "a shape": (lambda d: from_scipy(sp.csr_array((2, 3))), r"the matrix is \[2, 3\]; expected as many columns"),
    "no nodes": (lambda d: from_scipy(sp.csr_array((0, 0))), "a graph has one node at least"),
    "NaN": (lambda d: from_scipy(sp.eye_array(3) * np.nan), "has nan in row 0"),
    "other rows": (lambda d: from_scipy(sp.eye_array(4), d.x), r"/node/x is .*expected"),
    "features": (lambda d: from_scipy(sp.eye_array(23), d.x[0]), r"from_scipy: x is float64 \[5\]"),
    "labels": (lambda d: from_scipy(sp.eye_array(23), y=d.x[:, 0]), "from_scipy: y has the label .* at row 0"),
    "masks": (lambda d: from_scipy(sp.eye_array(23), train=d.x), r"the train mask is float64 \[23, 5\]"),
    "float ids": (lambda d: from_pyg(ends_of(0.0, 0.75)), r"from_pyg: .*edge 1 has the source 0.75; expected whole"),
    "ids that floats round": (lambda d: from_pyg(ends_of(0.0, 2.0**24)), r"edge 1 has the source 16777216.0"),
    "bool ids": (lambda d: from_pyg(ends_of(False, True)), r"edge 0 has the source False \(bool\)"),
    "infinite weights": (lambda d: from_scipy(sp.eye_array(3) * 1e300), "has inf in row 0"),
    "text as weights": (lambda d: from_networkx(networkx.Graph([(0, 1, {"weight": "2"})])), "weights are <U1"),
    "a layout": (lambda d: from_scipy(sp.eye_array(4), torch.eye(4).to_sparse()), "layout torch.sparse_coo"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(drawn, case):
    make, said = REFUSED[case]
    with refused(said):
        make(drawn)


# --- and back


@pytest.mark.parametrize("to_file", [True, False])
@pytest.mark.parametrize(
    "options", [{"sparse": True, "weighted": True}, {"multilabel": True, "half": True}, {}], ids=str
)
def test_to_pyg_and_back(rng, here, options, to_file):
    """In the order of the nodes as they were imported, with the data of edges."""
    graph = random_graph(rng, symmetric="multilabel" in options, **options)
    edge = {"flow": rng.normal(size=(graph.edges, 2)).astype(np.float32), "kind": np.arange(graph.edges)}
    graph = replace(graph, edge=edge, classes=5 if graph.multilabel else int(graph.y.max()) + 1)
    write("g.h5", graph)
    assert mgg("partition", "g.h5", "--order", "degree", "-n", "2") == 0
    if to_file:
        assert mgg("export", "g.h5", "-o", "out.pt") == 0
        data = torch.load("out.pt", weights_only=False)
    else:
        data = libraries.to_pyg("g.h5")
    data.validate(raise_on_error=True)
    libraries.save(data, "again.h5", name=graph.name)
    with open_graph("again.h5") as opened:
        same_graph(whole(opened), graph)


def test_to_dgl_and_back(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", SimpleNamespace(graph=dgl_graph))
    graph = random_graph(rng, weighted=True, symmetric=False)
    graph = replace(graph, edge={"kind": rng.integers(9, size=graph.edges)}, classes=int(graph.y.max()) + 1)
    same_graph(from_dgl(libraries.to_dgl(graph)), graph)
    monkeypatch.setitem(sys.modules, "dgl", None)
    with refused("to_dgl: dgl is not installed"):
        libraries.to_dgl(graph)


def test_scipy_and_networkx_are_saved(rng, here):
    graph = random_graph(rng, weighted=True, symmetric=False)
    libraries.save(libraries.to_scipy(graph), "scipy.h5")
    with open_graph("scipy.h5") as opened:
        assert opened.name == "scipy"
        same_graph(whole(opened), Graph("g", graph.indptr, graph.indices, graph.weight))
    libraries.save(networkx.path_graph(5), "path.h5")
    with open_graph("path.h5") as opened:
        assert (opened.nodes, opened.edges, opened.directed) == (5, 8, False)
    with refused("got dict; expected a Graph"):
        libraries.save({}, "x.h5")
    with refused(r"path\.h5 exists"):
        libraries.save(networkx.path_graph(5), "path.h5")
