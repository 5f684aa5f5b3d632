"""Graph convolutions over ranks, forward and backward, against dense float64 matrices made from the formula."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
import torch
from convolutions import Spread, gcn_matrix

from mgg_hpc.nn.autograd.functional import convolution, transform_first
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

SHAPES = [(9, 4), (4, 9), (5, 5), (1, 1)]  # narrowing layers transform first, widening ones aggregate first


def symmetric(case, weight):
    """Each edge in both directions, with the same weight."""
    source, destination = reference.edge_list(case.indptr, case.indices)
    both = cases.csr(np.append(source, destination), np.append(destination, source), case.nodes, case.bounds)
    u, v = reference.edge_list(both.indptr, both.indices)
    values = weight[np.minimum(u, v), np.maximum(u, v)]
    return both, values


def drawn(rng, comm, name, directed, weighted):
    case = cases.CASES[name](rng, comm.size)
    table = rng.random((max(1, case.nodes), max(1, case.nodes)))
    table[rng.random(table.shape) < 0.3] = (
        0  # weights of zero, also of all edges of a node, its self loop among them
    )
    nothing = rng.random(len(table)) < 0.2
    table[nothing], table[:, nothing] = 0, 0
    if not directed:
        case, values = symmetric(case, table)
    else:
        u, v = reference.edge_list(case.indptr, case.indices)
        values = table[u, v]
    return case, values if weighted else None


def compare(comm, mine, found, wanted, summed_found, summed_wanted):
    """Rows of this rank, and parameter gradients summed over ranks, to rounding in float64."""
    for array in summed_found:
        mpi.sum_in_rank_order(comm, array)
    with mpi.agree(comm):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b[mine], rtol=1e-12, atol=1e-12)
        for a, b in zip(summed_found, summed_wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.ranks(1, 4)
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
def test_convolutions_are_dense_products(rng, comm, backend, name, directed, weighted, relu, transfer):
    case, weight = drawn(rng, comm, name, directed, weighted)
    spread = Spread(comm, backend, case, directed, torch.float64, transfer, weight)
    graph, mine = spread.handle("gcn"), spread.mine
    adjacency = graph.adjacency("gcn")
    rounded = None if weight is None else weight.astype(np.float32)
    A = gcn_matrix(case.indptr, case.indices, rounded)
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
            scale = adjacency.scale
            out = convolution(x, w, b, graph, adjacency, before=scale, after=scale, relu=relu)
            out.backward(g_all[mine])
            found = (out.detach(), x.grad) if needs_x else (out.detach(),)
            gradients = [np.ascontiguousarray(p.grad.numpy()) for p in (w, b)]
            both = (wanted.detach(), x_all.grad) if needs_x else (wanted.detach(),)
            compare(comm, mine, found, both, gradients, [w_all.grad.numpy(), b_all.grad.numpy()])
    assert transform_first(9, 4, True) and not transform_first(4, 9, True)
