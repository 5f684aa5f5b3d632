"""Programs fused, with tensors of edges, and in other libraries: times, and the memory that a step takes.

A step is a forward and a backward pass, with gradients of the rows and all weights. All forms of each library take
turns, and the one with the least median stands for it. A turn is a few steps in a row, as training takes them, and
their median. Memory is what the process of a form holds at the peak of its first step, beyond what it held before: the
graph, in the library's forms, rows, weights and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, graphs, libraries, timing
from mgg_hpc.tools.bench.harness.document import Sheet
from mgg_hpc.tools.bench.harness.libraries import Libraries
from mgg_hpc.tools.bench.harness.options import BenchOptions
from mgg_hpc.tools.bench.harness.timing import Worker

IN_A_ROW = 3  # steps of a turn, after the first of which threads are awake
OURS = "mgg_hpc.tools.bench.baselines.programs.ours"
MODULES = {"dgl": "programs.with_dgl", "pyg": "programs.with_pyg"}
PROGRAMS = {
    "gated": "G-GCN: sum of gated neighbours",
    "gated-max": "maximum of gated neighbours",
    "typed": "GG-NN: sum of neighbours, by type of edge",
}
WIDTH, TYPES = 128, 4
FUSED, TENSORS = "mgg", "mgg edge tensors"
WARM_UP = 2
# The norm of the difference to ours, as a part of ours. A maximum's gradients go to another edge where two messages are
# as near to each other as rounding.
APART = {"gated": 1e-4, "gated-max": 1e-2, "typed": 1e-4}


@dataclass(frozen=True)
class Case:
    """A program over a graph, and the files of its operands."""

    graph: Graph
    program: str
    width: int
    inputs: dict[str, Any]

    @property
    def edge_tensor_bytes(self) -> int:
        """Size of one value for each edge and column."""
        return self.graph.edges * self.width * 4

    def parts(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return what a step returned, by name: outputs, gradients of rows, gradients of weights."""
        size = self.graph.nodes * self.width
        return dict(zip(("outputs", "rows", "weights"), np.split(values, [size, 2 * size]), strict=True))


def case_of(graph: Graph, program: str, width: int, folder: Path) -> Case:
    """Write the files of a case."""
    rng = np.random.default_rng(0)
    types = rng.integers(TYPES, size=graph.edges, dtype=np.int64)
    writer.write(folder / "graph.h5", replace(graph, edge={"type": types.astype(np.int8)}))
    structure = graphs.write(graph, folder)
    inputs: dict[str, Any] = {"program": program, "file": str(folder / "graph.h5")}
    inputs |= {name: structure[name] for name in ("indptr", "indices")}
    inputs["types"] = graphs.save(folder / "types.npy", types)
    for name in ("x", "gradient"):
        values = rng.standard_normal((graph.nodes, width), dtype=np.float32)
        inputs[name] = graphs.save(folder / f"{name}.npy", values)
    square = (width, width)
    shapes = {"matrix": (TYPES, *square)} if program == "typed" else {"far": square, "near": square}
    scale = np.float32(width**-0.5)
    weights: dict[str, Any] = {
        name: scale * rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    np.savez(folder / "weights.npz", **weights)
    return Case(graph, program, width, inputs | {"weights": str(folder / "weights.npz")})


def measure(
    graph: Graph, program: str, peers: Sequence[str], options: BenchOptions, width: int = WIDTH
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of a program over a graph, and the beginning of its document.

    Raises RuntimeError for a library whose results are others than ours.
    """
    with timing.workspace() as folder:
        case = case_of(graph, program, width, folder)
        with libraries.started(peers, options, OURS, MODULES) as started:
            timed = _timed(case, started, folder, options.turns)
            found = document.comparison("programs", options, started)
        peak = {name: _peak(case, worker, name) for name, worker in timed.pop("runs").items()}
    row = {
        "program": program,
        "width": width,
        "edge_tensor_bytes": case.edge_tensor_bytes,
        "peak_bytes": peak,
    }
    return document.about(graph) | row | timed, found


def _timed(case: Case, started: Libraries, folder: Path, turns: int) -> dict[str, Any]:
    """Return the times of all runs that take part, how far their results are from ours, and the runs themselves."""
    mine, theirs = _prepared(case, [started.ours]), _prepared(case, started.baselines)
    calls = {
        name: partial(timing.in_a_row, worker, name, IN_A_ROW) for name, worker in (mine | theirs).items()
    }
    take_turns(calls, WARM_UP)
    expected = case.parts(started.ours.result(FUSED, folder))
    apart = {
        name: differences(expected, case.parts(worker.result(name, folder)))
        for name, worker in (mine | theirs).items()
        if name != FUSED
    }
    check(apart, APART[case.program])
    taken = take_turns(calls, turns, pause=timing.BREATH)
    medians = {name: timing.spread(times)["median"] for name, times in taken.items()}
    runs = mine | libraries.fastest(theirs, medians)
    ms = {name: taken[name] for name in runs}
    return {**timing.compared(ms), "median_ms_of_forms": medians, "apart": apart, "runs": runs}


def _prepared(case: Case, workers: Sequence[Worker]) -> dict[str, Worker]:
    """Return the runs of workers."""
    return {
        name: worker
        for worker in workers
        for name in worker.need("prepare", task="propagate", inputs=case.inputs)["runs"]
    }


def _peak(case: Case, like: Worker, name: str) -> int:
    """Return the bytes that a run takes at most beyond its operands: by its first call, in a process of its own."""
    with replace(like) as worker:
        worker.need("prepare", task="propagate", inputs=case.inputs)
        before = worker.need("resident")["resident"]
        worker.ms(name)
        return worker.need("memory")["peak"] - before


def differences(expected: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> float:
    """Return the largest norm of a part's difference, as a part of its norm."""
    norm = np.linalg.norm
    return max(float(norm(values[name] - part)) / float(norm(part)) for name, part in expected.items())


def check(apart: Mapping[str, float], limit: float) -> None:
    """Raise RuntimeError where results are further apart than ``limit``."""
    for name, distance in apart.items():
        if not distance <= limit:
            raise RuntimeError(
                f"{name}'s results differ from ours by {distance:.1e} of their norm; {limit:.0e} at most"
            )


def sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return the table of all rows: times, memory, and both as multiples of ours."""
    columns = ["", "ms a step", "of mgg's time", "MB beyond operands", "edge tensors", "of mgg's memory"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            peak, times = row["peak_bytes"][name], row["speedup"].get(name, {"median": 1.0})
            line = [
                f"{row['graph']}, {row['program']}, {name}",
                document.cell(spread),
                f"{times['median']:.2f}",
            ]
            line += [f"{peak / 1e6:,.0f}", f"{peak / row['edge_tensor_bytes']:.2f}"]
            cells.append([*line, f"{peak / row['peak_bytes'][FUSED]:.1f}"])
    return Sheet("fused propagation", columns, cells)
