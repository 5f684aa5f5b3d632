"""Programs on graphs that are streamed: losses and gradients are those of the same graph in memory, whichever way rows
come, and on any number of ranks.
"""

from __future__ import annotations

import dataclasses
import functools

import cases
import numpy as np
import pytest
import torch
from convolutions import TOLERANCE, drawn_edges, opened, summed
from test_saga_programs import CHANNELS, FORMS, TENSORS, TYPES, Bare, Form, examples
from torch.nn import ModuleList
from torch.nn.functional import cross_entropy

from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.nn.streaming.graph import Streaming
from mgg_hpc.plan.row_ranges import edge_balanced
from mgg_hpc.runtime import exchange, mpi

pytestmark = pytest.mark.mpi

NODES, CLASSES = 900, 4


def shares_a_parameter(of, e):
    """A message of a normalised graph in which all edges read a parameter."""
    return torch.sigmoid(of.far(e.src) + of.near(e.dst)) * of.bias * e.weight


Vertices = functools.partial(Form, vertex=lambda of, v, accum: torch.tanh(of.near(v) + accum))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Rows are computed, and gradients added, in several blocks."""
    monkeypatch.setattr("mgg_hpc.nn.streaming.graph._block_rows", lambda *given: 130)
    monkeypatch.setattr("mgg_hpc.nn.streaming.rows.BLOCK", 70)


@pytest.fixture(autouse=True)
def parameters(rng):
    """Parameters are drawn anew, the same on all ranks."""
    torch.manual_seed(int(rng.integers(2**31)))


def graph_of(rng, comm, source, target, x=None, directed=True):
    """Return a graph with these edges, features and labels."""
    case = cases.csr(source, target, NODES, cases.even(NODES, comm.size))
    x = rng.standard_normal((NODES, CHANNELS)) if x is None else x
    fields = {"x": x.astype(np.float32), "y": rng.integers(0, CLASSES, NODES), "classes": CLASSES}
    every = np.ones(NODES, bool)
    fields |= {"train": every, "val": ~every, "test": ~every, "directed": directed}
    return Graph("g", case.indptr, case.indices, **fields)


@pytest.fixture
def drawn(rng, comm, stored):
    """Write a drawn graph; returns a function from directed, whether edges have data beside their weights, and whether
    features are small whole numbers, to its path and the number of edges of the rank that has most.
    """

    def drawn(directed, of_edges=True, whole=False):
        x = rng.integers(-1, 2, (NODES, CHANNELS)) if whole else None
        graph = graph_of(rng, comm, *drawn_edges(rng, NODES, directed=directed), x, directed)
        edges = len(graph.indices)
        weight = rng.uniform(0.5, 2, edges).astype(np.float32)
        if not directed:  # an edge and its reverse have the same
            rows = np.repeat(np.arange(NODES), np.diff(graph.indptr))
            weight = (0.5 + (graph.indices + rows) % 7 / 4).astype(np.float32)
        data = {
            "type": rng.integers(0, TYPES, edges).astype(np.int32),
            "flow": rng.standard_normal(edges).astype(np.float32),
            "wide": rng.standard_normal((edges, CHANNELS)).astype(np.float32),
        }
        graph = dataclasses.replace(graph, weight=weight, edge=data if of_edges else {})
        path = stored(f"{directed} {int(rng.integers(1 << 40))}", graph)
        return path, int(np.diff(graph.indptr[edge_balanced(graph.indptr, comm.size)]).max())

    return drawn


def forward(layers, graph):
    return functools.reduce(lambda x, layer: layer(x, graph), layers, graph.x)


def tensor(rows):
    return rows if isinstance(rows, torch.Tensor) else rows.tensor()


def loss_of(graph, rows):
    return graph.loss(tensor(rows)[:, :CLASSES], cross_entropy)


def trained(comm, path, layers, dtype, streaming, run=forward):
    """Run layers forward and backward; returns the loss, the gradients of all ranks, and how rows were cut."""
    layers = ModuleList(layers)
    layers.zero_grad()
    with opened(comm, path, dtype, streaming=streaming) as graph:
        loss = loss_of(graph, run(layers, graph))
        loss.backward()
        cut = None if streaming is None else graph.grids.all()[0].forward
        return loss.detach(), summed(comm, layers), cut


def same(comm, path, layers, dtype, streaming, run=forward):
    """Compare a run that is streamed with one in memory. Returns how rows were cut."""
    loss, gradients, _ = trained(comm, path, layers, dtype, None, run)
    streamed, found, cut = trained(comm, path, layers, dtype, streaming, run)
    with mpi.agree(comm):
        torch.testing.assert_close(streamed, loss, rtol=4 * TOLERANCE[dtype], atol=0)
        for name in found.keys() | gradients.keys():
            # In memory a parameter whose products nothing reads has no gradient.
            wanted = gradients.get(name, torch.zeros_like(found[name]))
            bound = 8 * TOLERANCE[dtype] * max(1.0, float(wanted.abs().max()))
            torch.testing.assert_close(found[name], wanted, rtol=0, atol=bound)
    return cut


def plans(edges, columns=0, directions=2):
    """Bytes of a rank's edges, of which there are at most so many, of plans, and of columns of float64."""
    return (4 * (4 + CHANNELS) + directions * (12 + 8 * columns)) * edges


def ways(folder, edges, columns=1):
    """Streaming of each kind, with memory for some intervals beside plans."""
    memory = plans(edges, columns) + 250_000
    return {
        "in place": Streaming(memory),
        "copied": Streaming(memory, copies=True),
        "from a file": Streaming(memory, folder=folder),
        "through the page cache": Streaming(memory, folder=folder, direct=False),
        "not ahead": Streaming(memory, copies=True, ahead=False),
        "by stages": Streaming(memory, copies=True, schedule="stage"),
        "by destinations": Streaming(memory - 150_000, copies=True, schedule="destination"),
    }


@pytest.mark.ranks(1)
@pytest.mark.sampled
@pytest.mark.parametrize("way", ways(None, 0))
@pytest.mark.parametrize("name", examples.PROGRAMS)
def test_the_papers_programs_stream(rng, comm, drawn, tmp_path, name, way):
    make = examples.PROGRAMS[name]
    layers = [make(CHANNELS, TYPES if name == "gg-nn" else CHANNELS) for _ in range(2)]
    path, edges = drawn(bool(rng.integers(2)))
    dtype = (torch.float64, torch.float32)[int(rng.integers(2))]
    same(comm, path, [layer.to(dtype) for layer in layers], dtype, ways(tmp_path, edges)[way])
    assert list(tmp_path.iterdir()) == []


REFUSED = ("product of both", "softmax", "data without use", "dot", "typed targets", "gate of one")


@pytest.mark.parametrize("name", [name for name in FORMS if name not in REFUSED])
def test_forms_of_messages_stream(rng, comm, drawn, name):
    accumulator = ("sum", "mean", "max")[int(rng.integers(3))]
    path, edges = drawn(bool(rng.integers(2)))
    layers = [Vertices(FORMS[name][0], accumulator).double() for _ in range(2)]
    columns = 1 + CHANNELS if name == "data in a gate" else 1
    way = ("in place", "copied")[int(rng.integers(2))]
    same(comm, path, layers, torch.float64, ways(None, edges, columns)[way])


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
@pytest.mark.parametrize("directed", [False, True])
def test_weights_stream_without_other_data_of_edges(comm, drawn, directed, accumulator):
    """Also where a layer that reads none of them came before, whose grid has no values of edges."""
    path, edges = drawn(directed, of_edges=False)
    forms = (lambda of, e: of.far(e.src), lambda of, e: of.far(e.src) * e.weight)
    layers = [Vertices(form, accumulator).double() for form in (*forms, FORMS["gate"][0])]
    # Factors of normalised weights are operands of both ends that have no gradients.
    layers += [Vertices(shares_a_parameter, accumulator, kind="gcn").double()]
    same(comm, path, layers, torch.float64, ways(None, edges)["copied"])


# Rows stay whole numbers.
Whole = functools.partial(Form, vertex=lambda of, v, accum: accum - of.near(v))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "copied", "by stages", "by destinations"])
@pytest.mark.parametrize("name", ["copy", "product of sources", "difference"])
def test_equal_maxima_of_several_chunks_share_their_gradient(rng, comm, drawn, name, way):
    """Rows and parameters are whole numbers, so that most maxima are reached by edges of several chunks."""
    path, edges = drawn(True, whole=True)
    layers = [Whole(FORMS[name][0], "max").double() for _ in range(2)]
    with torch.no_grad():
        for parameter in (parameter for layer in layers for parameter in layer.parameters()):
            parameter.copy_(torch.from_numpy(comm.bcast(rng.integers(-1, 2, parameter.shape))))
    how = dataclasses.replace(ways(None, edges)[way], memory=plans(edges, 1) + 40_000)
    cut = same(comm, path, layers, torch.float64, how)
    with mpi.agree(comm):
        assert way == "in place" or len(cut.order.sources) > 2
        assert way != "by destinations" or len(cut.plans) > len(cut.targets) - 1  # calls for some interval


def test_maxima_of_minus_infinity_stay(comm, drawn):
    """Logarithms of 0 in all edges of a row, and rows without edges, which have 0."""
    path, edges = drawn(True, whole=True)
    layer, found = Bare(lambda of, e: torch.log(torch.relu(e.src)), "max").double(), []
    for streaming in (None, ways(None, edges)["by destinations"]):
        with opened(comm, path, streaming=streaming) as graph, torch.no_grad():
            found.append(tensor(layer(graph.x, graph)))
            cut = graph.grids.all()[0].forward if streaming is not None else None
    with mpi.agree(comm):
        assert len(cut.plans) > len(cut.targets) - 1 and torch.equal(*found)
        assert comm.size > 1 or {-torch.inf, 0.0} == set(found[0].unique().tolist())


def test_grids_have_what_layers_read(comm, drawn, monkeypatch):
    """An undirected graph has one direction until a layer reads data of edges, which cross between ranks once."""
    path, edges = drawn(False)
    plain, gated = (Vertices(FORMS[name][0]) for name in ("product of sources", "data in a gate"))
    how = ways(None, edges, 1 + CHANNELS)["in place"]
    with opened(comm, path, torch.float32, streaming=how) as graph:
        plain(graph.x, graph)
        (made,) = graph.grids.all()
        with mpi.agree(comm):
            assert made.backward is made.forward
        gated(graph.x, graph)
        (made,) = graph.grids.all()
        monkeypatch.setattr(exchange.Crossing, "carry", None)
        for layer in (gated, plain):
            layer(graph.x, graph)
        with mpi.agree(comm):
            assert made.backward is not made.forward
            assert graph.grids.all() == [made]
        with pytest.raises(ValueError, match="no order in an adjacency of kind 'gcn'"):
            Form(FORMS["data"][0], kind="gcn")(graph.x, graph)


def test_chained_ranks_end_intervals_together(rng, comm, stored):
    """Rank 0 has edges in the first chunk alone, others in all chunks, for which they wait for rank 0."""
    target = np.repeat(np.arange(NODES), 3)
    source = rng.integers(0, np.where(target < NODES // comm.size, 64, NODES))
    path = stored("apart", graph_of(rng, comm, source, target))
    how = Streaming(28 * len(target) + 30_000, rate=1e9, schedule="destination")
    cut = same(comm, path, [examples.GatedGCN(CHANNELS, CHANNELS)], torch.float32, how)
    with mpi.agree(comm):
        assert len(cut.order.sources) >= 4


def test_one_rank_reads_slow_stores(comm, drawn, monkeypatch):
    """Whatever the bandwidth of memory, which is not measured for them."""
    monkeypatch.setattr("mgg_hpc.nn.streaming.graph.copy_bandwidth", None)
    path, edges = drawn(False)
    how = Streaming(plans(edges) + 100_000, rate=1e9)
    with opened(comm, path, torch.float32, streaming=how) as graph:
        graph.backend.stream.meter.taken()
        examples.GatedGCN(CHANNELS, CHANNELS)(graph.x, graph)
        read = comm.allgather(graph.backend.stream.meter.stored_bytes > 0)
        with mpi.agree(comm):
            assert read == [True] + [False] * (comm.size - 1)


@pytest.mark.parametrize("schedule", ["accumulator", "stage", "destination"])
def test_schedules_move_what_they_say(comm, drawn, schedule):
    """Sums stay in NGra's schedule, leave memory and return once by stages, and for each chunk in the other order."""
    path, edges = drawn(False)
    how = Streaming(plans(edges, directions=1) + 40_000, copies=True, schedule=schedule, chains="none")
    with opened(comm, path, torch.float32, streaming=how) as graph:
        examples.GatedGCN(CHANNELS, CHANNELS)(graph.x, graph).tensor().sum().backward()
        (made,) = graph.grids.all()
        wide = 4 * 2 * CHANNELS  # sums and derivatives
        stages = 2 * graph.rows * 4 * (CHANNELS + 2 * CHANNELS)  # derivatives are kept
        cells = (len(made.forward.targets) - 1) * (len(made.forward.order.sources) - 1)
        with mpi.agree(comm):
            assert comm.size > 1 or cells > 20
            if schedule == "destination":
                assert graph.swapped % wide == 0 and (comm.size > 1 or graph.swapped > 10 * graph.rows * wide)
            else:
                assert graph.swapped == (stages if schedule == "stage" else 0)


@pytest.mark.parametrize("schedule", ["accumulator", "stage", "destination"])
def test_a_rank_with_few_rows_has_intervals_without_any(rng, comm, stored, schedule):
    """Rank 0 owns the few rows that have most edges; others have several intervals more."""
    target = np.concatenate([np.repeat(np.arange(60), 150), np.arange(60, NODES)])
    path = stored(schedule, graph_of(rng, comm, rng.integers(0, NODES, len(target)), target))
    layers = [examples.GatedGCN(CHANNELS, CHANNELS).double() for _ in range(2)]
    how = Streaming(28 * len(target) + 100_000, copies=True, schedule=schedule)
    cut = same(comm, path, layers, torch.float64, how)
    empty = comm.allgather(int((np.diff(cut.targets) == 0).sum()))
    with mpi.agree(comm):
        assert comm.size == 1 or max(empty) > 1


def test_what_does_not_stream_is_refused(comm, drawn):
    path, edges = drawn(False)
    with opened(comm, path, torch.float32, streaming=ways(None, edges)["in place"]) as graph:
        for name in REFUSED:
            by_row = FORMS[name][1] == TENSORS
            with pytest.raises(InputError, match="a row for each edge" if by_row else "widen it with expand"):
                Form(FORMS[name][0])(graph.x, graph)
    refused = pytest.raises(InputError, match=r"memory .*: 1000 B do not suffice, .* use at least")
    with opened(comm, path, torch.float32, streaming=Streaming(1000, copies=True)) as graph, refused:
        Form(FORMS["typed"][0])(graph.x, graph)
    with pytest.raises(InputError, match="'rows' is not one of accumulator, stage, destination"):
        Streaming(1 << 20, schedule="rows")


@pytest.mark.parametrize("way", ["in place", "copied", "from a file"])
def test_steps_of_deep_models(comm, drawn, tmp_path, way):
    """Rows of one width in each layer, whose stores are used again; and one layer whose weights are frozen."""
    path, edges = drawn(False)
    layers = ModuleList(Vertices(FORMS["weights"][0], "mean") for _ in range(4))
    layers[1].requires_grad_(False)
    start = {name: value.clone() for name, value in layers.state_dict().items()}
    losses = []
    for how in (None, ways(tmp_path, edges)[way]):
        layers.load_state_dict(start)
        learn = torch.optim.SGD([p for p in layers.parameters() if p.requires_grad], lr=3.0)
        with opened(comm, path, torch.float32, streaming=how) as graph:
            for _ in range(3):
                learn.zero_grad()
                loss = loss_of(graph, forward(layers, graph))
                loss.backward()
                learn.step()
                losses.append(loss.item())
    with mpi.agree(comm):
        assert losses[3:] == pytest.approx(losses[:3], rel=1e-5)
        assert len(set(losses[:3])) == 3


@pytest.mark.parametrize("way", ["in place", "copied", "from a file"])
def test_outputs_that_are_dropped_without_backward_leave_nothing(comm, drawn, tmp_path, way):
    """Neither stores nor places of activations, and what is computed later is right."""
    path, edges = drawn(False)
    streaming = ways(tmp_path, edges)[way]
    layers = ModuleList([Vertices(FORMS["gate"][0]), Vertices(FORMS["difference"][0], "max")])
    wanted, gradients, _ = trained(comm, path, layers, torch.float32, streaming)
    layers.zero_grad()
    with opened(comm, path, torch.float32, streaming=streaming) as graph:
        held = []
        for _ in range(4):
            forward(layers, graph)
            held.append((len(graph._stores._taken), len(graph._stores._free), graph.spill._end))
        loss = loss_of(graph, forward(layers, graph))
        loss.backward()
        end = graph.spill._end
    found = summed(comm, layers)
    with mpi.agree(comm):
        assert held[1:] == held[:1] * 3 and held[0][2] == end, held
        assert torch.equal(loss.detach(), wanted)
        assert found.keys() == gradients.keys()
        assert all(torch.equal(found[name], gradients[name]) for name in found)


def several_readers(layers, graph):
    """The sum of the outputs of the first layer, and of the two others, which read it."""
    first = layers[0](graph.x, graph)
    return sum(tensor(each) for each in (layers[1](first, graph), layers[2](first, graph), first))


@pytest.mark.parametrize("way", ["in place", "from a file"])
@pytest.mark.parametrize(
    ("made", "run"),
    [
        (lambda: [Vertices(FORMS[name][0]) for name in ("gate", "difference", "weights")], several_readers),
        # Sums that nothing reads.
        (
            lambda: [
                Form(FORMS["product of sources"][0], vertex=lambda of, v, accum: v * 2),
                Vertices(FORMS["copy"][0]),
            ],
            forward,
        ),
    ],
    ids=["several readers", "no reader"],
)
def test_gradients_are_those_of_all_readers(comm, drawn, tmp_path, made, run, way):
    path, edges = drawn(True)
    layers = [layer.double() for layer in made()]
    same(comm, path, layers, torch.float64, ways(tmp_path, edges)[way], run)


def test_tensors_and_rows_outlive_others(comm, drawn):
    """A tensor of rows stays as it is when their store holds others, and rows that are kept keep their store."""
    path, edges = drawn(False)
    layers = [Vertices(FORMS["copy"][0], "sum") for _ in range(2)]
    streaming = ways(None, edges)["in place"]
    with opened(comm, path, torch.float32, streaming=streaming) as graph, torch.no_grad():
        one = layers[0](graph.x, graph).tensor()
        was = one.clone()
        for _ in range(3):
            kept = layers[0](graph.x, graph)
            other = layers[1](graph.x, graph).tensor()
        with mpi.agree(comm):
            assert torch.equal(one, was)
            assert torch.equal(kept.tensor(), was)
            assert not torch.equal(other, was)
    with pytest.raises(ValueError, match="closed"):
        kept.read(0, 1)
