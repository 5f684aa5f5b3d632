"""Layers on blocks of sampled edges: values and gradients of dense matrices, and of PyG where it has the same."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from convolutions import LAYERS, check, features
from test_conv import results

import mgg_hpc as mgg

NODES, FEATURES = 70, 6


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request):
    return request.param


def matrix_of(rng, *, weighted: bool = False) -> sp.csr_array:
    """Return a random directed graph with a hub, empty rows and some self loops."""
    dense = rng.random((NODES, NODES)) < 0.12
    dense[3] = rng.random(NODES) < 0.9
    dense[[5, 11]] = False
    values = rng.uniform(0.5, 2.0, (NODES, NODES)) if weighted else 1.0
    return sp.csr_array((dense * values).astype(np.float32))


def opened(rng, dtype, matrix, **options):
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    y = rng.integers(0, 4, NODES)
    name = str(dtype).removeprefix("torch.")
    options |= {"train": np.ones(NODES, bool), "backend": "serial", "dtype": name}
    return mgg.from_scipy(matrix, x, y, transpose=True, **options)


def blocks_of(graph, fanouts):
    """Return the blocks of a batch of nine rows."""
    [batch] = mgg.NeighborLoader(graph, fanouts, batch_size=9, input_nodes=torch.arange(20, 29))
    return batch.blocks


def sums_of(block, matrix, kind: str, factor: np.ndarray) -> torch.Tensor:
    """Return the dense matrix [destinations, rows] of a block's sums, from its edges and the whole graph."""
    source, target = block.edge_index().numpy()
    ids, own, table = block.numbers, np.arange(block.destinations), matrix.toarray().astype(np.float64)
    dense = np.zeros((block.destinations, block.rows))
    np.add.at(
        dense, (target, source), factor[target] * (table[ids[target], ids[source]] if kind == "gcn" else 1)
    )
    if kind != "gcn":
        return torch.from_numpy(dense)
    loops = np.diag(table) == 0
    dense[own, own] += loops[ids[own]]
    scale = (table.sum(1) + loops) ** -0.5
    return torch.from_numpy(scale[ids[own], None] * dense * scale[ids])


def factors(block, matrix) -> np.ndarray:
    """Return how many in-edges each destination has for each that was sampled."""
    ids = block.numbers[: block.destinations]
    degree = np.diff(matrix.indptr)[ids]
    sampled = np.bincount(block.edge_index()[1].numpy(), minlength=block.destinations)
    return degree / np.maximum(sampled, 1)


class Formula(torch.nn.Module):
    """What a function of a layer's parameters and rows gives."""

    def __init__(self, layer, function):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x):
        return self.function(self.layer, x)


def compared(rng, ours, theirs, function, x, block) -> None:
    """Compare values and all gradients of a layer on a block with those of a function of a layer in float64."""
    gradient = torch.from_numpy(rng.standard_normal(ours(x, block).shape)).to(x.dtype)
    wanted = results(Formula(theirs, function), x.double(), gradient.double())
    found = results(ours, x, gradient, block)
    check(found, {name.removeprefix("layer."): value for name, value in wanted.items()}, {})


# (made for a number of columns, kind of sums, what it computes with dense matrices a of sums for n rows)
SUMS = [
    (
        lambda columns: mgg.nn.GCNConv(FEATURES, columns),
        "gcn",
        lambda of, x, a, n: a @ x @ of.lin.weight.T + of.bias,
    ),
    (
        lambda columns: mgg.nn.GINConv(torch.nn.Sequential(torch.nn.Linear(FEATURES, columns)), 0.3, True),
        "edges",
        lambda of, x, a, n: of.nn(a @ x + (1 + of.eps) * x[:n]),
    ),
    (
        lambda columns: mgg.nn.GINConv(torch.nn.Sequential(torch.nn.Tanh()), eps=0.25),
        "edges",
        lambda of, x, a, n: torch.tanh(a @ x + 1.25 * x[:n]),
    ),
    (
        lambda columns: mgg.nn.SAGEConv(FEATURES, columns, aggr="sum"),
        "edges",
        lambda of, x, a, n: a @ x @ of.lin_l.weight.T + of.lin_l.bias + x[:n] @ of.lin_r.weight.T,
    ),
]


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [2, 40])
def test_sums_are_estimates_with_gradients(rng, dtype, fanouts, weighted, columns):
    matrix = matrix_of(rng, weighted=weighted)
    with opened(rng, dtype, matrix) as graph:
        for block in blocks_of(graph, fanouts):
            x, factor = features(rng, LAYERS["gcn"], block.rows, FEATURES, dtype), factors(block, matrix)
            assert (factor.max() > 1) == (fanouts != [-1, -1])
            for make, kind, formula in SUMS:
                ours, sums = make(columns).to(dtype), sums_of(block, matrix, kind, factor)
                function = functools.partial(formula, a=sums, n=block.destinations)
                compared(rng, ours, copy.deepcopy(ours).double(), function, x, block)


SAMPLED = sorted(set(LAYERS) - {name for name in LAYERS if "gcn" in name or "gin" in name or "sum" in name})


@pytest.mark.parametrize("name", SAMPLED)
def test_other_layers_are_pygs_over_the_sampled_edges(rng, dtype, name):
    with opened(rng, dtype, matrix_of(rng)) as graph:
        for block in blocks_of(graph, [4, 3]):
            edges, own = block.edge_index(), block.destinations
            x = features(rng, LAYERS[name], block.rows, FEATURES, dtype)
            first = lambda of, x, edges=edges, own=own: of(x, edges)[:own]  # noqa: E731
            compared(rng, *LAYERS[name].pair(FEATURES, 8, dtype), first, x, block)


def test_sums_over_many_draws_have_the_whole_sums_as_their_mean(rng):
    matrix = matrix_of(rng, weighted=True)
    x = rng.standard_normal((NODES, FEATURES))
    for weight_attr in (None, "weight"):
        with opened(rng, torch.float64, matrix) as graph:
            loader = mgg.NeighborLoader(graph, [3], batch_size=NODES, weight_attr=weight_attr, seed=5)
            layer = mgg.nn.GCNConv(FEATURES, FEATURES, bias=False).double()
            torch.nn.init.eye_(layer.lin.weight)
            found = []
            for _ in range(400):
                [batch] = loader
                numbers = batch.blocks[0].numbers
                out = layer(torch.from_numpy(x[numbers]), batch.blocks[0]).detach().numpy()
                found.append(out[np.argsort(numbers[: len(out)])])
            exact = layer(torch.from_numpy(x), graph).detach().numpy()
        error = (np.mean(found, axis=0) - exact) / (np.std(found, axis=0) / np.sqrt(len(found)) + 1e-12)
        assert np.abs(error).max() < 5.5, weight_attr
        assert np.std(found, axis=0).max() > 0.01


@pytest.mark.parametrize("name", LAYERS)
def test_half_rows_are_near_float32_ones(rng, name):
    """Compare the median error of nine draws: of one draw it is large where rounding changes a sign before a ReLU."""
    errors = []
    for _ in range(9):
        layer, matrix, found = (
            LAYERS[name].pair(FEATURES, 8, torch.float32)[0],
            matrix_of(rng, weighted=True),
            [],
        )
        x, pushed = (torch.from_numpy(rng.standard_normal((NODES, width))) for width in (FEATURES, 32))
        for dtype in (torch.bfloat16, torch.float32):
            with opened(rng, dtype, matrix) as graph:
                block = blocks_of(graph, [4, 3])[0]
                given = x[block.numbers].bfloat16().to(dtype)
                gradient = pushed[: block.destinations, : layer(given, block).shape[1]].to(dtype)
                out, *gradients = results(layer, given, gradient, block).values()
                assert out.dtype == dtype
                found.append((out.float(), torch.cat([each.float().reshape(-1) for each in gradients])))
        errors.append(
            [float((half - exact).norm() / exact.norm()) for half, exact in zip(*found, strict=True)]
        )
    out, gradients = np.median(errors, axis=0)
    assert out < 0.01 and gradients < 0.05


def test_data_of_edges_have_no_order_in_normalised_blocks(rng):
    class Scaled(mgg.nn.saga.Layer):
        kind = "gcn"

        def apply_edge(self, edge):
            return edge.src * edge.data["weight"][:, None]

        def apply_vertex(self, vertex, accum):
            return accum

    with opened(rng, torch.float32, matrix_of(rng, weighted=True)) as graph:
        block = blocks_of(graph, [4, 3])[0]
        with pytest.raises(ValueError, match="have no order in an adjacency of kind 'gcn'"):
            Scaled()(torch.zeros(block.rows, FEATURES), block)
