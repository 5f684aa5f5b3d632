"""Programs on graphs that are streamed: losses and gradients are those of the same graph in memory, whichever way rows
come, and on any number of ranks.
"""

from __future__ import annotations

import dataclasses

import cases
import numpy as np
import pytest
import torch
from convolutions import TOLERANCE, drawn_edges
from test_saga_programs import CHANNELS, FORMS, TYPES, Form, examples, summed

import mgg_hpc as mgg
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.nn import saga
from mgg_hpc.nn.streaming.graph import Streaming
from mgg_hpc.plan.ranges import edge_balanced
from mgg_hpc.runtime import exchange, mpi

pytestmark = pytest.mark.mpi

NODES, CLASSES = 900, 4


class Vertices(Form):
    """A form whose vertices have parameters, too."""

    def apply_vertex(self, vertex, accum):
        return torch.tanh(self.near(vertex) + accum)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Rows are computed, and gradients added, in several blocks."""
    monkeypatch.setattr("mgg_hpc.nn.streaming.graph._block_rows", lambda *given: 130)
    monkeypatch.setattr("mgg_hpc.nn.streaming.rows.BLOCK", 70)


@pytest.fixture
def drawn(rng, comm, stored):
    """Write a drawn graph; returns a function from directed, whether edges have data beside their weights, and whether
    features are small whole numbers, to its path and the number of edges of the rank that has most.
    """

    def drawn(directed, of_edges=True, whole=False):
        case = cases.csr(*drawn_edges(rng, NODES, directed=directed), NODES, cases.even(NODES, comm.size))
        edges = len(case.indices)
        data = {
            "type": rng.integers(0, TYPES, edges).astype(np.int32),
            "flow": rng.standard_normal(edges).astype(np.float32),
            "wide": rng.standard_normal((edges, CHANNELS)).astype(np.float32),
        }
        weight = rng.uniform(0.5, 2, edges).astype(np.float32)
        if not directed:  # an edge and its reverse have the same
            rows = np.repeat(np.arange(NODES), np.diff(case.indptr))
            weight = (0.5 + (case.indices + rows) % 7 / 4).astype(np.float32)
        every = np.ones(NODES, bool)
        graph = Graph(
            "g",
            case.indptr,
            case.indices,
            weight,
            (
                rng.integers(-1, 2, (NODES, CHANNELS)) if whole else rng.standard_normal((NODES, CHANNELS))
            ).astype(np.float32),
            rng.integers(0, CLASSES, NODES),
            classes=CLASSES,
            train=every,
            val=~every,
            test=~every,
            directed=directed,
            edge=data if of_edges else {},
        )
        return stored(f"{directed} {int(rng.integers(1 << 40))}", graph), int(
            np.diff(case.indptr[edge_balanced(case.indptr, comm.size)]).max()
        )

    return drawn


def trained(comm, path, layers, dtype, streaming):
    """Run layers forward and backward; returns the loss, the gradients of all ranks, and how rows were cut."""
    for layer in layers:
        layer.zero_grad()
    backend = "serial" if comm.size == 1 else "shm"
    with mgg.open(
        path, backend=backend, dtype=str(dtype).removeprefix("torch."), streaming=streaming
    ) as graph:
        x = graph.x
        for layer in layers:
            x = layer(x, graph)
        cut = None
        if streaming is not None:
            cut = graph.all_grids()[0].forward
            x = x.tensor()
        loss = graph.loss(x[:, :CLASSES], torch.nn.functional.cross_entropy)
        loss.backward()
        parameters = [p for layer in layers for p in layer.parameters() if p.grad is not None]
        return loss.detach(), [summed(comm, p.grad).reshape(p.shape) for p in parameters], cut


def same(comm, path, layers, dtype, streaming):
    """Compare a run that is streamed with one in memory. Returns how rows were cut."""
    loss, gradients, _ = trained(comm, path, layers, dtype, None)
    streamed, found, cut = trained(comm, path, layers, dtype, streaming)
    with mpi.agree(comm):
        torch.testing.assert_close(streamed, loss, rtol=4 * TOLERANCE[dtype], atol=0)
        assert len(found) == len(gradients)
        for one, other in zip(found, gradients, strict=True):
            bound = 8 * TOLERANCE[dtype] * max(1.0, float(other.abs().max()))
            torch.testing.assert_close(one, other, rtol=0, atol=bound)
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
def test_the_papers_programs_stream(rng, comm, drawn, tmp_path_factory, name, way):
    torch.manual_seed(int(rng.integers(2**31)))
    folder = tmp_path_factory.mktemp("scratch")
    make = examples.PROGRAMS[name]
    layers = [make(CHANNELS, TYPES if name == "gg-nn" else CHANNELS) for _ in range(2)]
    directed = bool(rng.integers(2))
    path, edges = drawn(directed)
    dtype = (torch.float64, torch.float32)[int(rng.integers(2))]
    same(comm, path, [layer.to(dtype) for layer in layers], dtype, ways(folder, edges)[way])
    assert list(folder.iterdir()) == []


REFUSED = ("product of both", "softmax", "dot", "typed targets", "gate of one")


@pytest.mark.parametrize("name", [name for name in FORMS if name not in REFUSED])
def test_forms_of_messages_stream(rng, comm, drawn, name):
    accumulator = ("sum", "mean", "max")[int(rng.integers(3))]
    torch.manual_seed(int(rng.integers(2**31)))
    path, edges = drawn(bool(rng.integers(2)))
    layers = [Vertices(FORMS[name][0], accumulator).double() for _ in range(2)]
    columns = 1 + CHANNELS if name == "data in a gate" else 1
    same(
        comm,
        path,
        layers,
        torch.float64,
        ways(None, edges, columns)["copied" if rng.integers(2) else "in place"],
    )


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max"])
@pytest.mark.parametrize("directed", [False, True])
def test_weights_stream_without_other_data_of_edges(rng, comm, drawn, directed, accumulator):
    """Also where a layer that reads none of them came before, whose grid has no values of edges."""
    torch.manual_seed(int(rng.integers(2**31)))
    path, edges = drawn(directed, of_edges=False)
    forms = (lambda of, e: of.far(e.src), lambda of, e: of.far(e.src) * e.weight)
    layers = [Vertices(form, accumulator).double() for form in (*forms, FORMS["gate"][0])]
    same(comm, path, layers, torch.float64, ways(None, edges)["copied"])


class Whole(Form):
    """A form whose rows stay whole numbers."""

    def apply_vertex(self, vertex, accum):
        return accum - self.near(vertex)


class Unweighted(Form):
    """A form whose vertices have no parameters."""

    def apply_vertex(self, vertex, accum):
        return accum


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
    layer, found = Unweighted(lambda of, e: torch.log(torch.relu(e.src)), "max"), []
    layer.double()
    for streaming in (None, ways(None, edges)["by destinations"]):
        backend = "serial" if comm.size == 1 else "shm"
        with mgg.open(path, backend=backend, dtype="float64", streaming=streaming) as graph, torch.no_grad():
            out = layer(graph.x, graph)
            found.append(out if streaming is None else out.tensor())
            cut = graph.all_grids()[0].forward if streaming is not None else None
    with mpi.agree(comm):
        assert len(cut.plans) > len(cut.targets) - 1 and torch.equal(*found)
        assert comm.size > 1 or {-torch.inf, 0.0} == set(found[0].unique().tolist())


def test_grids_have_what_layers_read(rng, comm, drawn, monkeypatch):
    """An undirected graph has one direction until a layer reads data of edges, which cross between ranks once."""
    path, edges = drawn(False)
    plain, gated = (Vertices(FORMS[name][0]) for name in ("product of sources", "data in a gate"))
    backend, how = "serial" if comm.size == 1 else "shm", ways(None, edges, 1 + CHANNELS)["in place"]
    with mgg.open(path, backend=backend, dtype="float32", streaming=how) as graph:
        plain(graph.x, graph)
        (made,) = graph.all_grids()
        with mpi.agree(comm):
            assert made.backward is made.forward
        gated(graph.x, graph)
        (made,) = graph.all_grids()
        monkeypatch.setattr(exchange.Crossing, "carry", None)
        for layer in (gated, plain):
            layer(graph.x, graph)
        with mpi.agree(comm):
            assert made.backward is not made.forward
            assert graph.all_grids() == [made]
        with pytest.raises(ValueError, match="no order in an adjacency of kind 'gcn'"):
            Form(FORMS["data"][0], kind="gcn")(graph.x, graph)


def test_chained_ranks_end_intervals_together(rng, comm, stored):
    """Rank 0 has edges in the first chunk alone, others in all chunks, for which they wait for rank 0."""
    rows = NODES // comm.size
    target = np.repeat(np.arange(NODES), 3)
    source = rng.integers(0, np.where(target < rows, 64, NODES))
    case = cases.csr(source, target, NODES, cases.even(NODES, comm.size))
    x = rng.standard_normal((NODES, CHANNELS)).astype(np.float32)
    every = np.ones(NODES, bool)
    graph = Graph(
        "apart",
        case.indptr,
        case.indices,
        x=x,
        y=rng.integers(0, CLASSES, NODES),
        classes=CLASSES,
        train=every,
        val=~every,
        test=~every,
        directed=True,
    )
    layers = [examples.GatedGCN(CHANNELS, CHANNELS)]
    how = Streaming(28 * len(target) + 30_000, rate=1e9, schedule="destination")
    cut = same(comm, stored("apart", graph), layers, torch.float32, how)
    with mpi.agree(comm):
        assert len(cut.order.sources) >= 4


def test_one_rank_reads_slow_stores(comm, drawn, monkeypatch):
    """Whatever the bandwidth of memory, which is not measured for them."""
    monkeypatch.setattr("mgg_hpc.nn.streaming.graph.copy_bandwidth", None)
    path, edges = drawn(False)
    layer, how = examples.GatedGCN(CHANNELS, CHANNELS), Streaming(plans(edges) + 100_000, rate=1e9)
    with mgg.open(path, backend="serial" if comm.size == 1 else "shm", streaming=how) as graph:
        graph.backend.stream.meter.taken()
        layer(graph.x, graph)
        read = comm.allgather(graph.backend.stream.meter.stored_bytes > 0)
        with mpi.agree(comm):
            assert read == [True] + [False] * (comm.size - 1)


def test_small_memory_cuts_many_intervals(rng, comm, drawn):
    path, edges = drawn(True)
    layers = [examples.GatedGCN(CHANNELS, CHANNELS) for _ in range(2)]
    for streaming in (Streaming(plans(edges) + 40_000), Streaming(plans(edges) + 40_000, copies=True)):
        cut = same(comm, path, layers, torch.float32, streaming)
        with mpi.agree(comm):
            assert len(cut.plans) >= 2 or comm.size > 1
            assert len(cut.order.sources) - 1 > 1 or not streaming.copies


def swapped(direction, edges):
    """Rows of sums that leave memory or return, where those of one interval fit: cell after cell, as they come."""
    indptr, indices = edges
    row, chunks = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), len(direction.order.sources) - 1
    counts = np.histogram2d(row, indices, [direction.targets, direction.order.sources])[0].astype(int)
    size, left = np.diff(direction.targets), counts.sum(1)
    done, inside, moved = np.zeros(len(size), int), None, 0
    for chunk in range(chunks):
        for target in range(len(size))[:: 1 if chunk % 2 == 0 else -1]:
            if not counts[target, chunk]:
                continue
            if inside != target:
                if inside is not None and done[inside] < left[inside]:
                    moved += size[inside]
                if done[target]:
                    moved += size[target]
            inside = target
            done[target] += counts[target, chunk]
    return moved, sum(
        direction.order.sources[k + 1] - direction.order.sources[k]
        for k in range(chunks)
        if counts[:, k].any()
    )


def test_schedules_move_what_they_say(rng, comm, drawn):
    """Sums stay in NGra's schedule, leave memory and return once by stages, and for each chunk in the other order."""
    path, edges = drawn(False)
    layer = examples.GatedGCN(CHANNELS, CHANNELS)
    backend = "serial" if comm.size == 1 else "shm"
    for schedule in ("accumulator", "stage", "destination"):
        how = Streaming(plans(edges, directions=1) + 40_000, copies=True, schedule=schedule, chains="none")
        with mgg.open(path, backend=backend, dtype="float32", streaming=how) as graph:
            meter = graph.backend.stream.meter
            meter.taken()
            layer(graph.x, graph).tensor().sum().backward()
            (made,) = graph.all_grids()
            wide, wanted = 4 * 2 * CHANNELS, 0  # sums and derivatives; gradients of both values of sources
            if schedule == "stage":
                wanted = 2 * graph.rows * 4 * (CHANNELS + 2 * CHANNELS)  # derivatives are kept
            if schedule == "destination":
                edges_of = graph.part.slice
                rows, loaded = swapped(made.forward, (edges_of.indptr, edges_of.indices))
                wanted = 2 * rows * wide
                assert meter.stored_bytes == 2 * loaded * wide
                with mpi.agree(comm):
                    assert comm.size > 1 or rows > 5 * NODES
            with mpi.agree(comm):
                assert graph.swapped == wanted
    with pytest.raises(InputError, match="'rows' is not one of accumulator, stage, destination"):
        Streaming(1 << 20, schedule="rows")


@pytest.mark.parametrize("schedule", ["accumulator", "stage", "destination"])
def test_a_rank_with_few_rows_has_intervals_without_any(rng, comm, stored, schedule):
    """Rank 0 owns the few rows that have most edges; others have several intervals more."""
    targets = np.concatenate([np.repeat(np.arange(60), 150), np.arange(60, NODES)])
    case = cases.csr(rng.integers(0, NODES, len(targets)), targets, NODES, cases.even(NODES, comm.size))
    every = np.ones(NODES, bool)
    graph = Graph(
        "g",
        case.indptr,
        case.indices,
        x=rng.standard_normal((NODES, CHANNELS)).astype(np.float32),
        y=rng.integers(0, CLASSES, NODES),
        classes=CLASSES,
        train=every,
        val=~every,
        test=~every,
        directed=True,
    )
    layers = [examples.GatedGCN(CHANNELS, CHANNELS).double() for _ in range(2)]
    how = Streaming(28 * len(targets) + 100_000, copies=True, schedule=schedule)
    cut = same(comm, stored(schedule, graph), layers, torch.float64, how)
    empty = comm.allgather(int((np.diff(cut.targets) == 0).sum()))
    with mpi.agree(comm):
        assert comm.size == 1 or max(empty) > 1


def test_what_does_not_stream_is_refused(comm, drawn):
    path, edges = drawn(False)
    backend = "serial" if comm.size == 1 else "shm"
    with mgg.open(path, backend=backend, streaming=ways(None, edges)["in place"]) as graph:
        for name in REFUSED:
            by_row = name in ("product of both", "softmax")
            with pytest.raises(InputError, match="a row for each edge" if by_row else "widen it with expand"):
                Form(FORMS[name][0])(graph.x, graph)
    layer = Form(lambda of, e: saga.typed_linear(e.src, of.types, e.data["type"]))
    refused = pytest.raises(InputError, match=r"memory .*: 1000 B do not suffice, .* use at least")
    with mgg.open(path, backend=backend, streaming=Streaming(1000, copies=True)) as graph, refused:
        layer(graph.x, graph)


@pytest.mark.parametrize("way", ["in place", "copied", "from a file"])
def test_steps_of_deep_models(rng, comm, drawn, tmp_path_factory, way):
    """Rows of one width in each layer, whose stores are used again; and one layer whose weights are frozen."""
    torch.manual_seed(int(rng.integers(2**31)))
    path, edges = drawn(False)
    streaming = ways(comm.bcast(tmp_path_factory.mktemp("scratch")), edges)[way]
    layers = [Vertices(FORMS["weights"][0], "mean") for _ in range(4)]
    layers[1].requires_grad_(False)
    backend, losses = "serial" if comm.size == 1 else "shm", {}
    start = [{name: value.clone() for name, value in layer.state_dict().items()} for layer in layers]
    for name, how in (("memory", None), ("stream", streaming)):
        for layer, state in zip(layers, start, strict=True):
            layer.load_state_dict(state)
        learn = torch.optim.SGD(
            [p for layer in layers for p in layer.parameters() if p.requires_grad], lr=3.0
        )
        losses[name] = []
        with mgg.open(path, backend=backend, streaming=how) as graph:
            for _ in range(3):
                learn.zero_grad()
                x = graph.x
                for layer in layers:
                    x = layer(x, graph)
                out = x if how is None else x.tensor()
                loss = graph.loss(out[:, :CLASSES], torch.nn.functional.cross_entropy)
                loss.backward()
                for layer in layers:
                    mgg.allreduce_gradients(layer)
                learn.step()
                losses[name].append(loss.item())
    with mpi.agree(comm):
        assert losses["stream"] == pytest.approx(losses["memory"], rel=1e-5)
        assert len(set(losses["memory"])) == 3


@pytest.mark.parametrize("way", ["in place", "copied", "from a file"])
def test_outputs_that_are_dropped_without_backward_leave_nothing(rng, comm, drawn, tmp_path_factory, way):
    """Neither stores nor places of activations, and what is computed later is right."""
    torch.manual_seed(int(rng.integers(2**31)))
    path, edges = drawn(False)
    streaming = ways(comm.bcast(tmp_path_factory.mktemp("scratch")), edges)[way]
    layers = [Vertices(FORMS["gate"][0]), Vertices(FORMS["difference"][0], "max")]
    wanted, gradients, _ = trained(comm, path, layers, torch.float32, streaming)
    for layer in layers:
        layer.zero_grad()
    held = []
    with mgg.open(path, backend="serial" if comm.size == 1 else "shm", streaming=streaming) as graph:
        for _ in range(4):
            x = graph.x
            for layer in layers:
                x = layer(x, graph)
            del x
            held.append((len(graph._stores._leases), len(graph._stores._free), graph.spill._end))
        x = graph.x
        for layer in layers:
            x = layer(x, graph)
        loss = graph.loss(x.tensor()[:, :CLASSES], torch.nn.functional.cross_entropy)
        loss.backward()
        held.append((held[-1][0], graph.spill._end))
    found = [
        summed(comm, p.grad).reshape(p.shape)
        for layer in layers
        for p in layer.parameters()
        if p.grad is not None
    ]
    with mpi.agree(comm):
        assert held[1:4] == held[:1] * 3 and held[0][2] == held[-1][1], held
        assert torch.equal(loss.detach(), wanted)
        assert all(map(torch.equal, found, gradients))


@pytest.mark.parametrize("way", ["in place", "from a file"])
def test_rows_with_several_readers_get_the_gradients_of_all(rng, comm, drawn, tmp_path_factory, way):
    """Two layers and the loss read the output of the first."""
    torch.manual_seed(int(rng.integers(2**31)))
    path, edges = drawn(True)
    streaming = ways(comm.bcast(tmp_path_factory.mktemp("scratch")), edges)[way]
    layers = [Vertices(FORMS[name][0]).double() for name in ("gate", "difference", "weights")]
    found = []
    for how in (None, streaming):
        for layer in layers:
            layer.zero_grad()
        with mgg.open(
            path, backend="serial" if comm.size == 1 else "shm", dtype="float64", streaming=how
        ) as graph:
            first = layers[0](graph.x, graph)
            read = [layers[1](first, graph), layers[2](first, graph), first]
            sums = sum(each if how is None else each.tensor() for each in read)
            graph.loss(sums[:, :CLASSES], torch.nn.functional.cross_entropy).backward()
        parameters = [p for layer in layers for p in layer.parameters() if p.grad is not None]
        found.append([summed(comm, p.grad).reshape(p.shape) for p in parameters])
    with mpi.agree(comm):
        for one, other in zip(*found, strict=True):
            bound = 8 * TOLERANCE[torch.float64] * max(1.0, float(one.abs().max()))
            torch.testing.assert_close(one, other, rtol=0, atol=bound)


class Unread(Form):
    """A form whose vertices do not read what they gather."""

    def apply_vertex(self, vertex, accum):
        return vertex * 2


def test_sums_that_nothing_reads(comm, drawn):
    path, edges = drawn(False)
    layers = [Unread(FORMS["product of sources"][0], "sum"), Vertices(FORMS["copy"][0], "sum")]
    layers = [layer.double() for layer in layers]
    loss, gradients, _ = trained(comm, path, layers, torch.float64, None)
    streamed, found, _ = trained(comm, path, layers, torch.float64, ways(None, edges)["in place"])
    unread, read = found[: -len(gradients)], found[-len(gradients) :]  # in memory the first layer has none
    with mpi.agree(comm):
        torch.testing.assert_close(streamed, loss)
        assert all(not each.any() for each in unread)
        for one, other in zip(read, gradients, strict=True):
            torch.testing.assert_close(one, other)


def test_tensors_and_rows_outlive_others(rng, comm, drawn):
    """A tensor of rows stays as it is when their store holds others, and rows that are kept keep their store."""
    path, edges = drawn(False)
    backend = "serial" if comm.size == 1 else "shm"
    layers = [Vertices(FORMS["copy"][0], "sum") for _ in range(2)]
    with mgg.open(path, backend=backend, streaming=ways(None, edges)["in place"]) as graph, torch.no_grad():
        one = layers[0](graph.x, graph).tensor()
        was = one.clone()
        kept = layers[0](graph.x, graph)
        for _ in range(3):
            kept = layers[0](graph.x, graph)
            other = layers[1](graph.x, graph).tensor()
        with mpi.agree(comm):
            assert torch.equal(one, was)
            assert torch.equal(kept.tensor(), was)
            assert not torch.equal(other, was)
    with pytest.raises(ValueError, match="closed"):
        kept.read(0, 1)
