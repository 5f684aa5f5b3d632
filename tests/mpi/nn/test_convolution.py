"""Graph convolutions over ranks, forward and backward, against dense float64 matrices made from the formula."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import torch
from convolutions import Spread, gcn_matrix

from mgg_hpc.nn.autograd.functional import convolution, transform_first
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

SHAPES = [(9, 4), (4, 9), (5, 5), (1, 1)]  # narrowing layers transform first, widening ones aggregate first


def drawn(rng, comm, name, directed):
    """Return a case and weights of its edges, each in both directions with one weight where it is not directed."""
    case = cases.CASES[name](rng, comm.size)
    size = max(1, case.nodes)
    table = rng.random((size, size)) * (rng.random((size, size)) > 0.3)
    nothing = rng.random(size) < 0.2  # weights of zero, also of all edges of a node, its self loop among them
    table[nothing], table[:, nothing] = 0, 0
    if directed:
        return case, table[case.edge_list]
    source, destination = case.edge_list
    ends = np.append(source, destination), np.append(destination, source)
    case = cases.csr(*ends, case.nodes, case.bounds)
    return case, np.triu(table)[np.sort(case.edge_list, axis=0)[0], np.sort(case.edge_list, axis=0)[1]]


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
    case, weight = drawn(rng, comm, name, directed)
    weight = weight.astype(np.float32) if weighted else None
    spread = Spread(comm, backend, case, directed, torch.float64, transfer, weight)
    graph, mine = spread.handle("gcn"), spread.mine
    adjacency = graph.adjacency("gcn")
    A = gcn_matrix(case.indptr, case.indices, weight)
    for in_channels, out_channels in SHAPES:
        shapes = (case.nodes, in_channels), (out_channels, in_channels), (out_channels,)
        every = [torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes]
        x_all, w_all, b_all = every
        g_all = torch.from_numpy(rng.standard_normal((case.nodes, out_channels)))
        wanted = A @ x_all @ w_all.t() + b_all
        wanted = wanted.relu() if relu else wanted
        wanted.backward(g_all)
        for needs_x in (True, False):
            x, w, b = (each.detach().clone().requires_grad_() for each in (x_all[mine], w_all, b_all))
            x.requires_grad_(needs_x)
            scale = adjacency.scale
            out = convolution(x, w, b, graph, adjacency, before=scale, after=scale, relu=relu)
            out.backward(g_all[mine])
            for each in (w, b):
                mpi.sum_in_rank_order(comm, each.grad.numpy())
            with mpi.agree(comm):
                torch.testing.assert_close(out, wanted[mine], rtol=1e-12, atol=1e-12)
                if needs_x:
                    torch.testing.assert_close(x.grad, x_all.grad[mine], rtol=1e-12, atol=1e-12)
                for found, right in ((w, w_all), (b, b_all)):
                    torch.testing.assert_close(found.grad, right.grad, rtol=1e-11, atol=1e-11)
    assert transform_first(9, 4, True) and not transform_first(4, 9, True)
