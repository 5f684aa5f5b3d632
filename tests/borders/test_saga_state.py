"""SAGA programs that read Python state which changes between calls give, each time, what plain torch gives."""

from __future__ import annotations

import copy
import pickle
import random
from contextlib import nullcontext

import jobs
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.errors import InputError
from mgg_hpc.nn import saga

CALLS = 5
SHIFT = 0.25


def halved(values: Tensor) -> Tensor:
    return values * SHIFT


class Config:
    """State that lies outside of the layer."""

    def __init__(self) -> None:
        self.scale, self.steps, self.name = 1.0, [1.0, 2.0], "soft"


class Inner(torch.nn.Module):
    """A module within a layer, with state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.power, self.gain = 1, torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, values: Tensor) -> Tensor:
        return self.gain * values**self.power


class Program(saga.Layer):
    """A layer whose message and change before each call are a case's. message(self, src, dst), change(self, call)."""

    def __init__(self, message, change) -> None:
        super().__init__()
        self.message, self.change = message, change
        self.t, self.config, self.table, self.items = 1.0, Config(), {"a": 1.0}, [0.5, 1.5]
        self.inner, self.lin = Inner(), torch.nn.Linear(6, 6)
        self.flag, self.mode, self.kernel = False, "tanh", torch.tanh
        self.register_buffer("decay", torch.tensor(0.9))
        self.plain = torch.full((6,), 0.3)
        self.level = np.float32(0.5)

    def apply_edge(self, edge):
        return self.message(self, edge.src, edge.dst)

    def apply_vertex(self, vertex, accum):
        return accum


def module_shift(layer, call):
    global SHIFT  # noqa: PLW0603 - what programs read
    SHIFT = 0.25 + call


def kernel_of(layer, call):
    layer.kernel = (torch.tanh, torch.sigmoid)[call % 2]


def replaced(layer, call):
    layer.lin = torch.nn.Linear(6, 6)


# The message, and what changes before each call.
CASES = {
    "attribute": (lambda s, a, b: torch.exp(s.t * a) + b, lambda s, i: setattr(s, "t", 1 / (1 + i))),
    "branch": (lambda s, a, b: a * b if s.flag else a + b, lambda s, i: setattr(s, "flag", i % 2 == 1)),
    "word": (
        lambda s, a, b: getattr(torch, s.mode)(a) + b,
        lambda s, i: setattr(s, "mode", ("tanh", "sin")[i % 2]),
    ),
    "object's list": (
        lambda s, a, b: sum(step * torch.tanh(a - b) for step in s.config.steps),
        lambda s, i: s.config.steps.append(float(i)),
    ),
    "dict": (lambda s, a, b: s.table["a"] * torch.tanh(a * b), lambda s, i: s.table.update(a=float(i))),
    "module's attribute": (lambda s, a, b: s.inner(a * b), lambda s, i: setattr(s.inner, "power", 1 + i % 3)),
    "module replaced": (lambda s, a, b: torch.tanh(s.lin(a) + b), replaced),
    "parameter replaced": (
        lambda s, a, b: s.inner(a * b),
        lambda s, i: setattr(s.inner, "gain", torch.nn.Parameter(torch.tensor(float(i)))),
    ),
    "buffer in place": (lambda s, a, b: s.decay * torch.tanh(a * b), lambda s, i: s.decay.mul_(0.5)),
    "tensor replaced": (
        lambda s, a, b: s.plain * torch.tanh(a * b),
        lambda s, i: setattr(s, "plain", torch.full((6,), float(i))),
    ),
    "global": (lambda s, a, b: halved(torch.tanh(a * b)), module_shift),
    "function": (lambda s, a, b: s.kernel(a) * b, kernel_of),
    "numpy number": (
        lambda s, a, b: torch.tanh(a * b) * float(s.level),
        lambda s, i: setattr(s, "level", np.float32(i)),
    ),
    "item": (lambda s, a, b: torch.tanh(a * b) * s.decay.item(), lambda s, i: s.decay.fill_(0.1 * i)),
    "attribute removed": (
        lambda s, a, b: torch.tanh(a * b) * (2.0 if hasattr(s, "once") else 1.0),
        lambda s, i: setattr(s, "once", 1) if i % 2 else s.__dict__.pop("once", None),
    ),
    "set": (
        lambda s, a, b: torch.tanh(a * b) * (2.0 if "x" in s.table else 1.0),
        lambda s, i: s.table.pop("x") if s.table.get("x") else s.table.update(x=1),
    ),
    "nothing": (lambda s, a, b: torch.tanh(s.lin(a)) * b, lambda s, i: None),
    "linear sum": (lambda s, a, b: s.t * a, lambda s, i: setattr(s, "t", float(i))),
}


@pytest.fixture
def graph():
    made = jobs.directed_weighted(60)
    ends = torch.tensor(np.stack([made.indices, np.repeat(np.arange(60), np.diff(made.indptr))]))
    with mgg.from_scipy(
        csr_matrix((np.ones(made.edges), made.indices, made.indptr), (60, 60)), transpose=True
    ) as found:
        yield found, ends


def plain(layer, x, ends):
    """The sum of the messages, by torch."""
    messages = layer.message(layer, x[ends[0]], x[ends[1]])
    return x.new_zeros(60, messages.shape[1]).index_add(0, ends[1], messages)


@pytest.mark.parametrize("name", CASES)
def test_state_that_changes_between_calls_is_read_in_each_call(name, graph, rng):
    graph, ends = graph
    layer = Program(*CASES[name])
    for call in range(CALLS):
        layer.change(layer, call)
        x = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32, requires_grad=True)
        found, expected = layer(x, graph), plain(layer, x, ends)
        torch.testing.assert_close(
            found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, call=call: f"call {call}: {m}"
        )
        upstream = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32)
        for mine, theirs in zip(
            torch.autograd.grad(found, x, upstream), torch.autograd.grad(expected, x, upstream), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def forked(layer, a, b):
    with torch.random.fork_rng():
        return a * torch.rand(6)


RANDOM = {
    "randn": lambda s, a, b: a * torch.randn(a.shape[0], 1),
    "dropout": lambda s, a, b: torch.nn.functional.dropout(a, 0.5),
    "bernoulli": lambda s, a, b: torch.bernoulli(torch.sigmoid(a)),
    "normal_": lambda s, a, b: torch.empty(6).normal_() * a,
    "random": lambda s, a, b: a * random.random(),
    "numpy": lambda s, a, b: a * float(np.random.rand()),  # noqa: NPY002
    "generator": lambda s, a, b: a * torch.rand(6, generator=s.draws[0]),
    "numpy's generator": lambda s, a, b: a * float(s.draws[1].random()),
    "numpy's old generator": lambda s, a, b: a * float(s.draws[2].rand()),
    "python's generator": lambda s, a, b: a * s.draws[3].random(),
    "forked": forked,
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_inside_a_program_is_refused_by_name(name, graph):
    graph, _ = graph
    layer = Program(RANDOM[name], None)
    layer.draws = [torch.Generator(), np.random.default_rng(0), np.random.RandomState(0), random.Random(0)]
    with pytest.raises(ValueError, match=r"random|dropout"):
        layer(torch.ones(60, 6), graph)


def counted(layer, a, b):
    layer.t += 1.0
    return layer.t * torch.tanh(a * b)


def averaged(layer, a, b):
    layer.decay = layer.decay * 0.9
    return layer.decay * torch.tanh(a * b)


def kept(layer, a, b):
    layer.last = torch.tanh(a)
    return layer.last * b


def without_gradient(layer, a, b):
    with torch.no_grad():
        gate = torch.sigmoid(a)
    return gate * b


def in_place(layer, a, b):
    h = layer.lin(a)
    h.add_(b)
    return torch.tanh(h)


def aliased(layer, a, b):
    h = layer.lin(a)
    k = h
    h += b
    return k * h


def of_an_end(layer, a, b):
    h = a
    h += b
    return torch.tanh(h) * a


def part_in_place(layer, a, b):
    h = layer.lin(a)
    part = h[:, :3]
    part += 1
    return h * b


def first_column(layer, a, b):
    h = layer.lin(a) + b
    h[:, 0] = 0
    return h


def untraceable(change):
    """Return a message that changes the layer and then reads a value of edges."""

    def message(layer, a, b):
        change(layer)
        size = 1.0 if float(a.detach().abs().sum()) < 1e9 else 0.0
        gain = float(layer.decay) + layer.t + len(layer.items) + sum(layer.table.values())
        return torch.tanh(a * b) * (gain * size) + layer.lin(b)

    return message


def kept_in_a_dict(layer, a, b):
    before = layer.store.get("gate", 0.0)
    layer.store["gate"] = torch.sigmoid(a)
    return layer.store["gate"] * b + (0 if isinstance(before, float) else before.detach().mean())


def caught(layer, a, b):
    try:
        return torch.tanh(a) * float(b.detach().abs().sum())
    except Exception:
        return a


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


reverse = Reversed.apply


def hooked(method):
    """Return a message through a module whose gradients a hook doubles."""

    def message(layer, a, b):
        module = torch.nn.Tanh()
        twice = lambda m, *grads: tuple(2 * g for g in grads[0])  # noqa: E731
        getattr(module, method)(twice)
        return module(a * b) + a

    return message


def recursive(layer, a, b):
    """A cycle of references, which holds values of edges until it is collected."""

    def power(n):
        return a if n == 0 else torch.tanh(power(n - 1)) * b

    return power(3)


# Messages that change state themselves, and others that a record of operations could miss.
OWN = {
    "counter": counted,
    "buffer": averaged,
    "values that are kept": kept,
    "no gradient": without_gradient,
    "in place": in_place,
    "softplus": lambda s, a, b: torch.nn.Softplus(beta=2.0)(a) * b,
    "number of a parameter": lambda s, a, b: torch.tanh(a * b) * s.inner.gain.item(),
    "branch on a parameter": lambda s, a, b: a * b if s.inner.gain > 0 else a + b,
    "computed of a parameter": lambda s, a, b: torch.tanh(a * b) * s.inner.gain.exp(),
    "dropout in evaluation": lambda s, a, b: torch.nn.functional.dropout(a * b, 0.5, training=False),
    "spectral norm": lambda s, a, b: torch.tanh(s.normed(a)) * b,
    "alias": aliased,
    "alias of an end": of_an_end,
    "part in place": part_in_place,
    "item in place": first_column,
    "untraceable, list": untraceable(lambda s: s.items.append(1.0)),
    "untraceable, dict": untraceable(lambda s: s.table.update(a=s.table["a"] + 1)),
    "untraceable, buffer": untraceable(lambda s: s.decay.mul_(0.9)),
    "untraceable, data": untraceable(lambda s: s.lin.weight.data.mul_(0.9)),
    "kept in a dict": kept_in_a_dict,
    "gradient reversed": lambda s, a, b: reverse(a * b) + a,
    "backward hook": hooked("register_full_backward_hook"),
    "backward pre-hook": hooked("register_full_backward_pre_hook"),
    "permuted columns": lambda s, a, b: torch.tanh(a * b)[:, [5, 4, 3, 2, 1, 0]],
    "permuted sources": lambda s, a, b: a[:, [1, 0, 3, 2, 5, 4]] * b,
    "tensor of columns": lambda s, a, b: torch.tanh(a * b)[:, torch.tensor([5, 4, 3, 2, 1, 0])],
    "flipped": lambda s, a, b: torch.tanh(a * b).flip(1),
    "sliced whole": lambda s, a, b: torch.tanh(a * b)[:, 0:6] + a[..., :],
    "mask of columns": lambda s, a, b: torch.tanh(a * b)[:, [True] * 6],
    "viewed as integers": lambda s, a, b: (a * b).view(torch.int32).float() * 1e-9 + a,
    "dropout of all": lambda s, a, b: torch.nn.functional.dropout(a * b, p=1.0, training=True) + a,
    "module that drops all": lambda s, a, b: torch.nn.Dropout(1.0)(torch.tanh(a)) + b,
    "is_tensor": lambda s, a, b: a * b if torch.is_tensor(a) else a,
    "has an attribute": lambda s, a, b: a if hasattr(a, "foo") else a * b,
    "norm's p": lambda s, a, b: a / a.norm(1) + b,
    "norm of rows": lambda s, a, b: a / (1 + a.norm(1, 1, True)) * b,
    "softmax over edges": lambda s, a, b: a.sum(1).softmax(-1)[:, None] * b,
    "mean over edges": lambda s, a, b: a.sum(1).mean(-1) * b,
    "mean of rows over edges": lambda s, a, b: a * b - b.mean(0),
    "reshaped by size": lambda s, a, b: torch.tanh(s.lin(a)).reshape(a.size(0), -1) * b,
    "heads": lambda s, a, b: torch.tanh(a * b).view(-1, 2, 3).flip(1).reshape(-1, 6),
    "chunks": lambda s, a, b: torch.cat([*torch.tanh(a * b).chunk(2, 1)][::-1], 1),
    "failure caught": caught,
    "function that calls itself": recursive,
    "end to end": lambda s, a, b: torch.cat([a, b], 0)[: a.shape[0]] * b,
}


# Functions at values where they have no derivative, or that are infinite, of equal rows at both ends.
EDGES_OF_FUNCTIONS = {
    "softplus": torch.nn.functional.softplus,
    "elu": torch.nn.functional.elu,
    "elu, alpha": lambda h: torch.nn.functional.elu(h, alpha=0.5),
    "relu": torch.relu,
    "leaky relu": lambda h: torch.nn.functional.leaky_relu(h, 0.1),
    "clamp below": lambda h: h.clamp(min=0),
    "clamp": lambda h: torch.clamp(h, 0, 1),
    "clamp above": lambda h: h.clamp(max=0.0),
    "maximum": lambda h: torch.maximum(h, 0 * h),
    "abs": torch.abs,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
}


@pytest.mark.parametrize("name", EDGES_OF_FUNCTIONS)
def test_functions_where_they_bend_are_torchs(name, graph, rng):
    graph, ends = graph
    function = EDGES_OF_FUNCTIONS[name]
    layer = Program(lambda s, a, b: function(a - b) * s.plain, None)
    layer.plain = torch.nn.Parameter(torch.rand(6))
    x = torch.tensor(rng.integers(-1, 2, (60, 6)), dtype=torch.float32, requires_grad=True)
    upstream = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32)
    found, expected = layer(x, graph), plain(layer, x, ends)
    assert "one pass" in layer.explain()
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(out, (x, layer.plain), upstream) for out in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*EDGES_OF_FUNCTIONS, "zero times"])
def test_functions_of_infinite_values_are_torchs(name, graph, rng):
    graph, ends = graph
    function = {**EDGES_OF_FUNCTIONS, "zero times": lambda h: 0.0 * h}[name]
    layer = Program(lambda s, a, b: function(torch.log(torch.relu(a - b))), None)
    x = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32)
    torch.testing.assert_close(layer(x, graph), plain(layer, x, ends), equal_nan=True)


@pytest.mark.parametrize("name", OWN)
def test_messages_run_once_in_each_call(name, graph, rng):
    graph, ends = graph
    layer = Program(OWN[name], None)
    layer.normed, layer.store = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 6)), {}
    other = copy.deepcopy(layer)
    for call in range(CALLS):
        x = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32, requires_grad=True)
        found, expected = layer(x, graph), plain(other, x, ends)
        torch.testing.assert_close(
            found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, call=call: f"call {call}: {m}"
        )
        assert layer.t == other.t
        grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def after(change):
    """Return a message that reads a tensor and then changes it."""

    def message(layer, a, b):
        made = layer.plain * torch.tanh(a * b)
        change(layer)
        return made

    return message


def through_numpy(layer):
    layer.plain.numpy()[:] *= 0.5


CHANGED = {
    "in place": lambda s: s.plain.mul_(0.5),
    "data": lambda s: s.plain.data.mul_(0.5),
    "array": through_numpy,
    "data replaced": lambda s: setattr(s.plain, "data", torch.zeros(6)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_tensors_that_change_after_they_were_read_are_refused(name, graph):
    with pytest.raises(ValueError, match="changes a tensor in place"):
        Program(after(CHANGED[name]), None)(torch.ones(60, 6), graph[0])


def test_values_kept_outside_of_a_layer_are_refused(graph):
    kept_values = []
    layer = Program(lambda s, a, b: (kept_values.append(a), torch.tanh(a) * b)[1], None)
    with pytest.raises(ValueError, match="keeps values of edges outside of the layer"):
        layer(torch.ones(60, 6), graph[0])


NO_ROWS = {
    "tuple": (lambda s, a, b: (a, b), "returns a tuple"),
    "none": (lambda s, a, b: None, "returns None"),
    "parameter": (lambda s, a, b: s.lin.weight, r"returns \[6, 6\]"),
    "column": (lambda s, a, b: (a * b).sum(1), r"returns \[E\]"),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_messages_that_are_no_rows_are_refused(name, graph):
    message, said = NO_ROWS[name]
    with pytest.raises(ValueError, match=f"{said}; expected a row for each edge"):
        Program(message, None)(torch.ones(60, 6), graph[0])


# Messages that torch refuses.
INVALID = {
    "rows of an example": lambda s, a, b: (a * b)[[6, 5, 4, 3, 2, 1, 0]],
    "no column": lambda s, a, b: a * b.mean(1),
    "norm of edges": lambda s, a, b: a / b.norm(1, 0)[:, None],
}


@pytest.mark.parametrize("width", [6, 7])
@pytest.mark.parametrize("name", INVALID)
def test_messages_that_torch_refuses_are_refused(name, width, graph):
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        Program(INVALID[name], None)(torch.ones(60, width), graph[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_layers_are_copied_after_calls(copied, graph):
    x, layer = torch.randn(60, 6), Own()
    out = layer(x, graph[0])
    torch.testing.assert_close(copied(layer)(x, graph[0]), out)


class Own(mgg.nn.saga.Layer):
    """A program that pickle can find."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(6, 6)

    def apply_edge(self, edge):
        return torch.tanh(self.lin(edge.src)) * edge.dst

    def apply_vertex(self, vertex, accum):
        return accum


@pytest.mark.parametrize("view", [lambda a: a[:, :3], lambda a: a.view(-1, 6), lambda a: a.squeeze()])
def test_a_view_of_maxima_may_change_in_place(view, graph):
    layer, x = Own(), torch.randn(60, 6, requires_grad=True)
    layer.accumulator, layer.apply_vertex = "max", lambda vertex, accum: view(accum)
    torch.nn.functional.relu(layer(x, graph[0]), inplace=True).sum().backward()


# Rules that need data of edges: (message, whether each edge has a row in memory).
DATA = {
    "in": lambda e: e.src * (2.0 if "attr" in e.data else 1.0),
    "absent": lambda e: e.src * (2.0 if "no" in e.data else 1.0),
    "get": lambda e: e.src * e.data.get("attr", torch.zeros(1, 3))[:, :1],
    "default": lambda e: e.src * e.data.get("no", 3.0),
    "names": lambda e: torch.tanh(e.src) * len(list(e.data.keys())),
    "items": lambda e: (
        torch.tanh(e.src) + sum(v.sum(-1, keepdim=v.dim() > 1).view(-1, 1) for v in e.data.values())
    ),
    "column": lambda e: e.src * e.data["attr"][:, 1:2],
    "permuted": lambda e: e.src[:, :3] * e.data["attr"][:, [2, 0, 1]],
    "in place": lambda e: e.data["attr"].mul_(2.0) * e.src[:, :3],
    "attribute": lambda e: e.src * (2.0 if hasattr(e, "foo") else 1.0),
    "weight": lambda e: e.src * e.data["w"][:, None],
}


def opened(ends, **data):
    """Open a graph of 60 nodes with data of edges."""
    held = {f"edge_{name}": torch.tensor(values) for name, values in data.items()}
    return mgg.from_pyg(Data(edge_index=ends, num_nodes=60, **held))


class OfEdge(Program):
    def apply_edge(self, edge):
        return self.message(edge)


@pytest.mark.parametrize("name", DATA)
def test_data_of_edges_are_as_torch_sees_them(name, rng):
    made = jobs.directed_weighted(60)
    target = np.repeat(np.arange(60), np.diff(made.indptr))
    attr, w = (rng.standard_normal((made.edges, *shape)).astype(np.float32) for shape in ((3,), ()))
    ends = torch.tensor(np.stack([made.indices, target]))
    x = torch.tensor(rng.standard_normal((60, 6)), dtype=torch.float32)
    with opened(ends, attr=attr, w=w) as graph:
        layer = OfEdge(DATA[name], None)
        for _ in range(2):
            data = {"attr": torch.tensor(attr), "w": torch.tensor(w)}
            edge = mgg.nn.saga.Edge(x[ends[0]], x[ends[1]], data, torch.ones(made.edges, 1))
            messages = DATA[name](edge)
            expected = x.new_zeros(60, messages.shape[1]).index_add(0, ends[1], messages)
            torch.testing.assert_close(layer(x, graph), expected, rtol=1e-5, atol=1e-5)


def test_types_are_compared_with_each_number_of_matrices(rng):
    made = jobs.directed_weighted(60)
    ends = np.stack([made.indices, np.repeat(np.arange(60), np.diff(made.indptr))])
    types = rng.integers(0, 3, made.edges)
    types[0] = 2
    with opened(torch.tensor(ends), t=types) as graph:
        layer = OfEdge(lambda e: saga.typed_linear(e.src, layer.w, e.data["t"]), None)
        for matrices in (3, 2):
            layer.w = torch.nn.Parameter(torch.randn(matrices, 6, 6))
            with pytest.raises(InputError, match="is no type") if matrices < 3 else nullcontext():
                layer(torch.ones(60, 6), graph)
