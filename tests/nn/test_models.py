"""Whole models: PyG's with the same weights give the same, and what models say of their exchanges is what they do."""

from __future__ import annotations

import itertools
from unittest.mock import create_autospec

import pytest
import torch
import torch_geometric.nn as pyg
from convolutions import NODES, alone
from test_conv import near_the_largest, results

from mgg_hpc.config import ModelSettings
from mgg_hpc.nn.inputs.host import HostFeatures
from mgg_hpc.nn.layers.models import GNN
from mgg_hpc.nn.layers.random import Draws, Dropout

PYG = {"gcn": pyg.GCN, "gin": pyg.GIN, "sage": pyg.GraphSAGE, "gat": pyg.GAT}
NORMS = {
    "none": {},
    "layer": {"norm": "LayerNorm", "norm_kwargs": {"mode": "node"}},
    "batch": {"norm": "BatchNorm"},
}
OPTIONS = [("none", "none"), ("cat", "none"), ("max", "batch"), ("none", "layer"), ("none", "batch")]


def pair(rng, name: str, jumping: str, norm: str) -> tuple[GNN, torch.nn.Module]:
    """(ours, PyG's) of three layers of 12 columns, the second with random weights, which the first loads."""
    heads = 3 if name == "gat" else 1
    options = {"dropout": 0.0, "jumping": jumping, "norm": norm, "heads": heads, "output_heads": heads}
    chosen = ModelSettings(name=name, hidden=12 // heads, layers=3, **options)
    torch.manual_seed(int(rng.integers(2**31)))
    options = NORMS[norm] | ({"heads": heads, "act": "elu"} if name == "gat" else {})
    theirs = PYG[name](7, 12, 3, 4, jk=None if jumping == "none" else jumping, **options).double()
    ours = GNN(chosen, 7, 4, Draws(0), torch.float64).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("jumping", "norm"), OPTIONS)
@pytest.mark.parametrize("name", PYG)
def test_models_are_pygs(rng, name, jumping, norm):
    spread = alone(rng, torch.float64, directed=True)
    ours, theirs = pair(rng, name, jumping, norm)
    x = torch.from_numpy(rng.standard_normal((NODES, 7)))
    gradient = torch.from_numpy(rng.standard_normal((NODES, 4)))
    wanted = results(theirs, x, gradient, spread.edge_index)
    # PyG has another name for what a batch norm holds.
    wanted = {name.replace(".module", ""): value for name, value in wanted.items()}
    found = results(ours, x, gradient, spread.handle(ours.kind))
    assert found.keys() == wanted.keys()
    near_the_largest(found.values(), [wanted[name] for name in found])


DIFFERENTIATED = [
    {"name": "gcn"},
    {"name": "gcn", "norm": "batch"},
    {"name": "sage"},
    {"name": "sage", "norm": "layer"},
    {"name": "gcn", "residual": True, "norm": "batch"},
    {"name": "gin", "train_eps": True, "norm": "batch"},
    {"name": "gin", "residual": True},
    {"name": "sage", "jumping": "cat", "norm": "layer"},
    {"name": "sage", "aggr": "max", "jumping": "max"},
    {"name": "gat", "heads": 2, "output_heads": 3, "attention_dropout": 0.4},
    {"name": "gat", "heads": 2, "attention": "dot", "attention_dropout": 0.3, "residual": True},
    {"name": "gat", "heads": 2, "norm": "batch", "jumping": "cat"},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", DIFFERENTIATED, ids=lambda options: "-".join(map(str, options.values())))
def test_gradients_of_whole_models_are_those_of_differences(rng, options):
    """gradcheck in float64 with dropout of rows and of attention, whose draws stay the same within an epoch."""
    spread = alone(rng, torch.float64, nodes=9)
    chosen = ModelSettings(hidden=3, layers=3, dropout=0.3, **options)
    model = GNN(chosen, 4, 3, Draws(int(rng.integers(1000))), torch.float64).double().train()
    with torch.no_grad():  # biases of 0 would leave rows whose input is dropped at the corner of ReLU
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape)))
    graph = spread.handle(model.kind)
    x = torch.from_numpy(rng.standard_normal((9, 4))).requires_grad_()
    parameters = dict(model.named_parameters())

    def value(x, *given):
        return torch.func.functional_call(model, dict(zip(parameters, given, strict=True)), (x, graph))

    assert torch.autograd.gradcheck(value, (x, *parameters.values()), fast_mode=True)


def test_a_residual_is_the_input_of_layers_that_are_as_wide(rng):
    """Kipf and Welling's equation 14, layer by layer."""
    spread = alone(rng, torch.float64)
    chosen = ModelSettings(hidden=5, layers=4, dropout=0.0, residual=True)
    model = GNN(chosen, 7, 3, Draws(int(rng.integers(100))), torch.float64).double()
    graph = spread.handle("gcn")
    x = torch.from_numpy(rng.standard_normal((NODES, 7)))
    first, second, third, last = model.layers(x, graph)
    convs = model.convolutions
    torch.testing.assert_close(first, convs[0](x, graph).relu())
    torch.testing.assert_close(second, convs[1](first, graph).relu() + first)
    torch.testing.assert_close(third, convs[2](second, graph).relu() + second)
    torch.testing.assert_close(last, convs[3](third, graph))


@pytest.mark.parametrize("options", [{}, {"norm": "batch"}, {"residual": True}, {"jumping": "cat"}], ids=str)
@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "gat"])
def test_dropout_behind_relu_has_the_gradients_of_any_dropout(rng, monkeypatch, name, options):
    """It works in place and its backward looks at what came out of it; any other draws again."""
    spread = alone(rng, torch.float64)
    chosen = ModelSettings(name=name, hidden=6, layers=3, dropout=0.4, **options)
    model = GNN(chosen, 7, 4, Draws(int(rng.integers(1000))), torch.float64).double()
    x, gradient = (torch.from_numpy(rng.standard_normal((NODES, width))) for width in (7, 4))
    found, forward = results(model, x, gradient, spread.handle(model.kind)), Dropout.forward
    monkeypatch.setattr(Dropout, "forward", lambda self, x, graph, **_: forward(self, x, graph))
    monkeypatch.setattr(GNN, "_drops_after", lambda self, i: False)
    apart = results(model, x, gradient, spread.handle(model.kind))
    assert torch.equal(found["out"], apart["out"])
    near_the_largest(found.values(), apart.values())


@pytest.mark.parametrize(
    ("options", "products"),  # of features, forward and backward; others are of rows
    [
        ({"name": "gcn"}, (1, 1)),
        ({"name": "gcn", "hidden": 14}, (0, 0)),  # sums first
        ({"name": "gin", "norm": "batch"}, (1, 1)),
        ({"name": "gin", "train_eps": True}, (1, 2)),
        ({"name": "gin", "train_eps": True, "hidden": 14}, (0, 0)),
        ({"name": "sage"}, (2, 2)),
        ({"name": "sage", "hidden": 13}, (0, 1)),  # its gradient takes the place of the dropped rows
        ({"name": "sage", "hidden": 14}, (0, 0)),
        ({"name": "sage", "aggr": "max"}, (0, 0)),
        ({"name": "gat"}, (1, 1)),
    ],
    ids=str,
)
def test_dropout_of_features_that_are_multiplied_keeps_no_copy_of_them(rng, monkeypatch, options, products):
    """And gives what dropout of all rows gives, forward and backward."""
    spread = alone(rng, torch.float64)
    chosen = ModelSettings(**{"hidden": 3, "layers": 2, "dropout": 0.4} | options)
    model = GNN(chosen, 13, 4, Draws(int(rng.integers(1000))), torch.float64).double()
    x, gradient = (torch.from_numpy(rng.standard_normal((NODES, width))) for width in (13, 4))
    graph, found, counts = spread.handle(model.kind), [], []
    for name in ("times_transposed", "gradient"):
        method = getattr(HostFeatures, name)
        counts.append(create_autospec(method, side_effect=method))
        monkeypatch.setattr(HostFeatures, name, counts[-1])
    for model.in_blocks in (True, False):
        model.zero_grad()
        out = model(x, graph)
        out.backward(gradient)
        found.append([out.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    assert tuple(each.call_count for each in counts) == products
    near_the_largest(*found)


SETTINGS = [
    {"name": "gcn", "hidden": 5},
    {"name": "gcn", "hidden": 20},
    {"name": "gin", "hidden": 6, "layers": 3},
    {"name": "gin", "hidden": 16, "norm": "batch"},
    {"name": "sage", "hidden": 6},
    {"name": "sage", "hidden": 20, "jumping": "cat"},
    {"name": "sage", "hidden": 6, "aggr": "max"},
    {"name": "gat", "hidden": 4, "heads": 3, "output_heads": 2},
    {"name": "gat", "hidden": 4, "heads": 2, "attention": "dot", "jumping": "max"},
    {"name": "gat", "hidden": 4, "heads": 2, "attention_dropout": 0.4},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(map(str, each.values())))
def test_the_widths_that_models_tell_are_those_that_they_exchange(rng, monkeypatch, settings, dtype):
    chosen = ModelSettings(**settings)
    model = GNN(chosen, 11, 3, Draws(0), dtype)
    model.double() if dtype == torch.float64 else None
    graph, asked = alone(rng, dtype).handle(model.kind), []
    exchange = graph.exchange

    def noted(dim, **rest):
        asked.append(dim)
        return exchange(dim, **rest)

    def offered(x):  # as where peers read rows: one rank's own are summed where they lie
        rows, local = noted(x.shape[1])
        local.copy_(x)
        return rows

    monkeypatch.setattr(graph, "exchange", noted)
    monkeypatch.setattr(graph, "offer", offered)
    out = model(torch.from_numpy(rng.standard_normal((NODES, 11))).to(dtype), graph)
    assert asked == model.exchanged(sparse=False)
    forward = len(asked)
    out.float().sum().backward()
    wanted = [width for width in reversed(model.exchanged_back(sparse=False)) if width]
    if chosen.attention == "dot":  # the second pass is as wide as the forward's
        wanted = list(itertools.chain(*zip(wanted, reversed(model.exchanged(False)), strict=True)))
    assert asked[forward:] == wanted
    model.eval()
    with torch.no_grad():
        model(torch.from_numpy(rng.standard_normal((NODES, 11))).to(dtype), graph)
    assert max(asked) <= model.widest(sparse=False)


@pytest.mark.parametrize("name", PYG)
def test_initial_weights_are_drawn_as_pygs_are(name):
    """The same limits for each parameter, and other values for each of them."""
    width = 40 if name == "gat" else 200
    chosen = ModelSettings(name=name, hidden=width, layers=2, heads=5, jumping="cat")
    ours = GNN(chosen, 300, 200, Draws(3))
    options = {"heads": 5} if name == "gat" else {}
    theirs = PYG[name](300, 200, 2, 200, jk="cat", **options)
    wanted = dict(theirs.named_parameters())
    seen = []
    for parameter, value in ours.named_parameters():
        most = float(wanted[parameter].detach().abs().max())
        assert float(value.detach().abs().max()) == pytest.approx(most, rel=0.15), parameter
        seen += [float(value.detach().reshape(-1)[0])] if most else []
    assert len(set(seen)) == len(seen)
    again = GNN(chosen, 300, 200, Draws(3))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


def test_the_last_layer_of_gat_has_heads_of_its_own():
    model = GNN(ModelSettings(name="gat", hidden=4, heads=3, output_heads=2), 7, 5, Draws(0))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["convs.0.att_src"] == (1, 3, 4) and shapes["convs.0.bias"] == (12,)
    assert shapes["convs.1.att_src"] == (1, 2, 5) and shapes["convs.1.bias"] == (5,)
    assert shapes["convs.1.lin.weight"] == (10, 12)
