"""Layers over ranks: outputs and all gradients are PyG's over the whole graph, with the same weights.

Data of an edge and of its reverse are drawn apart, also where the graph is undirected.
"""

from __future__ import annotations

import cases
import numpy as np
import pytest
import torch
from convolutions import (
    LAYERS,
    NODES,
    SCORED,
    TOLERANCE,
    Spread,
    both,
    check,
    compare,
    opened,
    spread,
    summed,
)
from numpy.testing import assert_array_equal

import mgg_hpc as mgg
from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.nn.inputs.features import input_features
from mgg_hpc.nn.layers.attention import GATConv
from mgg_hpc.nn.layers.conv import GINConv
from mgg_hpc.nn.layers.networks import BatchNorm
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

SHAPES = [(9, 4), (4, 9)]  # narrowing layers transform first, widening ones aggregate first
WITH_EDGES = {
    "edges mean": both("GATConv", SCORED, heads=3, edge_dim=3),
    "edges add": both("GATConv", SCORED, heads=8, edge_dim=2, fill_value="add"),
    "edges 0.7": both(
        "GATConv", SCORED, heads=2, edge_dim=1, fill_value=0.7, concat=False, negative_slope=0.4
    ),
    "edges min": both("GATConv", SCORED, edge_dim=4, fill_value="min"),
    "edges max": both("GATConv", SCORED, heads=2, edge_dim=2, fill_value="max", residual=True),
    "edges mul": both("GATConv", SCORED, heads=2, edge_dim=2, fill_value="mul"),
    "edges as they are": both("GATConv", SCORED, heads=3, edge_dim=3, add_self_loops=False, bias=False),
}


@pytest.mark.ranks(1)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("name", LAYERS | WITH_EDGES)
def test_layers_are_those_of_the_whole_graph(rng, comm, backend, name, directed, transfer, dtype):
    ordered = name in WITH_EDGES
    graph = spread(rng, comm, backend, dtype, directed=directed, transfer=transfer, ordered=ordered)
    for shape in SHAPES:
        compare(rng, (LAYERS | WITH_EDGES)[name], graph, *shape)


@pytest.mark.sampled
@pytest.mark.parametrize("transfer", ["direct", "halo"])
@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "sage_max", "gat"])
def test_layers_on_cora_are_those_of_the_whole_graph(rng, comm, backend, data_folder, name, transfer):
    """A real graph in float32."""
    cora = read_npz(data_folder / "cora" / "cora.npz")
    case = cases.Case(cora.indptr, cora.indices, cases.even(cora.nodes, comm.size))
    compare(rng, LAYERS[name], Spread(comm, backend, case, cora.directed, torch.float32, transfer), 32, 16)


@pytest.mark.parametrize("name", LAYERS)
def test_sparse_features_are_the_dense_ones(rng, comm, backend, name):
    """As the first layer's input, where only products with a matrix are to be had."""
    graph = spread(rng, comm, backend, torch.float64)
    dense = (rng.standard_normal((NODES, 30)) * (rng.random((NODES, 30)) < 0.2)).astype(np.float32)
    mine = dense[graph.mine]
    row, column = np.nonzero(mine)
    indptr = np.searchsorted(row, np.arange(len(mine) + 1)).astype(np.int64)
    stored = SparseRows(indptr, column.astype(np.int32), mine[row, column], mine.shape)
    given = input_features(graph.part(stored), backend, torch.float64, "none")
    compare(rng, LAYERS[name], graph, 30, 7, torch.from_numpy(dense), given)


@pytest.mark.parametrize("directed", [False, True])
def test_names_stand_for_the_data_of_a_graph(rng, comm, backend, stored, directed):
    """Integers, halves and weights are cast; outputs and gathered gradients are PyG's."""
    whole = spread(rng, comm, backend, torch.float64, directed=directed)
    case, edges = whole.case, len(whole.case.indices)
    weight = rng.standard_normal(edges).astype(np.float32) if directed else np.ones(edges, np.float32)
    edge = {
        "kind": rng.integers(-3, 4, edges).astype(np.int16),
        "flow": rng.standard_normal((edges, 1, 2)).astype(np.float16),
    }
    x = rng.standard_normal((NODES, 5)).astype(np.float32)
    graph = Graph("g", case.indptr, case.indices, weight, x, directed=directed, edge=edge)
    path = stored(f"directed {directed}", graph)
    with opened(comm, path, transfer="halo") as graph:
        own = slice(*case.indptr[graph.part.bounds[comm.rank :][:2]])
        torch.manual_seed(int(rng.integers(2**31)))
        for name, values in (edge | {"weight": weight}).items():
            data = torch.from_numpy(values.reshape(edges, -1)).double()
            layer, theirs = both("GATConv", SCORED, heads=2, edge_dim=data.shape[1]).pair(5, 4, torch.float64)
            out_all = theirs(torch.from_numpy(x).double(), whole.edge_index, data)
            out_all.sum().backward()
            wanted = {"out": out_all} | {parameter: p.grad for parameter, p in theirs.named_parameters()}
            for given in (name, name, data[own]):
                layer.zero_grad()
                out = layer(graph.x, graph, edge_attr=given)
                out.sum().backward()
                found = {"out": out.detach()} | summed(comm, layer)
                with mpi.agree(comm):
                    assert_array_equal(graph.edge_data(name), values[own])
                    check(found, wanted, {"out": slice(*graph.part.bounds[comm.rank :][:2])})
        bare = GATConv(5, 4).double()
        for of, given, message in [
            (layer, "speed", "has no data of edges named 'speed'; it has flow, kind, weight"),
            (layer, "flow", "edge_attr has 2 columns, and edge_dim is 1"),
            (layer, torch.zeros(3, 1), r"data of edges are \[3, 1\], and this rank's rows have"),
            (layer, None, "by edge_dim and edge_attr, and edge_attr is missing"),
            (bare, "kind", "by edge_dim and edge_attr, and edge_dim is missing"),
        ]:
            with pytest.raises((mgg.InputError, ValueError), match=message):
                of(graph.x, graph, edge_attr=given)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_batch_norm_is_that_of_all_rows(rng, comm, backend, dtype, relu):
    """torch's BatchNorm1d over the gathered rows, whose mean is not 0: in training, and then in evaluation."""
    graph = spread(rng, comm, backend, dtype)
    x_all = torch.from_numpy(rng.standard_normal((NODES, 6)) + 1).to(dtype).requires_grad_()
    theirs, ours = torch.nn.BatchNorm1d(6).to(dtype), BatchNorm(6).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(0.5, 2, 6)))
    ours.load_state_dict(theirs.state_dict())
    gradient = torch.from_numpy(rng.standard_normal((NODES, 6))).to(dtype)
    for training in (True, True, False):
        for norm in (ours, theirs):
            norm.train(training).zero_grad()
        x_all.grad, x = None, x_all.detach()[graph.mine].clone().requires_grad_()
        out_all = theirs(x_all).relu() if relu else theirs(x_all)
        out_all.backward(gradient)
        out = ours(x, graph.handle("edges"), relu=relu)
        out.backward(gradient[graph.mine])
        wanted = {name: p.grad for name, p in theirs.named_parameters()}
        with mpi.agree(comm):
            check(
                {"out": out.detach(), "x": x.grad} | summed(comm, ours),
                {"out": out_all, "x": x_all.grad} | wanted,
                graph.rows,
            )
            torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False, "track_running_stats": False}])
def test_torchs_batch_norm_within_a_network_is_that_of_all_rows(rng, comm, backend, options):
    graph = spread(rng, comm, backend, torch.float64)
    norm, wanted = (torch.nn.BatchNorm1d(6, **options).double() for _ in range(2))
    layer, x_all = (
        GINConv(torch.nn.Sequential(norm), eps=-1.0),
        torch.from_numpy(rng.standard_normal((NODES, 6))),
    )
    sums = torch.zeros_like(x_all).index_add(0, graph.edge_index[1], 1 + x_all[graph.edge_index[0]])
    for training in (True, True, False):
        layer.train(training)
        out, out_all = layer(1 + x_all[graph.mine], graph.handle("edges")), wanted.train(training)(sums)
        with mpi.agree(comm):
            torch.testing.assert_close(out, out_all[graph.mine])
            torch.testing.assert_close(norm.state_dict(), wanted.state_dict())


def test_what_would_be_of_one_ranks_rows_alone_is_refused(rng, comm, backend):
    handle = spread(rng, comm, backend, torch.float32).handle("edges")
    hidden = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(6)})
    for inside in (torch.nn.Dropout(0.5), torch.nn.AlphaDropout(0.5), hidden):
        layer, x = GINConv(torch.nn.Sequential(inside)), torch.zeros(handle.rows, 6)
        if comm.size > 1:
            with pytest.raises(
                ValueError, match=r"each rank's rows alone.*mgg_hpc\.nn\.(Dropout|BatchNorm) "
            ):
                layer(x, handle)
        if inside is not hidden:
            layer.eval()(x, handle)
