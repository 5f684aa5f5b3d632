"""Programs on vertices and edges over ranks: values and gradients are those of torch with a row for each edge of the
whole graph, in float64; the five of NGra's paper among them, and forms that run as sums, as tapes and with tensors.
"""

from __future__ import annotations

import functools
import importlib.util
from contextlib import nullcontext
from pathlib import Path

import cases
import convolutions
import numpy as np
import pytest
import reference
import torch
from convolutions import TOLERANCE, drawn_edges, summed
from torch.nn import Linear, Parameter
from torch.nn import functional as F

import mgg_hpc as mgg
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.nn import saga
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

NODES, CHANNELS, TYPES = 60, 7, 3

_EXAMPLE = Path(__file__).parents[3] / "examples" / "saga_programs.py"
_spec = importlib.util.spec_from_file_location("saga_programs", _EXAMPLE)
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


class Form(saga.Layer):
    """A program that is one function of an edge and one of a vertex, with some parameters."""

    def __init__(self, message, accumulator="sum", kind="edges", vertex=lambda of, v, accum: accum + v):
        super().__init__()
        self.message, self.accumulator, self.kind, self.vertex = message, accumulator, kind, vertex
        self.near, self.far = Linear(CHANNELS, CHANNELS), Linear(CHANNELS, CHANNELS)
        self.one, self.bias = Linear(CHANNELS, 1), Parameter(torch.randn(CHANNELS))
        self.scalar = Parameter(torch.randn(()))
        self.types = Parameter(torch.randn(TYPES, CHANNELS, CHANNELS))

    def apply_edge(self, edge):
        return self.message(self, edge)

    def apply_vertex(self, vertex, accum):
        return self.vertex(self, vertex, accum)


Bare = functools.partial(Form, vertex=lambda of, v, accum: accum)

# name: (message, how it runs)
TAPE, TENSORS, SUM = "one pass", "a row for each edge", "the fused aggregation"
FORMS = {
    "copy": (lambda of, e: e.src, SUM),
    "product of sources": (lambda of, e: of.far(e.src), SUM),
    "weights": (lambda of, e: of.far(e.src) * e.weight, SUM),
    "data": (lambda of, e: e.data["flow"][:, None] * e.src, SUM),
    "difference": (lambda of, e: (e.src - e.dst).abs(), TAPE),
    "gate": (lambda of, e: torch.sigmoid(of.far(e.src) + of.near(e.dst) * of.bias) * e.src, TAPE),
    "gate of one": (lambda of, e: torch.tanh(of.one(e.src) + of.one(e.dst)) * of.far(e.src), TAPE),
    "widened gate": (
        lambda of, e: torch.tanh(of.one(e.src) + of.one(e.dst).expand(-1, CHANNELS)) * of.far(e.src),
        TAPE,
    ),
    "dot": (lambda of, e: torch.sigmoid((e.src * of.near(e.dst)).sum(1, keepdim=True)) * e.src, TAPE),
    "functions": (
        lambda of, e: (
            F.silu(e.src * of.scalar) + F.softplus(e.dst) * torch.exp(-of.bias * e.src.clamp(-1, 1))
        ),
        TAPE,
    ),
    "more functions": (
        lambda of, e: (
            F.elu(e.dst - e.src) / (1 + e.src**2).sqrt()
            + torch.maximum(e.src, of.near(e.dst)) * torch.log(2 + torch.minimum(e.src, e.dst) ** 2)
        ),
        TAPE,
    ),
    "leaky": (
        lambda of, e: F.leaky_relu(3 - e.src, 0.3) * torch.relu(e.dst - 0.1) - 2 / (e.src.abs() + 1),
        TAPE,
    ),
    "data in a gate": (
        lambda of, e: torch.sigmoid(e.data["flow"].unsqueeze(1) * of.bias + of.far(e.src)) * e.data["wide"],
        TAPE,
    ),
    "typed": (lambda of, e: saga.typed_linear(e.src, of.types, e.data["type"]), TAPE),
    "typed in a gate": (
        lambda of, e: torch.tanh(saga.typed_linear(e.src, of.types, e.data["type"]) * e.dst) * e.src,
        TAPE,
    ),
    "typed targets": (
        lambda of, e: torch.sigmoid(saga.typed_linear(e.dst, of.types, e.data["type"]) + e.src) * of.bias,
        TAPE,
    ),
    "product of both": (lambda of, e: of.far(e.src * e.dst), TENSORS),
    "softmax": (lambda of, e: torch.softmax(e.src + e.dst, 1), TENSORS),
    "data without use": (lambda of, e: (e.data["flow"], torch.softmax(e.src + e.dst, 1))[1], TENSORS),
}


def whole_graph(rng, comm, directed):
    case = cases.csr(*drawn_edges(rng, NODES, directed=directed), NODES, cases.even(NODES, comm.size))
    edges = len(case.indices)
    weight = rng.uniform(0.5, 2, edges).astype(np.float32) if directed else np.ones(edges, np.float32)
    data = {
        "type": rng.integers(0, TYPES, edges).astype(np.int32),
        "flow": rng.standard_normal(edges).astype(np.float32),
        "wide": rng.standard_normal((edges, CHANNELS)).astype(np.float32),
    }
    x = rng.standard_normal((NODES, CHANNELS)).astype(np.float32)
    return Graph("g", case.indptr, case.indices, weight, x, directed=directed, edge=data)


def by_hand(layer, x, graph):
    """The layer in plain torch over the whole graph, as the paper's stages say."""
    ends = reference.edge_list(graph.indptr, graph.indices)
    source, target, weight, data = *ends, graph.weight, graph.edge
    if layer.kind == "gcn":
        source, target, weight = reference.gcn_edges(*ends, NODES, graph.weight)
        data = {}
    source, target = (torch.from_numpy(np.asarray(values)).long() for values in (source, target))
    values = {name: torch.from_numpy(held) for name, held in data.items()}
    values = {name: held.to(x.dtype) if held.is_floating_point() else held for name, held in values.items()}
    weight = None if weight is None else torch.from_numpy(weight).to(x.dtype)[:, None]
    messages = layer.apply_edge(saga.Edge(x[source], x[target], values, weight))
    accum = messages.new_zeros(len(x), messages.shape[1])
    if layer.accumulator == "concat":
        accum = messages.reshape(len(x), -1)
    elif layer.accumulator == "sum":
        accum = accum.index_add(0, target, messages)
    else:
        name = {"mean": "mean", "max": "amax"}[layer.accumulator]
        wide = target[:, None].expand_as(messages)
        accum = accum.scatter_reduce(0, wide, messages, name, include_self=False)
    return layer.apply_vertex(x, accum)


@pytest.fixture
def opened(rng, comm, stored):
    """Return open(graph, dtype, options): the graph over all ranks."""

    def opened(graph, dtype=torch.float64, **options):
        path = stored(f"drawn {int(rng.integers(1 << 40))}", graph)
        return convolutions.opened(comm, path, dtype, **options)

    return opened


@pytest.fixture
def compare(rng, comm, opened):
    """Return a function that compares a layer's output and all gradients on all ranks with those by hand."""

    def compare(layer, graph, dtype=torch.float64, transfer="halo", runs=""):
        layer.to(dtype).zero_grad()
        with opened(graph, dtype, transfer=transfer) as held:
            mine = torch.from_numpy(held.ids)
            x_all = torch.from_numpy(graph.x).to(dtype).requires_grad_()
            x = x_all.detach()[mine].clone().requires_grad_()
            out = layer(x, held)
            gradient = torch.from_numpy(rng.standard_normal((NODES, out.shape[1]))).to(dtype)
            out.backward(gradient[mine])
        found = summed(comm, layer)
        layer.zero_grad()
        wanted = by_hand(layer, x_all, graph)
        wanted.backward(gradient)
        grads = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
        with mpi.agree(comm):
            assert found.keys() == grads.keys()
            near(out, wanted[mine], dtype, wanted)
            near(x.grad, x_all.grad[mine], dtype, x_all.grad)
            for name, right in grads.items():
                near(found[name], right, dtype, right)
            assert runs in layer.explain(), layer.explain()

    return compare


def near(found, wanted, dtype, whole):
    size = max(1.0, float(whole.detach().abs().max()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=4 * TOLERANCE[dtype] * size)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("name", examples.PROGRAMS)
def test_the_papers_programs_are_those_of_edge_lists(rng, comm, compare, name, transfer):
    torch.manual_seed(int(rng.integers(2**31)))
    layer = examples.PROGRAMS[name](CHANNELS, TYPES if name == "gg-nn" else 5)
    runs = {"gated-gcn": TAPE, "gg-nn": TAPE}.get(name, SUM)
    for directed in (False, True):
        for dtype in (torch.float64, torch.float32):
            compare(layer, whole_graph(rng, comm, directed), dtype, transfer, runs)


@pytest.mark.sampled
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_messages_are_those_of_edge_lists(rng, comm, compare, name, accumulator):
    torch.manual_seed(int(rng.integers(2**31)))
    message, runs = FORMS[name]
    if accumulator == "max" and name in ("weights", "data"):
        runs = TAPE
    transfer = ["direct", "get", "halo"][int(rng.integers(3))]
    graph = whole_graph(rng, comm, bool(rng.integers(2)))
    compare(Form(message, accumulator), graph, transfer=transfer, runs=runs)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
def test_weights_of_a_normalised_graph_belong_to_tapes_and_tensors_too(
    rng, comm, compare, accumulator, directed
):
    torch.manual_seed(int(rng.integers(2**31)))
    for message, runs in (
        (lambda of, e: torch.sigmoid(of.far(e.src) + e.dst) * e.weight, TAPE),
        (lambda of, e: of.far(e.src * e.dst) * e.weight, TENSORS),
    ):
        compare(Form(message, accumulator, kind="gcn"), whole_graph(rng, comm, directed), runs=runs)


def test_concat_lays_messages_beside_each_other(rng, comm, compare):
    """In the order of the graph, for vertices that all have as many in-edges."""
    target = np.repeat(np.arange(NODES), 3)
    case = cases.csr(rng.integers(0, NODES, len(target)), target, NODES, cases.even(NODES, comm.size))
    x = rng.standard_normal((NODES, CHANNELS)).astype(np.float32)
    layer = Bare(lambda of, e: torch.tanh(e.src), "concat")
    layer.in_degree = 3
    graph = Graph("g", case.indptr, case.indices, None, x, directed=True)
    compare(layer, graph, runs="'concat' keeps the message of each edge")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("computed", [False, True])
def test_maxima_of_half_rows_that_rounding_makes_equal_share_their_gradient(
    rng, comm, opened, dtype, computed
):
    """As torch's own maxima of half rows do: values are compared as they are stored."""
    graph = whole_graph(rng, comm, True)
    graph.x[:] = 1 + graph.x % 1 / 16  # 129 float16, or 17 bfloat16, in [1, 1 + 1 / 16]
    layer = Bare((lambda of, e: (e.src - e.dst / 2).exp()) if computed else FORMS["copy"][0], "max")
    with opened(graph, dtype) as held:
        x, all_x = held.x.clone().requires_grad_(), torch.from_numpy(graph.x).to(dtype).requires_grad_()
        gradient = torch.from_numpy(rng.integers(1, 4, graph.x.shape)).to(dtype)
        layer(x, held).backward(gradient[held.ids])
        by_hand(layer, all_x, graph).backward(gradient)
        with mpi.agree(comm):
            assert len(all_x.detach().unique()) < all_x.numel() / 2
            whole, most = all_x.grad[held.ids].double(), float(all_x.grad.abs().max())
            # Each of up to 3 NODES shares is rounded, and so are sums of them.
            torch.testing.assert_close(x.grad.double(), whole, rtol=0, atol=4 * torch.finfo(dtype).eps * most)


def test_one_layer_takes_graphs_whose_data_have_other_widths(rng, comm, opened):
    """In memory and streamed, one graph after the other and back."""
    layer = Form(lambda of, e: torch.tanh(e.data["one"] * e.src + of.bias) * e.data["other"]).double()
    for widths in ((1, CHANNELS), (CHANNELS, 1), (1, CHANNELS)):
        graph = whole_graph(rng, comm, True)
        graph.edge.clear()
        for name, width in zip(("one", "other"), widths, strict=True):
            graph.edge[name] = rng.standard_normal((len(graph.indices), width)).astype(np.float32)
        wanted = by_hand(layer, torch.from_numpy(graph.x).double(), graph).detach()
        for streaming in (None, mgg.Streaming(1 << 20)):
            with opened(graph, streaming=streaming) as held, torch.no_grad():
                out = layer(held.x, held)
                out = out if streaming is None else out.tensor()
                with mpi.agree(comm):
                    near(out, wanted[held.ids], torch.float64, wanted)


def test_messages_that_depend_on_other_edges_are_refused_on_several_ranks(rng, comm, opened):
    """On one rank they are torch's."""
    graph = whole_graph(rng, comm, True)
    norm = torch.nn.BatchNorm1d(CHANNELS).double()
    for message in (
        lambda of, e: norm(e.src + e.dst),
        lambda of, e: F.relu(norm(e.src), inplace=True),
        lambda of, e: F.softmax(e.src, 0),
        lambda of, e: e.src - e.src.mean(0),
        lambda of, e: e.dst / e.src.norm(),
    ):
        layer = Form(message).double()
        with opened(graph) as held:
            refused = pytest.raises(ValueError, match="a message of apply_edge depends on other edges")
            with refused if comm.size > 1 else nullcontext():
                layer(held.x, held)


def test_wrong_types_and_names_are_refused(rng, comm, opened):
    """Types without matrices, data not there or have no order, and in-degrees that differ, each in one line."""
    graph = whole_graph(rng, comm, True)
    graph.edge["type"][-1] = TYPES
    beside = Form(lambda of, e: e.src, "concat")
    beside.in_degree = int(np.diff(graph.indptr).max()) + 1
    for layer, said, streams in [
        (Form(FORMS["typed"][0]), r"data of edges 'type': 3 is no type; .* types 0 to 2", True),
        (Form(lambda of, e: e.src * e.data["nothing"][:, None]), "'nothing'", True),
        (Form(FORMS["data"][0], kind="gcn"), "have no order in an adjacency of kind 'gcn'", True),
        (Form(lambda of, e: of.far(e.src * e.dst) * e.data["wide"], kind="gcn"), "have no order", False),
        (beside, r"accumulator is 'concat' of .* in-edges, and row 0 of this rank has", False),
    ]:
        for streaming in (None, mgg.Streaming(1 << 20))[: 1 + streams]:
            with (
                opened(graph, streaming=streaming) as held,
                pytest.raises((InputError, ValueError), match=said),
            ):
                layer.double()(held.x, held)
