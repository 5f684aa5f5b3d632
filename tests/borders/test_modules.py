"""Networks in GINConv, and linear maps in layers, run as torch runs them: hooks, own forwards, parametrizations."""

from __future__ import annotations

import contextlib
import warnings

import jobs
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch_geometric import nn as pyg

import mgg_hpc as mgg

NODES = 80


class Skip(nn.Sequential):
    """A Sequential whose forward is its own."""

    def forward(self, x):
        return x + super().forward(x)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Twice(nn.ReLU):
    def forward(self, x):
        return 2 * super().forward(x)


class OwnMLP(mgg.nn.MLP):
    """An MLP whose forward, which takes the graph, is its own."""

    def forward(self, x, graph):
        return 3 * super().forward(x, graph)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


def halved(module, given, out):
    return out / 2


def shifted(module, given):
    return (given[0] + 1,)


def with_hook(module, *, pre=False):
    module.register_forward_pre_hook(shifted) if pre else module.register_forward_hook(halved)
    return module


def legacy(module, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are deprecated, and used
        return how(module)


def randomly(rng, width):
    """A random network [.., width] -> [.., width] of torch's own modules."""

    def linear(a, b):
        made = nn.Linear(a, b, bias=bool(rng.integers(2)))
        return rng.choice(WRAPPED)(made)

    parts, now = [], width
    for _ in range(rng.integers(1, 4)):
        wide = int(rng.integers(2, 9))
        parts.append(linear(now, wide))
        parts += [rng.choice(BETWEEN)(wide)] if rng.integers(2) else []
        parts += [rng.choice(ACTIVATIONS)()] if rng.integers(2) else []
        now = wide
    parts.append(linear(now, width))
    made = rng.choice([nn.Sequential, Skip])(*parts)
    return with_hook(made) if rng.integers(4) == 0 else made


# What is done to a Linear.
WRAPPED = [
    lambda m: m,
    lambda m: m,
    with_hook,
    lambda m: with_hook(m, pre=True),
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    lambda m: legacy(m, nn.utils.weight_norm),
    lambda m: legacy(m, nn.utils.spectral_norm),
    lambda m: prune.l1_unstructured(m, "weight", 0.5),
    lambda m: (parametrize.register_parametrization(m, "weight", Doubled()), m)[1],
    nn.Sequential,
    lambda m: nn.Sequential(nn.Identity(), m),
]
BETWEEN = [nn.BatchNorm1d, nn.LayerNorm, lambda w: nn.Identity(), lambda w: with_hook(nn.BatchNorm1d(w))]
ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.ELU, Twice, lambda: nn.ReLU(inplace=True), lambda: with_hook(nn.ReLU())]


@pytest.fixture(scope="module")
def graph():
    made = jobs.blocks(NODES)
    ends = torch.tensor(
        np.stack([made.indices, np.repeat(np.arange(NODES), np.diff(made.indptr))]), dtype=torch.int64
    )
    with mgg.from_scipy(
        csr_matrix((np.ones(made.edges), made.indices, made.indptr), (NODES, NODES))
    ) as found:
        yield found, ends


def twice(make, seed):
    """Return what ``make(library)`` makes with this package's layers and with PyG's, with the same weights."""
    made = []
    for lib in (mgg.nn, pyg):
        torch.manual_seed(seed)
        made.append(make(lib))
    made[1].load_state_dict(made[0].state_dict())
    return made


def compare(mine, theirs, graph, rng, width):
    """Compare outputs and gradients of a layer with PyG's, whose parameters are copies, in training and evaluation."""
    graph, ends = graph
    for training in (True, False):
        mine.train(training), theirs.train(training)
        x = torch.tensor(rng.standard_normal((NODES, width)), dtype=torch.float32)
        upstream = torch.tensor(rng.standard_normal((NODES, 1)), dtype=torch.float32)
        given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, right = mine(given, graph), theirs(expected, ends)
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)
        mine.zero_grad(), theirs.zero_grad()
        (out * upstream).sum().backward(), (right * upstream).sum().backward()
        torch.testing.assert_close(given.grad, expected.grad, rtol=1e-3, atol=1e-3)
        compare_gradients(mine, theirs)


def compare_gradients(mine, theirs):
    for (name, a), (_, b) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(
            a.grad, b.grad, rtol=1e-3, atol=1e-2, msg=lambda m, name=name: f"{name}: {m}"
        )


def compare_made(make, graph, rng):
    """Compare the layer that ``make(library)`` makes with PyG's."""
    compare(*twice(make, int(rng.integers(2**31))), graph, rng, 5)


def with_maps(layer, change):
    """Return a function that makes a layer of LAYERS whose linear maps are changed."""
    make, names = LAYERS[layer]

    def changed(lib):
        made = make(lib)
        for name in names:
            setattr(made, name, change(getattr(made, name)))
        return made

    return changed


@pytest.mark.parametrize("number", range(50))
def test_random_networks_in_gin_are_pygs(number, graph, rng):
    seed = int(rng.integers(2**31))
    compare(*twice(lambda lib: lib.GINConv(randomly(np.random.default_rng(seed), 5)), seed), graph, rng, 5)


def patched(module):
    module.forward = lambda x, call=module.forward: 3 * call(x)
    return module


def of_kwargs(module):
    module.register_forward_hook(lambda module, given, options, out: out + 1, with_kwargs=True)
    return module


def of_gradients(module):
    module.register_full_backward_hook(lambda module, given, gradient: tuple(2 * each for each in given))
    return module


def before_gradients(module):
    module.register_full_backward_pre_hook(lambda module, gradient: tuple(2 * each for each in gradient))
    return module


NETWORKS = {
    "a Sequential with its own forward": lambda: Skip(nn.Linear(5, 5)),
    "inside another": lambda: nn.Sequential(Skip(nn.Linear(5, 5)), nn.ReLU()),
    "a subclass of ReLU": lambda: nn.Sequential(nn.Linear(5, 5), Twice()),
    "a subclass of Linear": lambda: nn.Sequential(Scaled(5, 5), nn.ReLU()),
    "a hook on a Linear": lambda: nn.Sequential(with_hook(nn.Linear(5, 5)), nn.ReLU()),
    "a hook on a ReLU": lambda: nn.Sequential(nn.Linear(5, 5), with_hook(nn.ReLU())),
    "a hook on the Sequential": lambda: with_hook(nn.Sequential(nn.Linear(5, 5))),
    "a hook before a batch norm": lambda: nn.Sequential(
        nn.Linear(5, 5), with_hook(nn.BatchNorm1d(5), pre=True)
    ),
    "forward of the instance": lambda: nn.Sequential(patched(nn.Linear(5, 5)), nn.ReLU()),
    "forward of a ReLU": lambda: nn.Sequential(nn.Linear(5, 5), patched(nn.ReLU())),
    "forward of a batch norm": lambda: nn.Sequential(nn.Linear(5, 5), patched(nn.BatchNorm1d(5))),
    "hook with kwargs": lambda: nn.Sequential(of_kwargs(nn.Linear(5, 5)), nn.ReLU()),
    "backward hook": lambda: nn.Sequential(of_gradients(nn.Linear(5, 5)), nn.Tanh()),
    "backward pre-hook": lambda: nn.Sequential(nn.Tanh(), before_gradients(nn.Linear(5, 5))),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 5)),
    "PyG's own": lambda: pyg.MLP([5, 7, 5], act="relu", norm="layer_norm"),
    "scripted": lambda: legacy(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), torch.jit.script),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_look_plain_and_are_not_are_called(name, graph, rng):
    def made(lib):
        layer = lib.GINConv(NETWORKS[name]())
        if name == "lazy":
            layer.nn(torch.ones(2, 5))
        return layer

    compare_made(made, graph, rng)


# Layers of both libraries; the linear maps in them.
LAYERS = {
    "gcn": (lambda lib: lib.GCNConv(5, 4), ("lin",)),
    "sage": (lambda lib: lib.SAGEConv(5, 4), ("lin_l", "lin_r")),
    "sage max": (lambda lib: lib.SAGEConv(5, 4, aggr="max"), ("lin_l", "lin_r")),
    "gat": (lambda lib: lib.GATConv(5, 4, heads=2), ("lin",)),
}
CHANGES = {
    "hook": with_hook,
    "pre hook": lambda m: with_hook(m, pre=True),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "legacy weight_norm": lambda m: legacy(m, nn.utils.weight_norm),
    "legacy spectral_norm": lambda m: legacy(m, nn.utils.spectral_norm),
    "prune": lambda m: prune.random_unstructured(m, "weight", 0.3),
    "parametrization": lambda m: (parametrize.register_parametrization(m, "weight", Doubled()), m)[1],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", LAYERS)
def test_linear_maps_of_layers_are_called_where_they_are_not_plain(layer, change, graph, rng):
    compare_made(with_maps(layer, CHANGES[change]), graph, rng)


def test_an_mlp_whose_forward_is_its_own_is_called(graph, rng):
    graph, _ = graph
    layer = mgg.nn.GINConv(OwnMLP([5, 6, 5]))
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    plain = mgg.nn.GINConv(mgg.nn.MLP([5, 6, 5]))
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x, graph), 3 * plain(x, graph))


# What is put in the place of a layer's linear map, from its width to another: not a Linear, or one with a bias.
IN_PLACE_OF = {
    "with a bias": nn.Linear,
    "a Sequential": lambda a, b: nn.Sequential(nn.Linear(a, 3), nn.Tanh(), nn.Linear(3, b)),
    "a subclass": Scaled,
    "a hooked Sequential": lambda a, b: with_hook(nn.Sequential(nn.Linear(a, b))),
}


@pytest.mark.parametrize("put", IN_PLACE_OF)
@pytest.mark.parametrize("layer", LAYERS)
def test_other_modules_in_the_place_of_linear_maps(layer, put, graph, rng):
    def change(old):  # of PyG or of torch
        return IN_PLACE_OF[put](getattr(old, "in_channels", None) or old.in_features, old.weight.shape[0])

    compare_made(with_maps(layer, change), graph, rng)


@pytest.mark.parametrize("layer", LAYERS)
def test_hooks_of_all_modules_run(layer, graph, rng):
    seen = []
    mine, theirs = twice(LAYERS[layer][0], int(rng.integers(2**31)))
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: (
            (seen.append(module), out * 2)[1] if isinstance(module, nn.Linear) else None
        )
    )
    with hook:
        x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
        out = mine(x, graph[0])
    assert len(seen) == len(LAYERS[layer][1])
    for name in LAYERS[layer][1]:  # PyG's Linear is another class
        getattr(theirs, name).register_forward_hook(lambda module, given, out: out * 2)
    torch.testing.assert_close(out, theirs(x, graph[1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fill", ["mean", "max", 0.5])
def test_linear_maps_of_edge_data_in_gat(change, fill, graph, rng):
    graph, ends = graph
    data = torch.tensor(rng.standard_normal((ends.shape[1], 3)), dtype=torch.float32)

    def made(lib):
        layer = lib.GATConv(5, 4, heads=2, edge_dim=3, fill_value=fill, residual=True)
        for name in ("lin_edge", "res"):
            setattr(layer, name, CHANGES[change](getattr(layer, name)))
        return layer

    mine, theirs = twice(made, int(rng.integers(2**31)))
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    given, expected = data.clone().requires_grad_(), data.clone().requires_grad_()
    out, right = mine(x, graph, edge_attr=given), theirs(x, ends, expected)
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)
    out.square().sum().backward(), right.square().sum().backward()
    torch.testing.assert_close(given.grad, expected.grad, rtol=1e-3, atol=1e-3)
    compare_gradients(mine, theirs)


def test_modules_that_take_the_graph_run_inside_containers_that_are_called(graph, rng):
    graph, _ = graph
    inside = lambda: [nn.Linear(5, 6), mgg.nn.BatchNorm(6), nn.ReLU(), mgg.nn.MLP([6, 4, 5])]  # noqa: E731
    layer, plain = mgg.nn.GINConv(Skip(*inside())), mgg.nn.GINConv(nn.Sequential(*inside()))
    plain.load_state_dict(layer.state_dict())
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    sums = mgg.nn.GINConv(nn.Identity())(x, graph)
    torch.testing.assert_close(layer(x, graph), sums + plain(x, graph), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_hooks_run_on_sampled_blocks(layer, graph, rng):
    graph, ends = graph
    mine, theirs = twice(with_maps(layer, with_hook), int(rng.integers(2**31)))
    graph.x = x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    [batch] = mgg.NeighborLoader(
        graph, [-1], batch_size=NODES, input_nodes=torch.arange(NODES), shuffle=False
    )
    torch.testing.assert_close(
        mine(batch.x, batch.blocks[0]), theirs(x, ends)[batch.ids], rtol=1e-4, atol=1e-4
    )


class Gate(mgg.nn.saga.Layer):
    """A program whose edges pass through a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def apply_edge(self, edge):
        return self.module(edge.src + edge.dst)

    def apply_vertex(self, vertex, accum):
        return accum


@pytest.mark.parametrize("make", [nn.Tanh, lambda: nn.Linear(5, 5), nn.ReLU, nn.Sigmoid])
def test_hooks_in_programs_run(make, graph, rng):
    module = make()
    graph, _ = graph
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    plain = Gate(module)(x, graph)
    torch.testing.assert_close(Gate(with_hook(module))(x, graph), plain / 2)


class Mode(TorchFunctionMode):
    """Doubles the outputs of linear maps."""

    def __torch_function__(self, function, types, given=(), options=None):
        out = function(*given, **(options or {}))
        return 2 * out if function is nn.functional.linear else out


class Halved(torch.Tensor):
    """A weight that computes in its own way, as quantised weights of torchao do."""

    @classmethod
    def __torch_function__(cls, function, types, given=(), options=None):
        out = super().__torch_function__(function, types, given, options)
        return (out / 2).as_subclass(torch.Tensor) if function is nn.functional.linear else out


def doubling(function):
    return lambda *given, **options: 2 * function(*given, **options)


def replaced(owner, name):
    return lambda patch: patch.setattr(owner, name, doubling(getattr(owner, name)))


# What is put in the place of functions of torch while a network runs.
REPLACED = {
    "forward of Linear": replaced(nn.Linear, "forward"),
    "call of Linear": lambda patch: patch.setattr(
        nn.Linear, "__call__", doubling(nn.Linear.__call__), raising=False
    ),
    "call of Module": replaced(nn.Module, "__call__"),
    "forward of ReLU": replaced(nn.ReLU, "forward"),
    "forward of BatchNorm1d": replaced(nn.BatchNorm1d, "forward"),
    "forward of Sequential": replaced(nn.Sequential, "forward"),
    "linear": replaced(nn.functional, "linear"),
    "relu": replaced(nn.functional, "relu"),
    "batch_norm": replaced(nn.functional, "batch_norm"),
}


@pytest.mark.parametrize("name", [*REPLACED, "a mode", "a subclass of Tensor", "nothing"])
def test_functions_of_torch_that_are_replaced_are_called(name, graph, rng, monkeypatch):
    graph, _ = graph
    network = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU())
    if name == "a subclass of Tensor":
        network[0].weight = nn.Parameter(network[0].weight.detach().as_subclass(Halved))
    x = torch.tensor(rng.standard_normal((NODES, 5)), dtype=torch.float32)
    sums = mgg.nn.GINConv(nn.Identity())(x, graph)
    layer = mgg.nn.GINConv(network)
    with Mode() if name == "a mode" else contextlib.nullcontext(), monkeypatch.context() as patch:
        REPLACED.get(name, lambda patch: None)(patch)
        expected = network(sums)
        if name == "call of Module":  # which is the layer's own too
            expected = 2 * expected
        torch.testing.assert_close(layer(x, graph), expected, rtol=1e-4, atol=1e-4)


CHANGES_OF_A_NORM = {
    "nothing": lambda norm: None,
    "no tracking": lambda norm: setattr(norm, "track_running_stats", False),
    "no count": lambda norm: setattr(norm, "num_batches_tracked", None),
    "no count nor momentum": lambda norm: [
        setattr(norm, name, None) for name in ("num_batches_tracked", "momentum")
    ],
    "no momentum": lambda norm: setattr(norm, "momentum", None),
    "no statistics": lambda norm: [setattr(norm, name, None) for name in ("running_mean", "running_var")],
}


@pytest.mark.parametrize("change", CHANGES_OF_A_NORM)
def test_batch_norms_keep_torchs_statistics(change, graph, rng):
    def made(lib):
        layer = lib.GINConv(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5)))
        CHANGES_OF_A_NORM[change](layer.nn[0])
        return layer

    mine, theirs = twice(made, int(rng.integers(2**31)))
    for _ in range(2):
        compare(mine, theirs, graph, rng, 5)
    for name, buffer in theirs.nn.named_buffers():
        torch.testing.assert_close(mine.nn.get_buffer(name), buffer)
