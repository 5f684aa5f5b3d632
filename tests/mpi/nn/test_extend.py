"""Extended rows and their adjoint, against the rows of the whole graph; and another library's layers over them."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import mgg_hpc as mgg
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

TRANSFERS = ["direct", "get", "halo"]


def opened(case, comm, weight=None, **options):
    """A case's graph; its bounds are of the graph's own making."""
    weight = np.ones(len(case.indices), np.float32) if weight is None else weight
    matrix = sp.csr_array((weight, case.indices, case.indptr), shape=(case.nodes, case.nodes))
    return mgg.from_scipy(matrix, transpose=True, comm=comm, **options)


def extended(case, graph):
    """Numbers of this rank's rows and of the rows that it needs of others, ascending."""
    source, destination = case.edge_list
    return np.append(graph.ids, np.setdiff1d(source[np.isin(destination, graph.ids)], graph.ids))


@pytest.mark.sampled
@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("name", [name for name in cases.CASES if name != "no_nodes"])
def test_extended_rows_are_copies_and_their_gradients_come_back(rng, comm, name, transfer):
    case = cases.CASES[name](rng, comm.size)
    with opened(case, comm, transfer=transfer, dtype="float64") as graph:
        every = extended(case, graph)
        copies, senders = np.zeros((2, case.nodes))
        for rank, theirs in enumerate(comm.allgather(every)):
            copies[theirs] += 1
            senders[theirs] += rank
        for width in (3, 20):
            x = rng.standard_normal((case.nodes, width))
            mine = torch.from_numpy(x[graph.ids]).requires_grad_()
            out = mgg.extend(mine, graph)
            # A gradient that tells who sends it: each copy's is its rank's number above the row's own.
            out.backward(torch.from_numpy(x[every] + comm.rank))
            wanted = x * copies[:, None] + senders[:, None]
            with mpi.agree(comm):
                np.testing.assert_array_equal(out.detach().numpy(), x[every])
                np.testing.assert_allclose(mine.grad.numpy(), wanted[graph.ids], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["edges", "gcn", "attention"])
@pytest.mark.parametrize("name", ["ordinary", "self_loops", "duplicates", "empty_rows"])
def test_edges_point_into_the_extended_rows(rng, comm, name, kind):
    case = cases.CASES[name](rng, comm.size)
    source, destination = case.edge_list
    if kind != "edges":  # one loop for each node
        kept, loops = source != destination, np.arange(case.nodes)
        source, destination = np.append(source[kept], loops), np.append(destination[kept], loops)
    with opened(case, comm) as graph:
        index = graph.edge_index(kind).numpy()
        mine = np.isin(destination, graph.ids)
        wanted = np.stack([source[mine], destination[mine]])
        found = np.stack([extended(case, graph)[index[0]], graph.ids[index[1]]])
        with mpi.agree(comm):
            np.testing.assert_array_equal(found[:, np.lexsort(found)], wanted[:, np.lexsort(wanted)])


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_layer_of_another_library_runs_over_ranks(rng, comm, transfer):
    """PyG's TransformerConv with edge features, outputs and all gradients."""
    from torch_geometric.nn import TransformerConv

    case = cases.CASES["ordinary"](rng, comm.size)
    weight = rng.uniform(0.5, 2, len(case.indices)).astype(np.float32)
    torch.manual_seed(4)
    layer = TransformerConv(6, 5, heads=2, edge_dim=1).double()
    x = torch.from_numpy(rng.standard_normal((case.nodes, 6))).requires_grad_()
    g = torch.from_numpy(rng.standard_normal((case.nodes, 10)))
    edges = torch.from_numpy(np.stack(case.edge_list))
    wanted = layer(x, edges, torch.from_numpy(weight).double()[:, None])
    wanted.backward(g)
    gradients = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    with opened(case, comm, weight, transfer=transfer, dtype="float64") as graph:
        mine = x.detach()[graph.ids].clone().requires_grad_()
        edge_features = graph.edge_weight().double()[:, None]
        out = layer((mgg.extend(mine, graph), mine), graph.edge_index(), edge_features)
        out.backward(g[graph.ids])
        mgg.allreduce_gradients(layer, graph)
        with mpi.agree(comm):
            torch.testing.assert_close(out, wanted.detach()[graph.ids], rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(mine.grad, x.grad[graph.ids], rtol=1e-11, atol=1e-11)
            for parameter, each in zip(layer.parameters(), gradients, strict=True):
                torch.testing.assert_close(parameter.grad, each, rtol=1e-10, atol=1e-10)
