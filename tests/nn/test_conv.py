"""Layers on one rank: values and gradients are PyG's with the same weights; and what layers refuse."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from convolutions import LAYERS, NODES, TOLERANCE, alone, check, compare, features

import mgg_hpc as mgg
import mgg_hpc.nn
from mgg_hpc.nn.autograd import aggregation
from mgg_hpc.nn.autograd.aggregation import aggregate
from mgg_hpc.nn.autograd.recompute import recomputed
from mgg_hpc.nn.graph.handle import GraphHandle
from mgg_hpc.nn.layers import attention
from mgg_hpc.nn.layers.attention import GATConv
from mgg_hpc.nn.layers.conv import GCNConv, GINConv, SAGEConv
from mgg_hpc.nn.layers.networks import BatchNorm
from mgg_hpc.nn.layers.random import Dropout, dropped
from mgg_hpc.nn.spans import first_order
from mgg_hpc.runtime.backends.arguments import RngKey

SHAPES = [(9, 4), (4, 9), (5, 5)]  # narrowing layers transform first, widening ones aggregate first


def results(layer, x, gradient, graph=None, call=None) -> dict[str, torch.Tensor]:
    """The output of a layer, or of what calls it, and the gradients of x and of each parameter."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = (call or layer)(*((x,) if graph is None else (x, graph)))
    out.backward(gradient)
    return {"out": out.detach(), "x": x.grad} | {name: p.grad for name, p in layer.named_parameters()}


def near_the_largest(found, wanted) -> None:
    """Compare tensors to rounding of the largest value among all: the bias before a batch norm has no gradient."""
    found, wanted = list(found), list(wanted)
    largest = max(float(each.abs().max()) for each in wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * largest)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_pygs(rng, name, directed, dtype):
    for shape in SHAPES:
        compare(rng, LAYERS[name], alone(rng, dtype, directed=directed), *shape)


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_relu_and_dropout_within_a_layer_are_those_behind_it(rng, name, dtype, drops):
    """The same rows to the last bit, and the same gradients."""
    layer, spread = LAYERS[name], alone(rng, dtype)
    key = None
    if drops:
        key = RngKey(float(rng.uniform(0.1, 0.9)), int(rng.integers(1 << 40)), epoch=3, stream=5)
    for shape in SHAPES:
        conv, _ = layer.pair(*shape, dtype)
        graph = spread.handle(conv.kind)

        def behind(x, conv=conv, graph=graph):
            out = conv(x, graph, relu=drops)
            return dropped(out, graph, key) if drops else out.relu()

        def within(x, conv=conv, graph=graph):
            return conv(x, graph, relu=True, key=key)

        x = features(rng, layer, NODES, shape[0], dtype)
        gradient = torch.from_numpy(rng.standard_normal(conv(x, graph).shape)).to(dtype)
        found, wanted = (results(conv, x, gradient, call=call) for call in (within, behind))
        assert 0 < (found["out"] == 0).double().mean() < 1
        assert torch.equal(found["out"], wanted["out"])
        check(found, wanted, {})


@pytest.mark.parametrize("rows", [1, 7, NODES - 1])
@pytest.mark.parametrize("name", ["gat", "gat_dot", "gat_average"])
def test_attention_in_blocks_of_rows_gives_the_same_bits(rng, monkeypatch, name, rows):
    graph, (layer, _) = alone(rng, torch.float64), LAYERS[name].pair(5, 4, torch.float64)
    x, handle = torch.from_numpy(rng.standard_normal((NODES, 5))), graph.handle(layer.kind)
    gradient = torch.from_numpy(rng.standard_normal(layer(x, handle).shape))
    wanted = results(layer, x, gradient, handle)
    monkeypatch.setattr(attention, "ROWS_AT_ONCE", rows)
    found = results(layer, x, gradient, handle)
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_ends_of_edges_have_numbers_of_five_bytes(rng, monkeypatch, dtype):
    """Rows of a graph whose numbers reach 2^40 - 1, each byte by itself, in any type of rows."""
    graph = alone(rng, dtype)
    handle = graph.handle("edges")
    numbers = rng.integers(0, 2**40, NODES)
    numbers[:3], numbers[-1] = (255, 256, 65536), 2**40 - 1
    monkeypatch.setattr(GraphHandle, "numbers", property(lambda handle: numbers))
    found, wanted = aggregation.edges(handle, handle.adjacency("edges")), numbers[graph.edge_index]
    assert np.array_equal(found[:, np.lexsort(found)], wanted[:, np.lexsort(wanted)])


REFUSING = [GCNConv(4, 2), SAGEConv(4, 2, "max"), GINConv(torch.nn.Tanh()), GATConv(4, 2)]


@pytest.mark.parametrize("layer", REFUSING, ids=lambda layer: type(layer).__name__)
def test_rows_and_graphs_that_do_not_fit_are_refused(rng, layer):
    spread, fits = alone(rng, torch.float32), torch.zeros(NODES, 4)
    kind = "edges" if layer.kind == "gcn" else "gcn"  # another one
    other = spread.handle(kind)
    refused = [
        (torch.zeros(5, 4), f"x has 5 rows; expected {NODES}"),
        (fits.double(), "x is of torch.float64, and the graph of torch.float32"),
    ]
    if not isinstance(layer, GINConv):
        refused.append((fits[:, :3], "x has 3 features, but the weight is for 4"))
    for x, said in refused:
        with pytest.raises(ValueError, match=said):
            layer(x, spread.handle(layer.kind))
    with pytest.raises(ValueError, match=f"was made for {kind!r} layers, and {layer.kind!r} is asked for"):
        layer(fits, other)
    said = f"with an adjacency of kind {layer.kind!r}, and this one is {kind!r}"
    with pytest.raises(ValueError, match=said):
        layer(fits, other, other.adjacency(kind))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SAGEConv(4, 2, "median"), "aggr is 'median'; known are 'mean', 'sum' and 'max'"),
        (lambda: GATConv(4, 2, attention="cosine"), "attention is 'cosine'; known are 'additive' and 'dot'"),
        (lambda: GCNConv(4, 2, True), "GCNConv has no improved=True"),
        (lambda: GCNConv(4, 2, False, True, False), "GCNConv has no add_self_loops=False"),
        (lambda: GCNConv(4, 2, normalize=False), "GCNConv has no normalize=False"),
        (lambda: GCNConv(-1, 2), "in_channels is -1: GCNConv is told its channels, at least 1"),
        (lambda: SAGEConv((4, 4), 2), r"in_channels is \(4, 4\): SAGEConv is told"),
        (lambda: SAGEConv(4, 2, "sum", True, False, True), "SAGEConv has no project=True"),
        (lambda: GATConv(4, 2, edge_dim=0), "edge_dim is 0, of attention 'additive'; it is at least 1"),
        (lambda: GATConv(4, 2, edge_dim=3, attention="dot"), "edge_dim is 3, of attention 'dot'"),
        (lambda: GATConv(4, 2, fill_value="median"), "fill_value is 'median'; known are 'mean', .* numbers"),
        (lambda: GATConv(4, 2, fill_value=torch.zeros(3)), "fill_value is tensor"),
        (lambda: GATConv(4, 2, heads=0), "heads is 0; attention has at least one"),
        (lambda: GATConv(4, 2, dropout=1.0), "dropout is 1.0; it must be at least 0 and less than 1"),
    ],
)
def test_options_that_layers_do_not_have_are_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_batch_norm_of_half_rows_is_computed_in_float32(rng, dtype):
    """Features are about 300, and float16 holds no squares of them; results are rounded once at the end."""
    ours, theirs = BatchNorm(5), torch.nn.BatchNorm1d(5)
    x = torch.from_numpy(300 + 300 * rng.standard_normal((NODES, 5))).to(dtype)
    gradient = torch.from_numpy(rng.standard_normal((NODES, 5))).to(dtype)
    graph = alone(rng, dtype).handle("edges")
    for training in (True, False):
        found = results(ours.train(training), x, gradient, graph)
        wanted = results(theirs.train(training), x.float(), gradient.float())
        for what, value in found.items():
            size = float(wanted[what].abs().max())
            # x less its mean cancels: what float32 rounds is absolute.
            atol = (1e-3 if what == "x" else 1e-6) * size
            torch.testing.assert_close(value.float(), wanted[what], rtol=torch.finfo(dtype).eps, atol=atol)


def test_arguments_come_in_the_order_of_pygs(rng):
    for ours in (GCNConv, SAGEConv, GATConv):
        names = list(inspect.signature(getattr(pyg, ours.__name__)).parameters)[:-1]
        assert list(inspect.signature(ours).parameters)[: len(names)] == names


def test_draws_of_a_layer_that_is_computed_again_are_those_of_its_first_pass(rng):
    """Modules count their own calls, one of them is called twice, and a region is within another."""
    mgg.manual_seed(3)
    dropout, layer = Dropout(0.5), GATConv(8, 8, dropout=0.5).double()
    graph = alone(rng, torch.float64).handle("attention")
    x = torch.from_numpy(rng.standard_normal((NODES, 8))).requires_grad_()

    def inner(x, graph):
        return layer(dropout(dropout(x, graph), graph), graph)

    def outer(x, graph):
        return mgg.recomputed(inner, mgg.recomputed(inner, x, graph), graph)

    def plain(x, graph):
        return inner(inner(x, graph), graph)

    gradients = []
    for run in (plain, outer, lambda x, graph: mgg.recomputed(outer, x, graph)):
        dropout.draws.begin(0), layer.attention_dropout.draws.begin(0)
        out = run(x, graph)
        gradients.append((out.detach(), *torch.autograd.grad(out.sum(), x)))
        assert dropout.draws.epoch == 4
    torch.testing.assert_close(gradients[1:], gradients[:1] * 2, rtol=0, atol=0)


def test_gradients_of_gradients_are_refused(rng):
    x = torch.zeros(NODES, 4, requires_grad=True)
    out = GCNConv(4, 3)(x, alone(rng, torch.float32).handle("gcn"))
    with pytest.raises(RuntimeError, match=r"first gradients alone: .* without create_graph=True"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
    # So does every other backward.
    for module in pkgutil.iter_modules(mgg_hpc.nn.__path__):
        importlib.import_module(f"mgg_hpc.nn.{module.name}")
    every = torch.autograd.Function.__subclasses__()
    ours = [each for each in every if each.__module__.startswith("mgg_hpc.nn")]
    assert len(ours) >= 12
    for function in ours:
        assert function.backward.__code__ is first_order(function.backward).__code__, function


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
def test_dropout_within_a_network_is_that_of_its_modules(rng, again):
    """What a linear map and ReLU take along draws as the module would by itself, once a pass."""
    spread = alone(rng, torch.float64)
    graph = spread.handle("edges")
    x = torch.from_numpy(rng.standard_normal((NODES, 5))).requires_grad_()
    eps, outputs, gradients, epochs = 0.25, [], [], []
    for apart in (False, True):
        mgg.manual_seed(4)
        first, second, drops = torch.nn.Linear(5, 7), torch.nn.Linear(7, 6), [Dropout(0.3), Dropout(0.6)]
        modules = first, torch.nn.ReLU(), drops[0], second, torch.nn.ReLU(), drops[1]
        network = torch.nn.Sequential(*modules).double()

        def separately(x, graph, first=first, second=second, drops=drops):
            summed = aggregate(x, graph, graph.adjacency("edges")) + (1 + eps) * x
            return drops[1](second(drops[0](first(summed).relu(), graph)).relu(), graph)

        run = separately if apart else GINConv(network, eps)
        for _ in range(2):  # each pass draws anew
            out = recomputed(run, x, graph) if again else run(x, graph)
            gradients.append(torch.autograd.grad(out.sum(), [x, *network.parameters()]))
            outputs.append(out)
        epochs.append([drop.draws.epoch for drop in drops])
    assert epochs[0] == epochs[1] == [2, 2]
    assert not torch.equal(outputs[0] == 0, outputs[1] == 0)
    for found, wanted in zip(outputs[:2], outputs[2:], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients[:2], gradients[2:], strict=True):
        near_the_largest(found, wanted)
