"""Tapes on the GPU that the host plays: interpreted, and compiled from their source, against float64 and in layers."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cases
import jobs
import numpy as np
import pytest
import torch
from gpu.pes import table
from gpu.pes import tape_programs as tapes
from gpu.pes.engine import SMALL
from gpu.pes.played import Played
from gpu.pes.tapes import propagated
from tiers import drawn

import mgg_hpc as mgg
from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda.tapes import source
from mgg_hpc.runtime.backends.cuda.tapes.kernels import CupyKernels
from mgg_hpc.runtime.backends.tape import Output, Step, Tape, Value

from .compiled import HostKernels

_spec = importlib.util.spec_from_file_location(
    "saga_programs", Path(__file__).parents[3] / "examples" / "saga_programs.py"
)
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


@pytest.fixture
def compiling(shim, engine, monkeypatch):
    """What compiles tapes for the engine."""
    made = HostKernels(shim.folder / "_cuda.so", engine.module)
    monkeypatch.setattr(engine.arrays, "tape_kernels", lambda: made)
    return made


def check(engine, given, rng, dtype="float32"):
    """A tape over two cases and numbers of PEs that are drawn, by pointers and over a halo."""
    for halo in (False, True):
        name = str(rng.choice(list(cases.CASES)))
        entry = table.Entry("propagate", dtype, 0, name)
        case = cases.CASES[name](rng, int(rng.integers(1, 4)))
        propagated(engine, case, entry, rng, halo=halo, given=given)


@pytest.mark.sampled
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("columns", tapes.WIDTHS)
@pytest.mark.parametrize("way", tapes.WAYS)
@pytest.mark.parametrize("program", tapes.PROGRAMS)
def test_a_tape_is_interpreted(rng, engine, program, way, columns, reduce):
    check(engine, tapes.tape(program, way, columns, reduce), rng, str(rng.choice(table.DTYPES)))


# Each program, way, type of rows, and number of columns of a lane; several passes with sums over columns and without.
COMPILED = [
    ("gated", "forward", 33, "mean", "float32"),
    ("gated", "sources", 5, "sum", "float16"),
    ("typed", "sources", 40, "sum", "bfloat16"),
    ("of type", "sources", 9, "sum", "float32"),
    ("scored", "targets", 16, "sum", "float32"),
    ("twice scored", "targets", 300, "sum", "float32"),
    ("every operator", "forward", 129, "sum", "float32"),
    ("largest", "forward", 64, "sum", "float32"),
]


@pytest.mark.compiled
def test_a_tape_is_compiled(rng, engine, compiling):
    """All at once, since most of the time goes to the compiler."""
    drawn = [(tapes.tape(*words), dtype) for *words, dtype in COMPILED]
    compiling.compile_all([source.source(given.tape, dtype).text for given, dtype in drawn])
    for given, dtype in drawn:
        before = compiling.launches
        for _ in range(20):  # cases without rows launch nothing
            check(engine, given, rng, dtype)
            if compiling.launches > before:
                break
        assert compiling.launches > before


# A text of the source's fixed part, what replaces it, and the tape that shows it.
FAULTS = {
    "parts of a hub that are merged too soon": ("if (before != 1) return false;", "", COMPILED[0]),
    "typed columns that are not cleared": ("[c] = 0.0f; });", "[c] += 0.0f; });", COMPILED[2]),
    "an edge that is left out": ("count = u + 1;", "count = u;", COMPILED[0]),
    "a sum over some lanes": ("int other = LANES / 2;", "int other = LANES / 4;", COMPILED[4]),
    "ties that are not added": ("same ? to + value(o) : to", "to", COMPILED[-1]),
}


@pytest.mark.compiled
@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_source_is_found(rng, engine, compiling, monkeypatch, name):
    old, new, (*words, dtype) = FAULTS[name]
    given, parts = tapes.tape(*words), ("DEVICE", "WORKER", "KERNEL")
    assert sum(getattr(source.text, part).count(old) for part in parts) == 1
    for part in parts:
        monkeypatch.setattr(source.text, part, getattr(source.text, part).replace(old, new))
    entry = table.Entry("propagate", dtype, 0, "hub")
    with pytest.raises((AssertionError, RuntimeError)):
        for _ in range(20):
            propagated(engine, cases.hub(rng, 2), entry, rng, given=given)


@pytest.mark.compiled
@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "way", "columns", "reduce"),
    drawn(itertools.product(tapes.PROGRAMS, tapes.WAYS, tapes.WIDTHS, ["sum", "mean"]), 8),
)
def test_any_tape_is_compiled(rng, engine, compiling, program, way, columns, reduce):
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
            mgg.allreduce_gradients(net)
            descent.step()
            found.append(float(loss.detach()))
    return found


@pytest.mark.compiled
def test_programs_have_the_losses_of_the_cpu(engine, compiling, monkeypatch, tmp_path):
    """Layers that are programs on edges, whoever runs their tapes."""
    graph, path = jobs.directed_weighted(60), tmp_path / "graph.h5"
    types = np.random.default_rng(1).integers(0, 2, len(graph.indices)).astype(np.float32)
    writer.write(path, replace(graph, edge={"type": types}))
    monkeypatch.setattr(cuda_rank, "hardware", lambda: (engine.module, engine.arrays))
    for program in ("gated-gcn", "gg-nn", "max-pooling"):
        cpu = losses(path, program, "serial")
        assert cpu[-1] < cpu[0]
        for kernels in (None, compiling):
            monkeypatch.setattr(engine.arrays, "tape_kernels", lambda kernels=kernels: kernels)
            np.testing.assert_allclose(losses(path, program, "cuda"), cpu, rtol=1e-5)
    assert compiling.launches


def propagate(backend, plan, rows, tape, *, near=(), shared=None, edge=None):
    out = [np.zeros((plan.destinations, output.width), np.float32) for output in tape.outputs]
    shared = np.zeros(0, np.float32) if shared is None else shared
    backend.edges.propagate(plan, tape, rows, near=near, shared=shared, out=out, edge=edge)


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


@pytest.mark.compiled
def test_a_tape_that_is_too_large_is_compiled_or_refused(engine, played, compiling):
    for tape in (wide(3, 129), wide(63, 63)):
        played[0].tape_kernels = compiling
        propagate(*played, tape)
        assert compiling.launches
        played[0].tape_kernels = None
        message = f"with {tape.registers} registers of columns and {len(tape.steps)} steps is too large .* install CuPy"
        if tape.registers == 63:
            propagate(*played, tape)  # fits
        else:
            with pytest.raises(InputError, match=message):
                propagate(*played, tape)
    with pytest.raises(InputError, match="with 100 registers"):
        played[0].tape_kernels = None
        propagate(*played, wide(100, 100))


def test_what_is_not_compiled_is_interpreted(played):
    played[0].tape_kernels = SimpleNamespace(load=lambda text: False)
    propagate(*played, wide(2, 3))


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
    """Beside a CuPy that is not there: a source that it refuses is interpreted, with a warning."""

    class CompileError(Exception):
        pass

    launched, made = [], []

    class Kernel:
        def compile(self):
            if made[-1]["code"] == "wrong":
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
    kernels = CupyKernels(
        SimpleNamespace(RawModule=module, cuda=SimpleNamespace(compiler=compiler, Stream=Stream))
    )
    assert kernels.load("right") and kernels.load("right")
    assert made == [{"code": "right", "options": ("-std=c++17",)}]
    kernels.launch("right", np.arange(3, dtype=np.uint64), 7, 99)
    stream, (grid, block, (struct,)) = launched
    assert (stream, grid, block) == ((0, 99), (7,), (256,))
    assert struct.size == 1 and struct.tobytes() == np.arange(3, dtype=np.uint64).tobytes()
    with pytest.warns(UserWarning, match="interpreted, since CuPy did not compile one: no$"):
        assert not kernels.load("wrong")
    assert not kernels.load("wrong") and len(made) == 2
