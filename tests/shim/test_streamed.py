"""Graphs whose rows pass through a GPU that the shim plays: losses and gradients are those of the graph in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cases
import jobs
import numpy as np
import pytest
import torch
from gpu.pes.engine import SMALL, Engine, HostArrays
from mpi4py import MPI

import mgg_hpc as mgg
from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.errors import InputError
from mgg_hpc.nn import saga
from mgg_hpc.nn.streaming import planning
from mgg_hpc.nn.streaming.graph import Streaming
from mgg_hpc.plan import grid
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda import streaming as copies
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer
from mgg_hpc.runtime.streaming.files import FileStore
from mgg_hpc.runtime.streaming.store import HostStore
from mgg_hpc.training import job as job_module

NODES, CHANNELS, TYPES = 500, 32, 3

_spec = importlib.util.spec_from_file_location(
    "saga_programs", Path(__file__).parents[2] / "examples" / "saga_programs.py"
)
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


class MeanOfGates(saga.Layer):
    """A tape whose mean is taken, with gradients of both ends and of weights of edges."""

    accumulator = "mean"

    def __init__(self, columns, out):
        super().__init__()
        self.near, self.far = torch.nn.Linear(columns, out), torch.nn.Linear(columns, out)

    def apply_edge(self, edge):
        return torch.sigmoid(self.near(edge.dst) * edge.weight) * self.far(edge.src)

    def apply_vertex(self, vertex, accum):
        return torch.tanh(accum)


PROGRAMS = {**examples.PROGRAMS, "mean": MeanOfGates}


# Streaming of each kind; and whether copies are made late.
WAYS = {
    "locked memory": (lambda memory, folder: Streaming(memory), True),
    "copies that end at once": (lambda memory, folder: Streaming(memory), False),
    "not ahead": (lambda memory, folder: Streaming(memory, ahead=False), True),
    "a slow store": (lambda memory, folder: Streaming(memory, rate=1e9), True),
    "a file": (lambda memory, folder: Streaming(memory, folder=folder), True),
    "by stages": (lambda memory, folder: Streaming(memory, schedule="stage"), True),
    "by destinations": (lambda memory, folder: Streaming(memory, schedule="destination"), True),
}


@pytest.fixture
def on_gpu(shim, monkeypatch):
    """Has the backend "cuda" be the shim's; returns a function that says when copies are made, and its arrays."""
    engine = Engine.shim(shim.folder / "_cuda.so")
    monkeypatch.setattr(copies, "PIECE", 1 << 10)  # several of each chunk
    monkeypatch.setattr(planning, "CELL_BYTES", 0)  # more than rows, where there are few edges

    def on_gpu(late=True):
        engine.arrays = HostArrays(late=late)
        monkeypatch.setattr(cuda_rank, "hardware", lambda: (engine.module, engine.arrays))
        return engine

    return on_gpu


def drawn(rng, folder, directed):
    """Write a drawn graph; returns its path."""
    source, target = rng.integers(0, NODES, (2, 5 * NODES))
    if not directed:
        source, target = np.append(source, target), np.append(target, source)
    case = cases.csr(source, target, NODES, np.array([0, NODES]))
    row = np.repeat(np.arange(NODES), np.diff(case.indptr))
    weight = (0.5 + (case.indices + row) % 7 / 4).astype(np.float32)
    x = rng.standard_normal((NODES, CHANNELS)).astype(np.float32)
    types = {"type": ((case.indices + row) % TYPES).astype(np.int32)}
    graph = Graph("g", case.indptr, case.indices, weight, x, directed=directed, edge=types)
    path = folder / "g.h5"
    writer.write(path, graph)
    return path


def run(path, layers, backend, streaming):
    """Return the sum of the output's squares, and its gradients; and how rows were cut, if at all."""
    for layer in layers:
        layer.zero_grad()
    with mgg.open(path, backend=backend, dtype="float32", streaming=streaming) as graph:
        x = graph.x
        for layer in layers:
            x = layer(x, graph)
        cut = None if streaming is None else graph.grids.all()[0].forward
        out = x if streaming is None else x.tensor()
        total = out.square().sum() / NODES
        total.backward()
    return total.detach(), [p.grad for layer in layers for p in layer.parameters() if p.grad is not None], cut


def least(path, layers, how):
    """Run with about the least memory that is not refused."""
    memory = 100_000
    while True:
        try:
            return run(path, layers, "cuda", how(memory))
        except InputError as error:
            assert "do not suffice" in str(error) and memory < 2e6
            memory = memory * 9 // 8


@pytest.mark.compiled
@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stream_through_a_gpu(rng, on_gpu, tmp_path, name, way):
    torch.manual_seed(int(rng.integers(2**31)))
    make = PROGRAMS[name]
    layers = [make(CHANNELS, TYPES if name == "gg-nn" else CHANNELS) for _ in range(2)]
    path = drawn(rng, tmp_path, bool(rng.integers(2)))
    how, late = WAYS[way]
    engine, scratch = on_gpu(late), tmp_path / "scratch"
    scratch.mkdir()
    wanted, gradients, _ = run(path, layers, "serial", None)
    found, streamed, cut = least(path, layers, lambda memory: how(memory, scratch))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    assert len(streamed) == len(gradients) > 0
    for one, other in zip(streamed, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * max(1.0, float(other.abs().max())))
    assert len(cut.intervals) > 1 and len(cut.order.sources) > 2
    assert engine.arrays.locked == {} and list(scratch.iterdir()) == []


@pytest.fixture
def backend(on_gpu):
    """The backend of one rank alone."""
    engine = on_gpu()
    return cuda_rank.DeviceBackend(0, World(1), Options(SMALL), engine.module, engine.arrays)


def test_calls_of_a_pass_come_in_order(rng, backend):
    """Calls in another order are refused, and so are buffers that are too small."""
    sources, format = np.array([0, 64, 128]), RowFormat(np.dtype(np.float32), 4)
    plan, other = grid.cell_plans(
        sources, np.arange(0, 31, 3), np.sort(rng.integers(0, 128, 30).reshape(10, 3), 1).reshape(-1)
    )
    store = HostStore(format, 128, rows=rng.standard_normal((128, 4)).astype(np.float32))
    order = grid.replacement(sources, [grid.chunks_of(plan), grid.chunks_of(other)], 2)
    with pytest.raises(
        InputError, match=r"plan.memory: 2 chunks of 64 rows take 8,192 bytes, and there are 4,096"
    ):
        backend.stream_rows(store, order, ChunkBuffer(backend, 4096))
    with pytest.raises(ValueError, match="give a buffer"):
        backend.stream_rows(store, order, None)
    out = backend.memory.padded(10, format)
    with (
        backend.stream_rows(store, order, ChunkBuffer(backend, 8192)) as rows,
        pytest.raises(
            ValueError, match=r"call 0 of this pass takes chunks \[0\], one at most, and the plan has \[1\]"
        ),
    ):
        backend.aggregate(other, "sum", rows, out)


def test_a_file_that_ends_ends_the_call(backend, tmp_path):
    sources, format = np.array([0, 64, 128]), RowFormat(np.dtype(np.float32), 4)
    path = tmp_path / "rows"
    path.write_bytes(bytes(128 * 16))
    store = FileStore.over(path, 0, format, 128)
    path.write_bytes(bytes(100 * 16))
    plans = grid.cell_plans(sources, np.array([0, 2]), np.array([3, 120]))
    order = grid.replacement(sources, [grid.chunks_of(plan) for plan in plans], 2)
    out = backend.memory.padded(1, format)
    with (
        backend.stream_rows(store, order, ChunkBuffer(backend, 8192)) as rows,
        pytest.raises(OSError, match="rows ends at byte 1600"),
    ):
        for plan in plans:
            backend.aggregate(plan, "sum", rows, out)
    store.close()


def test_a_streamed_maximum_asks_for_a_compiler_before_rows_are_read(tmp_path, monkeypatch, on_gpu):
    """CuPy compiles its program; GCN's sums need none."""
    engine = on_gpu()

    def absent(native):
        raise InputError("programs of edges are compiled for the GPU by CuPy")

    monkeypatch.setattr(engine.arrays, "tape_kernels", absent)
    graph = jobs.blocks()
    jobs.write_job(tmp_path, graph, run={"backend": "cuda"}, plan={"memory": "64M"})
    monkeypatch.setattr(job_module, "StreamedGraph", lambda *_: pytest.fail("rows were read"))
    for model, aggr, ends in (("sage", "max", InputError), ("gcn", "mean", pytest.fail.Exception)):
        options = (f"model.name={model}", *([f"model.aggr={aggr}"] if model == "sage" else []))
        with pytest.raises(ends, match="CuPy" if ends is InputError else "rows were read"):
            job_module.build(config.load(tmp_path / "job.toml", options), MPI.COMM_SELF)
