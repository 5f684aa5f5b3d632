"""Layers over ranks: outputs and all gradients are PyG's over the whole graph, with the same weights."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import torch
from convolutions import LAYERS, TOLERANCE, Spread, check, drawn_edges

from mgg_hpc.data.graph import SparseRows
from mgg_hpc.data.readers.npz import read_npz
from mgg_hpc.nn.graph.loading import input_features
from mgg_hpc.nn.layers.conv import GINConv
from mgg_hpc.nn.layers.norms import BatchNorm
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

SHAPES = [(9, 4), (4, 9)]  # narrowing layers transform first, widening ones aggregate first


def bounds_of(nodes: int, ranks: int) -> np.ndarray:
    """Return bounds with which the last but one of three or more ranks owns nothing."""
    bounds = cases.even(nodes, max(1, ranks - 1) if ranks > 2 else ranks)
    return np.insert(bounds, -1, bounds[-2]) if ranks > 2 else bounds


def spread(rng, comm, backend, dtype, *, directed, transfer="direct", nodes=70) -> Spread:
    source, destination = drawn_edges(rng, nodes, directed=directed)
    case = cases.csr(source, destination, nodes, bounds_of(nodes, comm.size))
    return Spread(comm, backend, case, directed, dtype, transfer)


def drawn(rng, layer, rows, columns, dtype) -> torch.Tensor:
    odd = 2 * rng.integers(-2, 3, (rows, columns)) + 1  # ties at 0: see test_conv.py
    values = odd if layer.ties else rng.standard_normal((rows, columns))
    return torch.from_numpy(values).to(dtype)


def summed(comm, parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Gradients of parameters, summed over ranks."""
    found = {}
    for name, parameter in parameters.items():
        total = np.ascontiguousarray(parameter.grad.numpy())
        mpi.sum_in_rank_order(comm, total)
        found[name] = torch.from_numpy(total)
    return found


def compare(rng, comm, layer, graph, in_channels, out_channels, x_all=None, features=None) -> None:
    """A layer of ours over this rank's rows with PyG's over all of them, x_all.

    features: this rank's rows in a form that has no gradient.
    """
    dtype = graph.dtype
    torch.manual_seed(int(rng.integers(2**31)))  # the same weights on all ranks
    ours, theirs = layer.pair(in_channels, out_channels, dtype)
    x_all = drawn(rng, layer, graph.case.nodes, in_channels, dtype) if x_all is None else x_all
    x_all = x_all.double().requires_grad_()
    out_all = theirs(x_all, graph.edge_index)
    gradient = drawn(rng, layer, *out_all.shape, dtype)
    out_all.backward(gradient.double())
    x = x_all.detach()[graph.mine].to(dtype).requires_grad_()
    out = ours(x if features is None else features, graph.handle(ours.kind))
    out.backward(gradient[graph.mine])
    found = {"out": out.detach()} | summed(comm, dict(ours.named_parameters()))
    wanted = {"out": out_all} | {parameter: p.grad for parameter, p in theirs.named_parameters()}
    if features is None:
        found["x"], wanted["x"] = x.grad, x_all.grad
    with mpi.agree(comm):
        check(found, wanted, graph.mine)


@pytest.mark.ranks(1)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("directed", "transfer", "dtype"),
    [
        (False, "halo", torch.float64),
        (True, "direct", torch.float64),
        (True, "get", torch.float64),
        (True, "halo", torch.float32),
        (True, "get", torch.float32),
        (False, "direct", torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_the_whole_graph(rng, comm, backend, name, directed, transfer, dtype):
    graph = spread(rng, comm, backend, dtype, directed=directed, transfer=transfer)
    for in_channels, out_channels in SHAPES:
        compare(rng, comm, LAYERS[name], graph, in_channels, out_channels)


@pytest.mark.sampled
@pytest.mark.parametrize("transfer", ["direct", "halo"])
@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "sage_max", "gat"])
def test_layers_on_cora_are_those_of_the_whole_graph(rng, comm, backend, data_folder, name, transfer):
    """A real graph in float32."""
    cora = read_npz(data_folder / "cora" / "cora.npz")
    case = cases.Case(cora.indptr, cora.indices, bounds_of(cora.nodes, comm.size))
    graph = Spread(comm, backend, case, cora.directed, torch.float32, transfer)
    compare(rng, comm, LAYERS[name], graph, 32, 16)


@pytest.mark.parametrize("name", LAYERS)
def test_sparse_features_are_the_dense_ones(rng, comm, backend, name):
    """As the first layer's input, where only products with a matrix are to be had."""
    graph = spread(rng, comm, backend, torch.float64, directed=True, nodes=40)
    dense = rng.standard_normal((40, 30)) * (rng.random((40, 30)) < 0.2)
    mine = dense[graph.mine].astype(np.float32)
    row, column = np.nonzero(mine)
    indptr = np.searchsorted(row, np.arange(len(mine) + 1)).astype(np.int64)
    stored = SparseRows(indptr, column.astype(np.int32), mine[row, column], mine.shape)
    features = input_features(graph.part(stored), backend, torch.float64, "none")
    x = torch.from_numpy(dense.astype(np.float32))
    compare(rng, comm, LAYERS[name], graph, 30, 7, x, features)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_batch_norm_is_that_of_all_rows(rng, comm, backend, dtype, relu):
    """torch's BatchNorm1d over the gathered rows, whose mean is not 0: in training, and then in evaluation."""
    graph = spread(rng, comm, backend, dtype, directed=True)
    handle = graph.handle("edges")
    x_all = torch.from_numpy(rng.standard_normal((graph.case.nodes, 6)) + 1).to(dtype).requires_grad_()
    theirs = torch.nn.BatchNorm1d(6).to(dtype)
    for parameter in theirs.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 2.0) if comm.rank == 0 else None
        parameter.data = torch.from_numpy(comm.bcast(parameter.detach().numpy()))
    ours = BatchNorm(6).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    gradient = torch.from_numpy(rng.standard_normal((graph.case.nodes, 6))).to(dtype)
    for training in (True, True, False):
        for norm in (ours, theirs):
            norm.train(training)
            norm.zero_grad()
        x_all.grad, x = None, x_all.detach()[graph.mine].clone().requires_grad_()
        out_all = theirs(x_all)
        out_all = out_all.relu() if relu else out_all
        out_all.backward(gradient)
        out = ours(x, handle, relu=relu)
        out.backward(gradient[graph.mine])
        found = {"out": out.detach(), "x": x.grad} | summed(comm, dict(ours.named_parameters()))
        wanted = {"out": out_all, "x": x_all.grad}
        wanted |= {name: p.grad for name, p in theirs.named_parameters()}
        with mpi.agree(comm):
            check(found, wanted, graph.mine)
            for what, value in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[what], value, rtol=1e-5, atol=1e-5, msg=what)


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False, "track_running_stats": False}])
def test_torchs_batch_norm_within_a_network_is_that_of_all_rows(rng, comm, backend, options):
    graph = spread(rng, comm, backend, torch.float64, directed=True)
    norm, x_all = torch.nn.BatchNorm1d(6, **options).double(), rng.standard_normal((graph.case.nodes, 6)) + 1
    wanted, layer = torch.nn.BatchNorm1d(6, **options).double(), GINConv(torch.nn.Sequential(norm), eps=-1.0)
    handle, x_all = graph.handle("edges"), torch.from_numpy(x_all)
    summed = torch.zeros_like(x_all).index_add(0, graph.edge_index[1], x_all[graph.edge_index[0]])
    for training in (True, True, False):
        layer.train(training)
        out, out_all = layer(x_all[graph.mine], handle), wanted.train(training)(summed)
        with mpi.agree(comm):
            torch.testing.assert_close(out, out_all[graph.mine])
            torch.testing.assert_close(norm.state_dict(), wanted.state_dict())


def test_what_would_be_of_one_ranks_rows_alone_is_refused(rng, comm, backend):
    handle = spread(rng, comm, backend, torch.float32, directed=True).handle("edges")
    hidden = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(6)})
    for inside in (torch.nn.Dropout(0.5), torch.nn.AlphaDropout(0.5), hidden):
        layer, x = GINConv(torch.nn.Sequential(inside)), torch.zeros(handle.rows, 6)
        if comm.size > 1:
            with pytest.raises(ValueError, match="each rank's rows alone"):
                layer(x, handle)
        if inside is not hidden:
            layer.eval()(x, handle)
