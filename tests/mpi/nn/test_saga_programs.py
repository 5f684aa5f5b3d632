"""Programs on vertices and edges over ranks: values and gradients are those of torch with a row for each edge of the
whole graph, in float64; the five of NGra's paper among them, and forms that run as sums, as tapes and with tensors.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cases
import numpy as np
import pytest
import reference
import torch
from convolutions import TOLERANCE, drawn_edges
from torch import Tensor
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
    """A program that is one function of an edge, with some parameters."""

    def __init__(self, message, accumulator="sum", kind="edges"):
        super().__init__()
        self.message, self.accumulator, self.kind = message, accumulator, kind
        self.near, self.far = Linear(CHANNELS, CHANNELS), Linear(CHANNELS, CHANNELS)
        self.one, self.bias = Linear(CHANNELS, 1), Parameter(torch.randn(CHANNELS))
        self.scalar, self.types = (
            Parameter(torch.randn(())),
            Parameter(torch.randn(TYPES, CHANNELS, CHANNELS)),
        )

    def apply_edge(self, edge):
        return self.message(self, edge)

    def apply_vertex(self, vertex, accum):
        return accum + vertex


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
    x = rng.standard_normal((NODES, CHANNELS))
    return Graph("g", case.indptr, case.indices, weight, x.astype(np.float32), directed=directed, edge=data)


def by_hand(layer, x, graph):
    """The layer in plain torch over the whole graph, as the paper's stages say."""
    source, target = (torch.from_numpy(np.asarray(end)).long() for end in cases_edges(graph))
    weight, data = torch.from_numpy(graph.weight).to(x.dtype)[:, None], graph.edge
    if layer.kind == "gcn":
        ends = reference.gcn_edges(*cases_edges(graph), NODES, graph.weight)
        source, target, weight = (torch.from_numpy(np.asarray(values)) for values in ends)
        weight, data = weight[:, None].to(x.dtype), {}
    values = {name: torch.from_numpy(held) for name, held in data.items()}
    values = {name: held.to(x.dtype) if held.is_floating_point() else held for name, held in values.items()}
    messages = layer.apply_edge(saga.Edge(x[source], x[target], values, weight))
    accum = messages.new_zeros(len(x), messages.shape[1])
    if layer.accumulator == "sum":
        accum = accum.index_add(0, target, messages)
    else:
        name = {"mean": "mean", "max": "amax"}[layer.accumulator]
        wide = target[:, None].expand_as(messages)
        accum = accum.scatter_reduce(0, wide, messages, name, include_self=False)
    return layer.apply_vertex(x, accum)


def cases_edges(graph):
    return graph.indices, np.repeat(np.arange(NODES), np.diff(graph.indptr))


def summed(comm, values: Tensor) -> Tensor:
    total = np.ascontiguousarray(values.numpy())
    mpi.sum_in_rank_order(comm, total)
    return torch.from_numpy(total)


def compare(comm, stored, rng, layer, directed, transfer, dtype, runs=None):
    """Run a layer on all ranks and by hand, and compare its output and all gradients."""
    graph = whole_graph(rng, comm, directed)
    layer.to(dtype)
    path = stored(f"{directed} {int(rng.integers(1 << 40))}", graph)
    backend = "serial" if comm.size == 1 else "shm"
    with mgg.open(path, backend=backend, dtype=str(dtype).removeprefix("torch."), transfer=transfer) as held:
        mine = slice(int(held.part.bounds[comm.rank]), int(held.part.bounds[comm.rank + 1]))
        x_all = torch.from_numpy(graph.x).to(dtype).requires_grad_()
        x = x_all.detach()[mine].clone().requires_grad_()
        out = layer(x, held)
        gradient = torch.from_numpy(rng.standard_normal((NODES, out.shape[1]))).to(dtype)
        layer.zero_grad()
        out.backward(gradient[mine])
        found = {name: summed(comm, p.grad) for name, p in layer.named_parameters() if p.grad is not None}
        layer.zero_grad()
        wanted = by_hand(layer, x_all, graph)
        wanted.backward(gradient)
        grads = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
        with mpi.agree(comm):
            assert found.keys() == grads.keys()
            near(out, wanted[mine], dtype, wanted)
            near(x.grad, x_all.grad[mine], dtype, x_all.grad)
            for name, held_gradient in grads.items():
                near(found[name].reshape(held_gradient.shape), held_gradient, dtype, held_gradient)
            if runs is not None:
                assert runs in layer.explain(), layer.explain()


def near(found, wanted, dtype, whole):
    size = max(1.0, float(whole.detach().abs().max()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=4 * TOLERANCE[dtype] * size)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
@pytest.mark.parametrize("name", examples.PROGRAMS)
def test_the_papers_programs_are_those_of_edge_lists(rng, comm, stored, name, transfer):
    torch.manual_seed(int(rng.integers(2**31)))
    make = examples.PROGRAMS[name]
    layer = make(CHANNELS, TYPES) if name == "gg-nn" else make(CHANNELS, 5)
    runs = {"gated-gcn": TAPE, "gg-nn": TAPE}.get(name, SUM)
    for directed in (False, True):
        for dtype in (torch.float64, torch.float32):
            compare(comm, stored, rng, layer, directed, transfer, dtype, runs)


@pytest.mark.sampled
@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_messages_are_those_of_edge_lists(rng, comm, stored, name, accumulator):
    torch.manual_seed(int(rng.integers(2**31)))
    message, runs = FORMS[name]
    if accumulator == "max" and name in ("weights", "data"):
        runs = TAPE
    transfer = ["direct", "get", "halo"][int(rng.integers(3))]
    compare(
        comm, stored, rng, Form(message, accumulator), bool(rng.integers(2)), transfer, torch.float64, runs
    )


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
def test_weights_of_a_normalised_graph_belong_to_tapes_and_tensors_too(rng, comm, stored, accumulator):
    torch.manual_seed(int(rng.integers(2**31)))
    for message, runs in (
        (lambda of, e: torch.sigmoid(of.far(e.src) + e.dst) * e.weight, TAPE),
        (lambda of, e: of.far(e.src * e.dst) * e.weight, TENSORS),
    ):
        for directed in (False, True):
            layer = Form(message, accumulator, kind="gcn")
            compare(comm, stored, rng, layer, directed, "halo", torch.float64, runs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("computed", [False, True])
def test_maxima_of_half_rows_that_rounding_makes_equal_share_their_gradient(
    rng, comm, stored, dtype, computed
):
    """As torch's own maxima of half rows do: values are compared as they are stored."""

    class Most(Form):
        def apply_vertex(self, vertex, accum):
            return accum

    graph = whole_graph(rng, comm, True)
    graph.x[:] = 1 + graph.x % 1 / 16  # 129 float16, or 17 bfloat16, in [1, 1 + 1 / 16]
    layer = Most((lambda of, e: (e.src - e.dst / 2).exp()) if computed else FORMS["copy"][0], "max")
    path = stored(f"half {int(rng.integers(1 << 40))}", graph)
    name = str(dtype).removeprefix("torch.")
    with mgg.open(path, backend="serial" if comm.size == 1 else "shm", dtype=name) as held:
        x, all_x = held.x.clone().requires_grad_(), torch.from_numpy(graph.x).to(dtype).requires_grad_()
        gradient = torch.from_numpy(rng.integers(1, 4, graph.x.shape)).to(dtype)
        mine = slice(int(held.part.bounds[comm.rank]), int(held.part.bounds[comm.rank + 1]))
        layer(x, held).backward(gradient[mine])
        by_hand(layer, all_x, graph).backward(gradient)
        with mpi.agree(comm):
            assert len(all_x.detach().unique()) < all_x.numel() / 2
            whole, most = all_x.grad[mine].double(), float(all_x.grad.abs().max())
            # Each of up to 3 NODES shares is rounded, and so are sums of them.
            torch.testing.assert_close(x.grad.double(), whole, rtol=0, atol=4 * torch.finfo(dtype).eps * most)


def test_one_layer_takes_graphs_whose_data_have_other_widths(rng, comm, stored):
    """In memory and streamed, one graph after the other and back."""
    layer = Form(lambda of, e: torch.tanh(e.data["one"] * e.src + of.bias) * e.data["other"]).double()
    for turn in range(3):
        graph = whole_graph(rng, comm, True)
        edges, names = len(graph.indices), ("one", "other")[:: 1 if turn % 2 else -1]
        graph.edge.clear()
        for name, width in zip(names, (1, CHANNELS), strict=True):
            graph.edge[name] = rng.standard_normal((edges, width)).astype(np.float32)
        path = stored(f"widths {int(rng.integers(1 << 40))}", graph)
        wanted = by_hand(layer, torch.from_numpy(graph.x).double(), graph).detach()
        for streaming in (None, mgg.Streaming(1 << 20)):
            backend = "serial" if comm.size == 1 else "shm"
            with (
                mgg.open(path, backend=backend, dtype="float64", streaming=streaming) as held,
                torch.no_grad(),
            ):
                out = layer(held.x, held)
                out = out if streaming is None else out.tensor()
                mine = slice(int(held.part.bounds[comm.rank]), int(held.part.bounds[comm.rank + 1]))
                with mpi.agree(comm):
                    near(out, wanted[mine], torch.float64, wanted)


def test_explain_tells_of_the_last_call(rng, comm, stored):
    """Also where that ran a program of an earlier one."""
    path = stored(f"explain {int(rng.integers(1 << 40))}", whole_graph(rng, comm, True))
    layer, told = Form(lambda of, e: e.src if of.training else torch.tanh(e.src - e.dst)), []
    with mgg.open(path, backend="serial" if comm.size == 1 else "shm") as held, torch.no_grad():
        for training in (True, False, True):
            layer.train(training)(held.x, held)
            told.append(layer.explain())
    with mpi.agree(comm):
        assert SUM in told[0] and TAPE in told[1] and told[2] == told[0]


def test_wrong_types_and_names_are_refused(rng, comm, stored):
    """Types that have no matrix, data that are not there, and in-degrees that differ, each in one line."""
    graph = whole_graph(rng, comm, True)
    graph.edge["type"][-1] = TYPES
    backend = "serial" if comm.size == 1 else "shm"
    typed = Form(lambda of, e: saga.typed_linear(e.src, of.types, e.data["type"]))
    unknown = Form(lambda of, e: e.src * e.data["nothing"][:, None])
    beside = Form(lambda of, e: e.src, "concat")
    beside.in_degree = int(np.diff(graph.indptr).max()) + 1
    streaming = mgg.Streaming(1 << 20)
    path = stored(f"types {int(rng.integers(1 << 40))}", graph)
    for how in (None, streaming):
        with mgg.open(path, backend=backend, streaming=how) as held:
            with pytest.raises(InputError, match=r"data of edges 'type': 3 is no type; .* types 0 to 2"):
                typed(held.x, held)
            with pytest.raises(InputError, match="'nothing'"):
                unknown(held.x, held)
    with (
        mgg.open(path, backend=backend) as held,
        pytest.raises(
            ValueError, match=r"accumulator is 'concat' of .* in-edges, and row 0 of this rank has"
        ),
    ):
        beside(held.x, held)


def test_concat_lays_messages_beside_each_other(rng, comm, stored):
    """In the order of the graph, for vertices that all have as many in-edges."""
    degree = 3
    target = np.repeat(np.arange(NODES), degree)
    source = rng.integers(0, NODES, len(target))
    case = cases.csr(source, target, NODES, cases.even(NODES, comm.size))
    x = rng.standard_normal((NODES, CHANNELS)).astype(np.float32)
    path = stored(
        f"concat {int(rng.integers(1 << 40))}", Graph("g", case.indptr, case.indices, None, x, directed=True)
    )

    class Beside(Form):
        def apply_vertex(self, vertex, accum):
            return accum

    layer = Beside(lambda of, e: torch.tanh(e.src), "concat")
    layer.in_degree = degree
    with mgg.open(path, backend="serial" if comm.size == 1 else "shm") as held:
        mine = slice(int(held.part.bounds[comm.rank]), int(held.part.bounds[comm.rank + 1]))
        rows = held.x.clone().requires_grad_()
        out = layer(rows, held)
        out.sum().backward()
    whole = torch.from_numpy(x).requires_grad_()
    wanted = torch.tanh(whole[torch.from_numpy(case.indices).long()]).reshape(NODES, -1)
    wanted.sum().backward()
    with mpi.agree(comm):
        torch.testing.assert_close(out, wanted[mine])
        torch.testing.assert_close(rows.grad, whole.grad[mine])
        assert "'concat' keeps the message of each edge" in layer.explain()
