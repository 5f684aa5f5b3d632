"""Graph convolutions over ranks, forward and backward, against dense float64 matrices made from the formula."""

from __future__ import annotations

from pathlib import Path

import cases
import numpy as np
import pytest
import torch

from mgg_hpc import reference
from mgg_hpc.data.graph import SparseRows
from mgg_hpc.data.store import GraphSlice
from mgg_hpc.nn.autograd.functional import convolution, transform_first
from mgg_hpc.nn.graph.handle import GraphHandle
from mgg_hpc.nn.graph.loading import Part, adjacency_of, input_features
from mgg_hpc.nn.graph.transfer import routed
from mgg_hpc.nn.inputs.sparse import SparseFeatures
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.base import Geometry, Options
from mgg_hpc.runtime.backends.host.shm import SharedBackend

pytestmark = pytest.mark.mpi

GEOMETRY = Geometry(ps=3, dist=2, wpb=2)
SHAPES = [(9, 4), (4, 9), (5, 5), (1, 1)]  # narrowing layers transform first, widening ones aggregate first


def symmetric(case, weight):
    """Each edge in both directions, with the same weight."""
    source, destination = reference.edge_list(case.indptr, case.indices)
    both = cases.csr(np.append(source, destination), np.append(destination, source), case.nodes, case.bounds)
    u, v = reference.edge_list(both.indptr, both.indices)
    values = weight[np.minimum(u, v), np.maximum(u, v)]
    return both, values


def gcn(x, weight, bias, graph, adjacency, relu=False):
    scale = adjacency.scale
    return convolution(x, weight, bias, graph, adjacency, before=scale, after=scale, relu=relu)


def part_of(case, weight, rank, directed, x):
    own = None if weight is None else weight[case.edges(rank)].astype(np.float32)
    low, high = int(case.bounds[rank]), int(case.bounds[rank + 1])
    indptr, indices = case.part(rank)
    rows = GraphSlice(
        indptr=indptr,
        indices=indices,
        weight=own,
        x=x,
        y=None,
        train=None,
        val=None,
        test=None,
        ids=np.arange(low, high),
    )
    return Part(
        path=Path("none"),
        name="case",
        uuid="",
        nodes=case.nodes,
        edges=len(case.indices),
        features=0,
        classes=0,
        directed=directed,
        multilabel=False,
        bounds=case.bounds,
        bounds_source="file",
        slice=rows,
    )


def dense_adjacency(case, weight):
    """The normalised adjacency as a float64 matrix, for float32 edge weights."""
    source, destination = reference.edge_list(case.indptr, case.indices)
    rounded = None if weight is None else weight.astype(np.float32)
    u, v, coefficient = reference.gcn_edges(source, destination, case.nodes, rounded)
    matrix = np.zeros((case.nodes, case.nodes))
    np.add.at(matrix, (v, u), coefficient)
    return torch.from_numpy(matrix)


def drawn(rng, comm, name, directed, weighted):
    case = cases.CASES[name](rng, comm.size)
    table = rng.random((max(1, case.nodes), max(1, case.nodes)))
    if not directed:
        case, values = symmetric(case, table)
    else:
        u, v = reference.edge_list(case.indptr, case.indices)
        values = table[u, v]
    return case, values if weighted else None


@pytest.fixture
def backend(comm):
    made = SharedBackend(comm, Options(GEOMETRY, threads=1))
    yield made
    made.close()


def compare(comm, case, mine, found, wanted, summed_found, summed_wanted):
    """Rows of this rank, and parameter gradients summed over ranks, to rounding in float64."""
    for array in summed_found:
        mpi.sum_in_rank_order(comm, array)
    with mpi.agree(comm):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b[mine], rtol=1e-12, atol=1e-12)
        for a, b in zip(summed_found, summed_wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("transfer", "weighted", "relu"),
    [
        *(("direct", weighted, relu) for weighted in (False, True) for relu in (False, True)),
        ("get", True, True),
        ("halo", False, True),
        ("halo", True, False),
    ],
)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("name", cases.CASES)
def test_values_and_gradients_are_those_of_dense_matrices(
    rng, comm, backend, name, directed, weighted, relu, transfer
):
    case, weight = drawn(rng, comm, name, directed, weighted)
    mine = slice(int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1]))
    part = part_of(case, weight, comm.rank, directed, None)
    [adjacency] = routed(comm, adjacency_of(comm, part, "gcn", torch.float64, GEOMETRY.ps), [transfer])
    graph = GraphHandle(
        backend, np.diff(case.bounds), part.slice.ids, adjacency, dtype=torch.float64, widest=9
    )
    A = dense_adjacency(case, weight)
    for in_channels, out_channels in SHAPES:
        x_all = torch.from_numpy(rng.standard_normal((case.nodes, in_channels))).requires_grad_()
        w_all = torch.from_numpy(rng.standard_normal((out_channels, in_channels))).requires_grad_()
        b_all = torch.from_numpy(rng.standard_normal(out_channels)).requires_grad_()
        g_all = torch.from_numpy(rng.standard_normal((case.nodes, out_channels)))
        wanted = A @ x_all @ w_all.t() + b_all
        wanted = wanted.relu() if relu else wanted
        wanted.backward(g_all)
        for needs_x in (True, False):
            x = x_all.detach()[mine].clone().requires_grad_(needs_x)
            w, b = w_all.detach().clone().requires_grad_(), b_all.detach().clone().requires_grad_()
            out = gcn(x, w, b, graph, adjacency, relu=relu)
            out.backward(g_all[mine])
            found = (out.detach(), x.grad) if needs_x else (out.detach(),)
            gradients = [np.ascontiguousarray(p.grad.numpy()) for p in (w, b)]
            both = (wanted.detach(), x_all.grad) if needs_x else (wanted.detach(),)
            compare(comm, case, mine, found, both, gradients, [w_all.grad.numpy(), b_all.grad.numpy()])
    assert transform_first(9, 4, True) and not transform_first(4, 9, True)


@pytest.mark.parametrize("name", ["ordinary", "rank_without_rows", "hub", "one_node"])
def test_sparse_features_are_the_dense_ones(rng, comm, backend, name):
    case, _ = drawn(rng, comm, name, True, False)
    mine = slice(int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1]))
    x = rng.standard_normal((case.nodes, 40)) * (rng.random((case.nodes, 40)) < 0.2)
    x = x.astype(np.float32)
    row, column = np.nonzero(x[mine])
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=mine.stop - mine.start))]).astype(
        np.int64
    )
    stored = SparseRows(indptr, column.astype(np.int32), x[mine][row, column], (mine.stop - mine.start, 40))
    part = part_of(case, None, comm.rank, True, stored)
    features = input_features(part, backend, torch.float64, "none")
    assert isinstance(features, SparseFeatures)
    adjacency = adjacency_of(comm, part, "gcn", torch.float64, GEOMETRY.ps)
    graph = GraphHandle(
        backend, np.diff(case.bounds), part.slice.ids, adjacency, dtype=torch.float64, widest=7
    )
    w_all = torch.from_numpy(rng.standard_normal((7, 40))).requires_grad_()
    g_all = torch.from_numpy(rng.standard_normal((case.nodes, 7)))
    wanted = dense_adjacency(case, None) @ torch.from_numpy(x.astype(np.float64)) @ w_all.t()
    wanted.backward(g_all)
    w = w_all.detach().clone().requires_grad_()
    out = gcn(features, w, None, graph, adjacency)
    out.backward(g_all[mine])
    gradient = np.ascontiguousarray(w.grad.numpy())
    compare(comm, case, mine, (out.detach(),), (wanted.detach(),), [gradient], [w_all.grad.numpy()])


@pytest.mark.sampled
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("name", cases.CASES)
def test_the_backward_is_the_adjoint(rng, comm, backend, name, directed):
    """<A x, y> = <x, A^T y>, in float32 rows, over all ranks."""
    case, weight = drawn(rng, comm, name, directed, True)
    mine = slice(int(case.bounds[comm.rank]), int(case.bounds[comm.rank + 1]))
    part = part_of(case, weight, comm.rank, directed, None)
    adjacency = adjacency_of(comm, part, "gcn", torch.float32, GEOMETRY.ps)
    graph = GraphHandle(backend, np.diff(case.bounds), part.slice.ids, adjacency, widest=6)
    x_all, y_all = (
        torch.from_numpy(rng.standard_normal((case.nodes, 6)).astype(np.float32)) for _ in range(2)
    )
    x, y = x_all[mine].clone().requires_grad_(), y_all[mine]
    eye = torch.eye(6)
    out = gcn(x, eye, None, graph, adjacency)
    out.backward(y)
    left = (out.detach().double() * y.double()).sum()
    right = (x.grad.double() * x.detach().double()).sum()
    sums = np.array([left, right])
    mpi.sum_in_rank_order(comm, sums)
    terms = (dense_adjacency(case, weight).abs() @ x_all.double().abs() * y_all.double().abs()).sum()
    with mpi.agree(comm):
        assert abs(sums[0] - sums[1]) <= 1e-6 * terms


def test_row_normalised_features_sum_to_one(rng, comm, backend):
    case, _ = drawn(rng, comm, "ordinary", True, False)
    n = int(case.bounds[comm.rank + 1] - case.bounds[comm.rank])
    x = rng.random((n, 5)).astype(np.float32)
    x[: n // 3] = 0
    dense = input_features(part_of(case, None, comm.rank, True, x), backend, torch.float64, "row")
    total = dense.sum(1)
    with mpi.agree(comm):
        torch.testing.assert_close(total[n // 3 :], torch.ones(n - n // 3, dtype=torch.float64))
        assert (total[: n // 3] == 0).all()
