"""Layers on blocks of sampled edges: values and gradients of dense matrices, and of PyG where it has the same."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from convolutions import LAYERS, TOLERANCE

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


def sums_of(block, matrix, kind: str, factor: np.ndarray) -> torch.Tensor:
    """Return the dense matrix [destinations, rows] of a block's sums, from its edges and the whole graph."""
    source, target = block.edge_index().numpy()
    ids = block.numbers
    dense = np.zeros((block.destinations, block.rows))
    values = np.asarray(matrix.toarray()[ids[target], ids[source]], np.float64) if kind == "gcn" else 1.0
    np.add.at(dense, (target, source), values * factor[target])
    if kind != "gcn":
        return torch.from_numpy(dense)
    whole = matrix.toarray().astype(np.float64)
    whole[np.diag(np.diag(whole) == 0)] = 1.0
    scale = whole.sum(1) ** -0.5
    own = np.arange(block.destinations)
    dense[own, own] += matrix.toarray()[ids[own], ids[own]] == 0
    return torch.from_numpy(scale[ids[own], None] * dense * scale[ids])


def factors(block, matrix) -> np.ndarray:
    """Return how many in-edges each destination has for each that was sampled."""
    ids = block.numbers[: block.destinations]
    degree = np.diff(matrix.indptr)[ids]
    sampled = np.bincount(block.edge_index()[1].numpy(), minlength=block.destinations)
    return degree / np.maximum(sampled, 1)


def compared(ours, formula, x: torch.Tensor, block, rng, dtype) -> None:
    """Compare values and all gradients of a layer with those of a formula of float64 tensors."""
    wide = {name: p.detach().double().requires_grad_() for name, p in ours.named_parameters()}
    exact = x.detach().double().requires_grad_()
    wanted = formula(exact, wide)
    gradient = torch.from_numpy(rng.standard_normal(tuple(wanted.shape))).to(dtype)
    wanted.backward(gradient.double())
    given = x.detach().clone().requires_grad_()
    out = ours(given, block)
    out.backward(gradient)
    found = {"out": out, "x": given.grad} | {name: p.grad for name, p in ours.named_parameters()}
    exactly = {"out": wanted, "x": exact.grad} | {name: p.grad for name, p in wide.items()}
    for name, values in exactly.items():
        largest = max(float(values.detach().abs().max()) if values.numel() else 0.0, 1.0)
        np.testing.assert_allclose(
            found[name].detach().double(), values.detach(), atol=20 * TOLERANCE[dtype] * largest, err_msg=name
        )


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, -1]], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("out_channels", [2, 40])
def test_sums_are_estimates_with_gradients(rng, dtype, fanouts, weighted, out_channels):
    matrix = matrix_of(rng, weighted=weighted)
    with opened(rng, dtype, matrix) as graph:
        [batch] = mgg.NeighborLoader(graph, fanouts, batch_size=9, input_nodes=torch.arange(20, 29))
        for block in batch.blocks:
            x = torch.from_numpy(rng.standard_normal((block.rows, FEATURES))).to(dtype)
            factor = factors(block, matrix)
            assert (factor.max() > 1) == (fanouts != [-1, -1])
            plain, normalised = sums_of(block, matrix, "edges", factor), sums_of(block, matrix, "gcn", factor)
            own = block.destinations

            gcn = mgg.nn.GCNConv(FEATURES, out_channels).to(dtype)
            compared(
                gcn, lambda x, p, a=normalised: a @ x @ p["lin.weight"].T + p["bias"], x, block, rng, dtype
            )
            network = torch.nn.Sequential(torch.nn.Linear(FEATURES, out_channels)).to(dtype)
            gin = mgg.nn.GINConv(network, eps=0.3, train_eps=True).to(dtype)
            compared(
                gin,
                lambda x, p, a=plain, n=own: (
                    (a @ x + (1 + p["eps"]) * x[:n]) @ p["nn.0.weight"].T + p["nn.0.bias"]
                ),
                x,
                block,
                rng,
                dtype,
            )
            late = mgg.nn.GINConv(torch.nn.Sequential(torch.nn.Tanh()), eps=0.25).to(dtype)
            compared(
                late, lambda x, p, a=plain, n=own: torch.tanh(a @ x + 1.25 * x[:n]), x, block, rng, dtype
            )
            sage = mgg.nn.SAGEConv(FEATURES, out_channels, aggr="sum").to(dtype)
            compared(
                sage,
                lambda x, p, a=plain, n=own: (
                    a @ x @ p["lin_l.weight"].T + p["lin_l.bias"] + x[:n] @ p["lin_r.weight"].T
                ),
                x,
                block,
                rng,
                dtype,
            )


SAMPLED = sorted(set(LAYERS) - {name for name in LAYERS if "gcn" in name or "gin" in name or "sum" in name})


@pytest.mark.parametrize("name", SAMPLED)
def test_other_layers_are_pygs_over_the_sampled_edges(rng, dtype, name):
    matrix, layer = matrix_of(rng), LAYERS[name]
    with opened(rng, dtype, matrix) as graph:
        [batch] = mgg.NeighborLoader(graph, [4, 3], batch_size=9, input_nodes=torch.arange(20, 29))
        for block in batch.blocks:
            ours, theirs = layer.pair(FEATURES, 8, dtype)
            odd = 2 * rng.integers(-2, 3, (block.rows, FEATURES)) + 1
            drawn = odd if layer.ties else rng.standard_normal((block.rows, FEATURES))
            x = torch.from_numpy(drawn).to(dtype)
            edges, own = block.edge_index(), block.destinations

            def formula(x, parameters, theirs=theirs, edges=edges, own=own):
                return torch.func.functional_call(theirs, parameters, (x, edges))[:own]

            compared(ours, formula, x, block, rng, dtype)


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
            [batch] = mgg.NeighborLoader(graph, [4, 3], batch_size=9, input_nodes=torch.arange(20, 29))
            block = batch.blocks[0]
            x = torch.from_numpy(whole[block.numbers]).to(torch.bfloat16).to(dtype).requires_grad_()
            layer.zero_grad()
            out = layer(x, block)
            assert out.dtype == dtype
            out.backward(torch.from_numpy(pushed[: block.destinations, : out.shape[1]]).to(dtype))
            gradients = [x.grad.float(), *(parameter.grad for parameter in layer.parameters())]
            results.append([out.detach().float(), torch.cat([each.reshape(-1) for each in gradients])])
    return results


def test_dropout_draws_by_node_on_a_block_as_on_a_graph(rng):
    matrix = matrix_of(rng)
    with opened(rng, torch.float64, matrix) as graph:
        [batch] = mgg.NeighborLoader(graph, [4], batch_size=9, input_nodes=torch.arange(20, 29))
        [block] = batch.blocks
        whole, here = (mgg.nn.Dropout(0.5, stream=7) for _ in range(2))
        of_all = whole(graph.x, graph)
        torch.testing.assert_close(
            here(batch.x, block), of_all[torch.from_numpy(block.numbers)], rtol=0, atol=0
        )
        conv = mgg.nn.GATConv(FEATURES, 4, dropout=0.5).double()
        assert len(conv(batch.x, block)) == block.destinations
