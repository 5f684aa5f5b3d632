"""Layers on blocks of sampled edges: values and gradients of dense matrices, and of PyG where it has the same."""

from __future__ import annotations

import copy

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
    return mgg.from_scipy(matrix, x, y, train=np.ones(NODES, bool), backend="serial", dtype=name, **options)


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


class Sums(torch.nn.Module):
    """What layers compute with dense matrices of a block's sums, normalised and plain, and the loops of rows."""

    def __init__(self, layer, sums):
        super().__init__()
        self.layer, self.sums = copy.deepcopy(layer).double(), sums

    def forward(self, x):
        of, own = self.layer, x[: len(self.sums)]
        if isinstance(of, mgg.nn.GCNConv):
            return self.sums @ x @ of.lin.weight.T + of.bias
        if isinstance(of, mgg.nn.GINConv):
            return of.nn(self.sums @ x + (1 + of.eps) * own)
        return self.sums @ x @ of.lin_l.weight.T + of.lin_l.bias + own @ of.lin_r.weight.T


def compared(rng, ours, theirs, x, block) -> None:
    """Compare values and all gradients of a layer on a block with those of a module in float64."""
    gradient = torch.from_numpy(rng.standard_normal(ours(x, block).shape)).to(x.dtype)
    wanted = results(theirs, x.double(), gradient.double())
    found = results(ours, x, gradient, block)
    check(found, {name.removeprefix("layer."): value for name, value in wanted.items()}, {})


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("out_channels", [2, 40])
def test_sums_are_estimates_with_gradients(rng, dtype, fanouts, weighted, out_channels):
    matrix = matrix_of(rng, weighted=weighted)
    network, late = (
        torch.nn.Sequential(inner) for inner in (torch.nn.Linear(FEATURES, out_channels), torch.nn.Tanh())
    )
    with opened(rng, dtype, matrix) as graph:
        for block in blocks_of(graph, fanouts):
            x = torch.from_numpy(rng.standard_normal((block.rows, FEATURES))).to(dtype)
            factor = factors(block, matrix)
            assert (factor.max() > 1) == (fanouts != [-1, -1])
            for layer in (
                mgg.nn.GCNConv(FEATURES, out_channels),
                mgg.nn.GINConv(network, eps=0.3, train_eps=True),
                mgg.nn.GINConv(late, eps=0.25),
                mgg.nn.SAGEConv(FEATURES, out_channels, aggr="sum"),
            ):
                kind = "gcn" if isinstance(layer, mgg.nn.GCNConv) else "edges"
                ours = layer.to(dtype)
                compared(rng, ours, Sums(ours, sums_of(block, matrix, kind, factor)), x, block)


SAMPLED = sorted(set(LAYERS) - {name for name in LAYERS if "gcn" in name or "gin" in name or "sum" in name})


class First(torch.nn.Module):
    """The first rows of a layer's output over some edges."""

    def __init__(self, layer, edges, rows):
        super().__init__()
        self.layer, self.edges, self.rows = layer, edges, rows

    def forward(self, x):
        return self.layer(x, self.edges)[: self.rows]


@pytest.mark.parametrize("name", SAMPLED)
def test_other_layers_are_pygs_over_the_sampled_edges(rng, dtype, name):
    with opened(rng, dtype, matrix_of(rng)) as graph:
        for block in blocks_of(graph, [4, 3]):
            ours, theirs = LAYERS[name].pair(FEATURES, 8, dtype)
            x = features(rng, LAYERS[name], block.rows, FEATURES, dtype)
            compared(rng, ours, First(theirs, block.edge_index(), block.destinations), x, block)


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
        ours, _ = LAYERS[name].pair(FEATURES, 8, torch.float32)
        half, exact = both_types(rng, ours)
        errors.append([float((a - b).norm() / b.norm()) for a, b in zip(half, exact, strict=True)])
    out, gradients = np.median(errors, axis=0)
    assert out < 0.01 and gradients < 0.05


def both_types(rng, layer):
    """Return [output, all gradients in one tensor] of a layer with bfloat16 rows, and with equal float32 rows."""
    matrix, results = matrix_of(rng, weighted=True), []
    whole = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    pushed = rng.standard_normal((NODES, 32)).astype(np.float32)
    for dtype in (torch.bfloat16, torch.float32):
        with opened(rng, dtype, matrix) as graph:
            block = blocks_of(graph, [4, 3])[0]
            x = torch.from_numpy(whole[block.numbers]).to(torch.bfloat16).to(dtype).requires_grad_()
            layer.zero_grad()
            out = layer(x, block)
            assert out.dtype == dtype
            out.backward(torch.from_numpy(pushed[: block.destinations, : out.shape[1]]).to(dtype))
            gradients = [x.grad.float(), *(parameter.grad for parameter in layer.parameters())]
            results.append([out.detach().float(), torch.cat([each.reshape(-1) for each in gradients])])
    return results
