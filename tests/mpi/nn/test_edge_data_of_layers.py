"""Attention with data of edges over ranks: values and all gradients are PyG's over the whole graph.

Data of an edge and of its reverse are drawn apart, also where the graph is undirected.
"""

from __future__ import annotations

import cases
import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from convolutions import SCORED, TOLERANCE, Spread, check, drawn_edges
from numpy.testing import assert_array_equal

import mgg_hpc as mgg
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.layers.gat_conv import GATConv
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

NODES = 70
LAYERS = {
    "mean": {"heads": 3, "edge_dim": 3},
    "eight heads": {"heads": 8, "edge_dim": 2, "fill_value": "add"},
    "a number": {"heads": 2, "edge_dim": 1, "fill_value": 0.7, "concat": False, "negative_slope": 0.4},
    "least": {"edge_dim": 4, "fill_value": "min"},
    "most": {"heads": 2, "edge_dim": 2, "fill_value": "max", "residual": True},
    "product": {"heads": 2, "edge_dim": 2, "fill_value": "mul"},
    "as it is": {"heads": 3, "edge_dim": 3, "add_self_loops": False, "bias": False},
}


def bounds_of(ranks: int) -> np.ndarray:
    """With three or more ranks the last but one has no rows."""
    bounds = cases.even(NODES, max(1, ranks - 1) if ranks > 2 else ranks)
    return np.insert(bounds, -1, bounds[-2]) if ranks > 2 else bounds


def pair(rng, options, dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Ours and PyG's, with the same random parameters on all ranks; PyG's in float64."""
    torch.manual_seed(int(rng.integers(2**31)))
    theirs = pyg.GATConv(5, 4, **options).to(dtype)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=SCORED)
    ours = GATConv(5, 4, **options).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs.double()


def summed(comm, values: torch.Tensor) -> torch.Tensor:
    total = np.ascontiguousarray(values.numpy())
    mpi.sum_in_rank_order(comm, total)
    return torch.from_numpy(total)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("directed", "transfer", "dtype"),
    [
        (False, "direct", torch.float64),
        (False, "get", torch.float64),
        (False, "halo", torch.float32),
        (True, "direct", torch.float32),
        (True, "get", torch.float64),
        (True, "halo", torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", LAYERS)
def test_attention_with_data_of_edges_is_that_of_the_whole_graph(
    rng, comm, backend, name, directed, transfer, dtype
):
    case = cases.csr(*drawn_edges(rng, NODES, directed=directed), NODES, bounds_of(comm.size))
    graph = Spread(comm, backend, case, directed, dtype, transfer, ordered=True)
    ours, theirs = pair(rng, LAYERS[name], dtype)
    x_all = torch.from_numpy(rng.standard_normal((NODES, 5))).to(dtype).double().requires_grad_()
    attr_all = torch.from_numpy(rng.standard_normal((len(case.indices), ours.edge_dim)))
    attr_all = attr_all.to(dtype).double().requires_grad_()
    out_all = theirs(x_all, graph.edge_index, attr_all)
    gradient = torch.from_numpy(rng.standard_normal(out_all.shape)).to(dtype)
    out_all.backward(gradient.double())

    mine = case.edges(comm.rank)
    x = x_all.detach()[graph.mine].to(dtype).requires_grad_()
    attr = attr_all.detach()[mine].to(dtype).requires_grad_()
    out = ours(x, graph.handle(ours.kind), edge_attr=attr)
    out.backward(gradient[graph.mine])
    found = {"out": out.detach(), "x": x.grad}
    found |= {parameter: summed(comm, p.grad) for parameter, p in ours.named_parameters()}
    wanted = {"out": out_all, "x": x_all.grad}
    wanted |= {parameter: p.grad for parameter, p in theirs.named_parameters()}
    with mpi.agree(comm):
        check(found, wanted, graph.mine)
        bound = TOLERANCE[dtype] * float(attr_all.grad.abs().max())
        torch.testing.assert_close(attr.grad.double(), attr_all.grad[mine], rtol=0, atol=bound)
    with torch.no_grad():  # no values of out-edges are needed
        again = ours(x, graph.handle(ours.kind), edge_attr=attr)
        with mpi.agree(comm):
            assert torch.equal(again, out)


@pytest.mark.parametrize("directed", [False, True])
def test_names_stand_for_the_data_of_a_graph(rng, comm, stored, directed):
    """Integers, halves and weights are cast; gathered outputs and gradients are PyG's."""
    source, destination = drawn_edges(rng, NODES, directed=directed)
    case = cases.csr(source, destination, NODES, bounds_of(comm.size))
    edges = len(case.indices)
    weight = rng.standard_normal(edges).astype(np.float32)
    if not directed:
        weight = np.ones_like(weight)
    edge = {
        "kind": rng.integers(-3, 4, edges).astype(np.int16),
        "flow": rng.standard_normal((edges, 1, 2)).astype(np.float16),
    }
    x_all = rng.standard_normal((NODES, 5)).astype(np.float32)
    graph = Graph("g", case.indptr, case.indices, weight, x_all, directed=directed, edge=edge)
    path = stored(f"directed {directed}", graph)
    edge_index = torch.from_numpy(np.stack(case.edge_list))
    backend = "serial" if comm.size == 1 else "shm"
    with mgg.open(path, backend=backend, dtype="float64", transfer="halo") as graph:
        mine = slice(int(graph.part.bounds[comm.rank]), int(graph.part.bounds[comm.rank + 1]))
        own = slice(int(case.indptr[mine.start]), int(case.indptr[mine.stop]))
        with mpi.agree(comm):
            for name, values in (edge | {"weight": weight}).items():
                assert_array_equal(graph.edge_data(name), values[own])
        for name, values in (edge | {"weight": weight}).items():
            data = torch.from_numpy(values.reshape(edges, -1)).double()
            ours, theirs = pair(rng, {"heads": 2, "edge_dim": data.shape[1]}, torch.float64)
            wanted = theirs(torch.from_numpy(x_all).double(), edge_index, data)
            wanted.sum().backward()
            for given in (name, name, data[own]):
                ours.zero_grad()
                out = ours(graph.x, graph, edge_attr=given)
                out.sum().backward()
                found = {parameter: summed(comm, p.grad) for parameter, p in ours.named_parameters()}
                with mpi.agree(comm):
                    torch.testing.assert_close(out, wanted[mine])
                    check(found, {parameter: p.grad for parameter, p in theirs.named_parameters()}, mine)
        with pytest.raises(
            mgg.InputError, match="has no data of edges named 'speed'; it has flow, kind, weight"
        ):
            ours(graph.x, graph, edge_attr="speed")
        with pytest.raises(ValueError, match="edge_attr has 2 columns, and edge_dim is 1"):
            ours(graph.x, graph, edge_attr="flow")
        with pytest.raises(ValueError, match=r"data of edges are \[3, 1\], and this rank's rows have"):
            ours(graph.x, graph, edge_attr=torch.zeros(3, 1))
        with pytest.raises(ValueError, match="by edge_dim and edge_attr, and edge_attr is missing"):
            ours(graph.x, graph)
        with pytest.raises(ValueError, match="by edge_dim and edge_attr, and edge_dim is missing"):
            GATConv(5, 4).double()(graph.x, graph, edge_attr="kind")
