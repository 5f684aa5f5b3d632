"""Graphs of other libraries in memory, real ones where the library is installed; edges compared one by one."""

from __future__ import annotations

from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import reference
import scipy.sparse as sp
import torch
from jobs import dense
from torch_geometric.data import Data, HeteroData

from mgg_hpc.data.graph import SparseRows
from mgg_hpc.data.libraries import from_dgl, from_networkx, from_pyg, from_scipy

from .graphs import refused

NODES = 23


def edges_of(graph):
    """Sorted (source, destination, weight) of each edge."""
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    weight = np.ones(len(source)) if graph.weight is None else graph.weight
    return sorted(zip(source.tolist(), destination.tolist(), weight.tolist(), strict=True))


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


def test_pyg_of_a_regression_is_taken_without_labels(drawn):
    """And edge_attr has no weights, but data of edges."""
    edges = torch.from_numpy(np.stack([drawn.source, drawn.destination]))
    data = Data(x=torch.from_numpy(drawn.x), y=torch.ones(NODES), edge_index=edges, edge_attr=torch.ones(90))
    with pytest.warns(UserWarning, match=r"from_pyg: y is float32 \[23\], not classes"):
        graph = from_pyg(data)
    assert graph.y is None and graph.weight is None and graph.classes == 0
    assert graph.edge["attr"].shape == (90,)


class DGLGraph:
    """What from_dgl asks of a DGLGraph, as DGL 1.1 and 2.1 have it."""

    is_homogeneous = True

    def __init__(self, drawn, weight):
        self._ends = torch.from_numpy(drawn.source), torch.from_numpy(drawn.destination)
        self.ndata = {
            "feat": torch.from_numpy(drawn.x),
            "label": torch.from_numpy(drawn.y),
            "train_mask": torch.from_numpy(drawn.train.astype(np.uint8)),
            "val_mask": torch.from_numpy(drawn.val),
        }
        self.edata = {} if weight is None else {"weight": torch.from_numpy(weight)}

    def edges(self):
        return self._ends

    def num_nodes(self):
        return NODES


def test_data_of_edges_go_with_them(rng, drawn):
    """Doubles become float32, booleans uint8; of duplicates the first comes first."""
    number, columns = np.arange(90), rng.standard_normal((90, 2))
    data = pyg_data(drawn, drawn.weight)
    data.edge_attr = torch.from_numpy(np.column_stack([number, columns]))
    dgl = DGLGraph(drawn, drawn.weight)
    dgl.edata |= {"number": torch.from_numpy(number), "odd": torch.from_numpy(number % 2 == 1)}
    found, other = from_pyg(data), from_dgl(dgl)
    order = found.edge["attr"][:, 0].astype(int)
    source, destination = reference.edge_list(found.indptr, found.indices)
    assert found.edge["attr"].dtype == np.float32 and other.edge.keys() == {"number", "odd"}
    np.testing.assert_array_equal(order, np.lexsort((number, drawn.source, drawn.destination)))
    np.testing.assert_array_equal([source, destination], [drawn.source[order], drawn.destination[order]])
    np.testing.assert_array_equal(found.edge["attr"][:, 1:], columns[order].astype(np.float32))
    np.testing.assert_array_equal(found.weight, drawn.weight[order])
    np.testing.assert_array_equal(other.edge["number"], order)
    np.testing.assert_array_equal(other.edge["odd"], (order % 2).astype(np.uint8))


@pytest.mark.parametrize(
    "read", [lambda *given: from_pyg(pyg_data(*given)), lambda *given: from_dgl(DGLGraph(*given))]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_pyg_and_dgl(drawn, read, weighted):
    weight = drawn.weight if weighted else None
    check(read(drawn, weight), drawn, drawn.weight if weighted else np.ones(90))


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_matrix, sp.coo_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_scipy_rows_list_sources(drawn, form, weighted):
    _, first = np.unique(drawn.destination * NODES + drawn.source, return_index=True)
    kept = {name: getattr(drawn, name)[first] for name in ("source", "destination", "weight")}
    values = kept["weight"] if weighted else np.ones(len(first))
    matrix = form((values, (kept["destination"], kept["source"])), shape=(NODES, NODES))
    graph = from_scipy(matrix, drawn.x, drawn.y, train=drawn.train, val=drawn.val)
    check(graph, SimpleNamespace(**vars(drawn) | kept), values)
    assert (graph.weight is None) == (not weighted)


def test_a_csr_may_list_an_edge_twice():
    twice = sp.csr_array((np.ones(2), np.array([1, 1]), np.array([0, 2, 2])), shape=(2, 2))
    assert edges_of(from_scipy(twice)) == [(1, 0, 1), (1, 0, 1)]
    assert edges_of(from_scipy(twice.tocoo())) == [(1, 0, 2)]


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
    wanted = []
    for u, v, w in given.edges(data="weight", default=1.0):
        wanted.append((number[u], number[v], w))
        if not given.is_directed() and u != v:
            wanted.append((number[v], number[u], w))
    graph = from_networkx(given, drawn.x, drawn.y, train=drawn.train)
    assert edges_of(graph) == sorted(wanted)
    assert graph.directed == given.is_directed()
    assert not graph.val.any() and graph.classes == drawn.y.max() + 1


def test_weights_that_some_edges_lack_do_not_count():
    given = networkx.DiGraph()
    given.add_edge(0, 1, weight=2.0)
    given.add_edge(1, 2)
    assert from_networkx(given).weight is None


def test_undirected_is_found_out(rng):
    upper = np.triu(rng.random((9, 9)) < 0.4).astype(np.float32)
    both = np.maximum(upper, upper.T)
    assert not from_scipy(sp.csr_array(both)).directed
    assert not from_scipy(sp.csr_array(both * 0.5)).directed
    uneven = both.copy()
    uneven[tuple(np.argwhere(np.triu(both, 1))[0])] = 3
    assert from_scipy(sp.csr_array(uneven)).directed


def test_sparse_features_stay_sparse(drawn):
    x = sp.coo_array(np.where(drawn.x > 0, drawn.x, 0))
    found = from_scipy(sp.csr_array((NODES, NODES)), x).x
    assert isinstance(found, SparseRows)
    np.testing.assert_array_equal(dense(found), x.toarray().astype(np.float32))


def broken(drawn, **changes):
    """What from_dgl takes, with something changed."""
    made = DGLGraph(drawn, drawn.weight)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda d: from_pyg(HeteroData()), "from_pyg: HeteroData has no edge_index"),
        (lambda d: from_dgl(networkx.Graph()), "from_dgl: expected a homogeneous DGLGraph"),
        (lambda d: from_dgl(broken(d, is_homogeneous=False)), "expected a homogeneous DGLGraph"),
        (lambda d: from_dgl(broken(d, num_nodes=lambda: 5)), r"node id \d+ is not in 0 .. 4"),
        (lambda d: from_dgl(broken(d, edata={"weight": torch.ones(4)})), r"weights are float32 \[4\]"),
        (lambda d: from_dgl(broken(d, edata={"flow": torch.ones(4)})), r"edge data flow are float32 \[4\]"),
        (
            lambda d: from_dgl(broken(d, edata={"a b": torch.ones(90)})),
            "from_dgl: data of edges is named 'a b'",
        ),
        (lambda d: from_networkx([(0, 1)]), "from_networkx: expected a networkx graph, and got list"),
        (lambda d: from_scipy(np.eye(3)), "from_scipy: expected a SciPy sparse matrix .* got ndarray"),
        (lambda d: from_scipy(sp.csr_array((2, 3))), r"the matrix is \[2, 3\]; expected as many columns"),
        (lambda d: from_scipy(sp.csr_array((0, 0))), "a graph has one node at least"),
        (lambda d: from_scipy(sp.eye_array(3) * np.nan), "is not finite|nan"),
        (lambda d: from_scipy(sp.eye_array(4), d.x), r"/node/x is .*expected"),
        (lambda d: from_scipy(sp.eye_array(23), d.x[0]), r"from_scipy: x is float64 \[5\]"),
        (lambda d: from_scipy(sp.eye_array(23), y=d.x[:, 0]), r"from_scipy: y is float64 \[23\]"),
        (lambda d: from_scipy(sp.eye_array(23), train=d.x), r"the train mask is float64 \[23, 5\]"),
        (lambda d: from_scipy(sp.eye_array(4), torch.eye(4).to_sparse()), "layout torch.sparse_coo"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(drawn, make, said):
    with refused(said):
        make(drawn)
