"""Tapes on the GPU that the host plays, against float64 and in layers."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cases
import jobs
import numpy as np
import pytest
import torch
from builds import COMPILING
from gpu.pes import table
from gpu.pes import tape_programs as tapes
from gpu.pes.engine import SMALL
from gpu.pes.played import Played
from gpu.pes.tapes import FIXED, propagated, source_of
from tiers import drawn

import mgg_hpc as mgg
from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import edges as device_edges
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda.tape_kernels import OPTIONS, TapeKernels
from mgg_hpc.runtime.backends.edges import TapeArrays
from mgg_hpc.runtime.backends.tape import Output, Step, Tape, Value

from .build import CUDA
from .host_kernels import HostKernels, compile_all

_spec = importlib.util.spec_from_file_location(
    "saga_programs", Path(__file__).parents[2] / "examples" / "saga_programs.py"
)
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


@pytest.fixture
def kernels(engine):
    """The compiler of the engine's tapes."""
    return engine.arrays.tape_kernels(engine.module)


def check(engine, given, rng, dtype="float32"):
    """A tape over two cases and numbers of PEs that are drawn, by pointers and over a halo."""
    for halo in (False, True):
        name = str(rng.choice(list(cases.CASES)))
        entry = table.Entry("propagate", dtype, 0, name)
        case = cases.CASES[name](rng, int(rng.integers(1, 4)))
        propagated(engine, case, entry, rng, halo=halo, given=given)


@pytest.mark.compiled
def test_tapes_of_each_kind(rng, engine, kernels):
    """Compiled all at once, since most of the time goes to the compiler."""
    if COMPILING in os.environ:
        compile_all(Path(engine.module.__file__), [source_of(*fixed).text for fixed in FIXED])
    for *words, dtype in FIXED:
        before = kernels.launches
        for _ in range(20):  # cases without rows launch nothing
            check(engine, tapes.tape(*words), rng, dtype)
            if kernels.launches > before:
                break
        assert kernels.launches > before


# A text of tape.cuh or of the tape's own source, what replaces it, and the tape that shows it.
FAULTS = {
    "typed columns that are not cleared": ("row(state.slot, o)[c] = 0.0f; });", "});", FIXED[2]),
    "typed columns of the first part of a hub alone": ("row(slot, o)[c] = total(o, c); });", "});", FIXED[2]),
    "columns of the type of another edge": ("call.edge[edge * call", "call.edge[0 * call", FIXED[2]),
    "an edge that is left out": (
        "if (e >= batch.count) break;",
        "if (e + 1 >= batch.count) break;",
        FIXED[0],
    ),
    "ties that are not added": ("same ? to + value(o) : to", "to", FIXED[-1]),
    "a sum over the columns of one pass": ("if (has(at, pass, i)) total +=", "total =", FIXED[5]),
}


@pytest.mark.compiled
@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_source_is_found(rng, engine, monkeypatch, name):
    old, new, (*words, dtype) = FAULTS[name]
    header = (CUDA / "gpu" / "edges" / "tape.cuh").read_text()
    made = source_of(*words, dtype)
    assert header.count(old) + (old in made.text) == 1
    kernels = HostKernels(engine.module)
    kernels.headers = header.replace(old, new)
    monkeypatch.setattr(engine.arrays, "tape_kernels", lambda native: kernels)
    faulty = replace(made, text=made.text.replace(old, new))
    monkeypatch.setattr(device_edges, "tape_source", lambda tape, kind: faulty)
    entry = table.Entry("propagate", dtype, 0, "hub")
    with pytest.raises((AssertionError, RuntimeError)):
        for _ in range(20):
            propagated(engine, cases.hub(rng, 2), entry, rng, given=tapes.tape(*words))


@pytest.mark.compiled
@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "way", "columns", "reduce"),
    drawn(itertools.product(tapes.PROGRAMS, tapes.WAYS, tapes.WIDTHS, ["sum", "mean"]), 8),
)
def test_any_tape(rng, engine, program, way, columns, reduce):
    check(engine, tapes.tape(program, way, columns, reduce), rng, str(rng.choice(table.DTYPES)))


def losses(path, program, backend):
    """Return the losses of a few epochs."""
    mgg.manual_seed(1)
    torch.manual_seed(1)
    found = []
    with mgg.open(path, backend=backend) as graph:
        net = examples.Net(program, graph.num_features, 9, graph.num_classes, 2)
        descent = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            descent.zero_grad()
            loss = graph.loss(net(graph), torch.nn.functional.cross_entropy)
            loss.backward()
            descent.step()
            found.append(float(loss.detach()))
    return found


@pytest.mark.compiled
def test_programs_have_the_losses_of_the_cpu(engine, kernels, monkeypatch, tmp_path):
    """Layers that are programs on edges."""
    graph, path = jobs.directed_weighted(60), tmp_path / "graph.h5"
    types = np.random.default_rng(1).integers(0, 2, len(graph.indices)).astype(np.float32)
    writer.write(path, replace(graph, edge={"type": types}))
    monkeypatch.setattr(cuda_rank, "hardware", lambda: (engine.module, engine.arrays))
    for program in ("gated-gcn", "gg-nn", "max-pooling"):
        cpu = losses(path, program, "serial")
        assert cpu[-1] < cpu[0]
        np.testing.assert_allclose(losses(path, program, "cuda"), cpu, rtol=1e-5)
    assert kernels.launches


def propagate(backend, plan, rows, tape, *, near=(), shared=None, edge=None):
    out = [np.zeros((plan.destinations, output.width), np.float32) for output in tape.outputs]
    shared = np.zeros(0, np.float32) if shared is None else shared
    backend.edges.propagate(plan, tape, rows, TapeArrays(list(near), shared, out, edge))


@pytest.fixture
def played(rng, engine):
    case = cases.ordinary(rng, 1)
    made = Played(engine, case, rng.standard_normal((case.nodes, 5)).astype(np.float32), SMALL)
    return made.backends[0], made.plans[0], made.rows[0]


def wide(count: int, steps: int, far: int = 5) -> Tape:
    """So many registers of 5 columns, and steps that add to them."""
    values = [Value("far", 0), *(Value("wide", i) for i in range(count))]
    made = [Step("add_value", 1 + i % count, 0, value=1.0) for i in range(steps)]
    return Tape(5, far, values, made, [Output(1, 5)], count)


def test_bad_tapes_are_named(played):
    few = np.zeros((played[1].destinations, 3), np.float32)
    edge = np.zeros((played[1].edges, 1), np.float32)
    x = Value("far", 0)
    for message, tape, more in (
        ("propagate: rows of 5 values; expected 6", wide(1, 1, 6), {}),
        ("rows have too few columns", Tape(5, 5, [Value("far", 1)], [], [Output(0, 5)], 0), {}),
        ("no such array", Tape(5, 5, [Value("near", 1)], [], [Output(0, 5)], 0), {"near": [few]}),
        ("too few shared", Tape(5, 5, [Value("shared", 0)], [], [Output(0, 5)], 0), {}),
        ("no such data of edges", Tape(5, 5, [Value("far", 0, 1)], [], [Output(0, 5)], 0), {"edge": edge}),
        ("no such register", Tape(5, 5, [x, Value("wide", 1)], [], [Output(1, 5)], 1), {}),
        ("no such value", Tape(5, 5, [x], [Step("exp", 1, 0)], [Output(0, 5)], 0), {}),
        ("another width", Tape(5, 5, [x], [], [Output(0, 4)], 0), {}),
        ("another width", Tape(5, 5, [x], [], [Output(0, 1)], 0, "max"), {}),
        ("shared: float64", wide(1, 1), {"shared": np.zeros(3)}),
    ):
        with pytest.raises(ValueError, match=message):
            propagate(*played, tape, **more)


def test_cupy_compiles_once_and_is_given_a_struct():
    """With an object in the place of CuPy."""

    class CompileError(Exception):
        pass

    launched, made = [], []

    class Kernel:
        def compile(self):
            if made[-1]["code"] == "headers wrong":
                raise CompileError("no\nmore")

        def __call__(self, *given):
            launched.append(given)

    class Stream:
        @staticmethod
        def from_external(stream):
            launched.append(stream.__cuda_stream__())
            return contextlib.nullcontext()

    def module(**given):
        made.append(given)
        return SimpleNamespace(get_function=lambda name: Kernel() if name == "mgg_tape" else None)

    compiler = SimpleNamespace(CompileException=CompileError)
    kernels = TapeKernels(
        SimpleNamespace(RawModule=module, cuda=SimpleNamespace(compiler=compiler, Stream=Stream)), "headers "
    )
    kernels.load("right")
    kernels.load("right")
    assert made == [{"code": "headers right", "options": OPTIONS}]
    kernels.launch("right", bytes(range(24)), 7, 99)
    stream, (grid, block, (struct,)) = launched
    assert (stream, grid, block) == ((0, 99), (7,), (256,))
    assert struct.size == 1 and struct.tobytes() == bytes(range(24))
    with pytest.raises(InputError, match=r"did not compile a program of edges: no$"):
        kernels.load("wrong")


def test_without_cupy_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"do not load .*: pip install cupy-cuda13x nvidia-cuda-nvrtc$"):
        TapeKernels.by_cupy("")
