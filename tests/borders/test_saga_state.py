"""SAGA programs that read Python state which changes between calls give, each time, what plain torch gives."""

from __future__ import annotations

import copy
import math
import random

import jobs
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import mgg_hpc as mgg
from mgg_hpc.nn import saga

CALLS = 5
SETTINGS = {"rate": 0.5}
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
    "annealed": (lambda s, a, b: torch.sigmoid(a / s.t) * b, lambda s, i: setattr(s, "t", s.t * 0.7)),
    "branch": (lambda s, a, b: a * b if s.flag else a + b, lambda s, i: setattr(s, "flag", i % 2 == 1)),
    "word": (
        lambda s, a, b: getattr(torch, s.mode)(a) + b,
        lambda s, i: setattr(s, "mode", ("tanh", "sin")[i % 2]),
    ),
    "object": (
        lambda s, a, b: s.config.scale * torch.tanh(a * b),
        lambda s, i: setattr(s.config, "scale", float(i)),
    ),
    "object's list": (
        lambda s, a, b: sum(step * torch.tanh(a - b) for step in s.config.steps),
        lambda s, i: s.config.steps.append(float(i)),
    ),
    "dict": (lambda s, a, b: s.table["a"] * torch.tanh(a * b), lambda s, i: s.table.update(a=float(i))),
    "list": (lambda s, a, b: s.items[0] * torch.tanh(a) + b, lambda s, i: s.items.insert(0, float(i))),
    "length": (lambda s, a, b: torch.tanh(a * b) / len(s.items), lambda s, i: s.items.append(0.0)),
    "module's attribute": (lambda s, a, b: s.inner(a * b), lambda s, i: setattr(s.inner, "power", 1 + i % 3)),
    "module replaced": (lambda s, a, b: torch.tanh(s.lin(a) + b), replaced),
    "parameter replaced": (
        lambda s, a, b: s.inner(a * b),
        lambda s, i: setattr(s.inner, "gain", torch.nn.Parameter(torch.tensor(float(i)))),
    ),
    "buffer replaced": (
        lambda s, a, b: s.decay * torch.tanh(a * b),
        lambda s, i: setattr(s, "decay", torch.tensor(0.1 * i)),
    ),
    "buffer in place": (lambda s, a, b: s.decay * torch.tanh(a * b), lambda s, i: s.decay.mul_(0.5)),
    "tensor replaced": (
        lambda s, a, b: s.plain * torch.tanh(a * b),
        lambda s, i: setattr(s, "plain", torch.full((6,), float(i))),
    ),
    "tensor in place": (lambda s, a, b: s.plain * torch.tanh(a * b), lambda s, i: s.plain.add_(1.0)),
    "global": (lambda s, a, b: halved(torch.tanh(a * b)), module_shift),
    "global dict": (
        lambda s, a, b: SETTINGS["rate"] * torch.tanh(a * b),
        lambda s, i: SETTINGS.update(rate=0.1 * i),
    ),
    "function": (lambda s, a, b: s.kernel(a) * b, kernel_of),
    "numpy number": (
        lambda s, a, b: torch.tanh(a * b) * float(s.level),
        lambda s, i: setattr(s, "level", np.float32(i)),
    ),
    "item": (lambda s, a, b: torch.tanh(a * b) * s.decay.item(), lambda s, i: s.decay.fill_(0.1 * i)),
    "counter": (lambda s, a, b: torch.tanh(a * b) * math.cos(s.t), lambda s, i: setattr(s, "t", s.t + 1)),
    "none": (
        lambda s, a, b: torch.tanh(a) if s.table.get("b") is None else torch.tanh(a) * b,
        lambda s, i: s.table.update(b=None if i % 2 else 1),
    ),
    "attribute added": (
        lambda s, a, b: torch.tanh(a * b) * getattr(s, "extra", 1.0),
        lambda s, i: setattr(s, "extra", 1.0 + i),
    ),
    "attribute removed": (
        lambda s, a, b: torch.tanh(a * b) * (2.0 if hasattr(s, "once") else 1.0),
        lambda s, i: setattr(s, "once", 1) if i % 2 else s.__dict__.pop("once", None),
    ),
    "tuple": (
        lambda s, a, b: torch.tanh(a * b) * s.items[-1],
        lambda s, i: setattr(s, "items", (1.0, float(i))),
    ),
    "set": (
        lambda s, a, b: torch.tanh(a * b) * (2.0 if "x" in s.table else 1.0),
        lambda s, i: s.table.pop("x") if s.table.get("x") else s.table.update(x=1),
    ),
    "method replaced": (
        lambda s, a, b: s.config.name.__len__() * torch.tanh(a * b),
        lambda s, i: setattr(s.config, "name", "x" * (i + 1)),
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


RANDOM = {
    "randn": lambda s, a, b: a * torch.randn(a.shape[0], 1),
    "rand_like": lambda s, a, b: a * torch.rand_like(b),
    "dropout": lambda s, a, b: torch.nn.functional.dropout(a, 0.5),
    "bernoulli": lambda s, a, b: torch.bernoulli(torch.sigmoid(a)),
    "normal_": lambda s, a, b: torch.empty(6).normal_() * a,
    "random": lambda s, a, b: a * random.random(),
    "numpy": lambda s, a, b: a * float(np.random.rand()),  # noqa: NPY002
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_inside_a_program_is_refused_by_name(name, graph):
    graph, _ = graph
    layer = Program(RANDOM[name], None)
    with pytest.raises(ValueError, match=r"random|dropout"):
        layer(torch.ones(60, 6), graph)


def counted(layer, a, b):
    layer.t += 1.0
    return layer.t * torch.tanh(a * b)


def counted_untraceable(layer, a, b):
    layer.t += 1.0
    return layer.t * torch.tanh(a * b) if a.shape[0] else a


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


def relu_in_place(layer, a, b):
    h = layer.lin(a)
    torch.nn.functional.relu(h, inplace=True)
    return h * b


# Messages that change state themselves, and others that a record of operations could miss.
OWN = {
    "counter": counted,
    "counter, not traceable": counted_untraceable,
    "buffer": averaged,
    "values that are kept": kept,
    "no gradient": without_gradient,
    "in place": in_place,
    "relu in place": relu_in_place,
    "softplus": lambda s, a, b: torch.nn.Softplus(beta=2.0)(a) * b,
    "slope": lambda s, a, b: torch.nn.LeakyReLU(s.t)(a - b),
    "number of a parameter": lambda s, a, b: torch.tanh(a * b) * s.inner.gain.item(),
    "branch on a parameter": lambda s, a, b: a * b if s.inner.gain > 0 else a + b,
    "computed of a parameter": lambda s, a, b: torch.tanh(a * b) * s.inner.gain.exp(),
    "dropout in evaluation": lambda s, a, b: torch.nn.functional.dropout(a * b, 0.5, training=False),
    "spectral norm": lambda s, a, b: torch.tanh(s.normed(a)) * b,
}


@pytest.mark.parametrize("name", OWN)
def test_messages_run_once_in_each_call(name, graph, rng):
    graph, ends = graph
    layer = Program(OWN[name], None)
    layer.normed = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 6))
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


def test_tensors_that_change_after_they_were_read_are_refused(graph):
    def changed(layer, a, b):
        message = layer.plain * torch.tanh(a * b)
        layer.plain.mul_(0.5)
        return message

    with pytest.raises(ValueError, match="changes a tensor in place"):
        Program(changed, None)(torch.ones(60, 6), graph[0])
