"""`mgg bench aggregate --device cuda`: sums of neighbours' rows on one GPU, ours, cuSPARSE's, and a gather floor.

Baselines take turns in one process, timed by events of the stream, each over several sets of rows that together are
more than the second cache holds. The gather floor (cuda/gpu/rows/gather.cuh) reads the same rows in the same order
and stores nothing. Bytes that a sum must move are each edge's row and index and each output; over the time they say
how near to the bandwidth of copying memory it is, and more than that where a cache answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from scipy import sparse

from ....data.graph import Graph
from ....plan.workload import Plan
from ..harness import document, gpu, graphs, timing
from ..harness.document import Options, Sheet, cell
from ..harness.gpu import Problem, Stage, problem_of
from . import gpu_alone, gpu_baselines, plot, summary
from .gpu_baselines import OURS, Baseline

BASELINES = tuple(gpu_baselines.MAKERS)
WIDTHS = (16, 64, 128, 256, 602)


def allowed(graph: Graph, x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """How far two right sums of rows x may lie apart, float32 [N, dim].

    Twice eps sqrt(degree) sum |w x|, and three eps of a half type.
    """
    rounding = 3 * float(ml_dtypes.finfo(x.dtype).eps) if x.dtype.itemsize == 2 else 0.0
    limit = product(graph, np.abs(x.astype(np.float32)), None if weight is None else np.abs(weight))
    summing = np.finfo(np.float32).eps * np.sqrt(np.diff(graph.indptr))
    return np.asarray(limit * 2 * (summing + rounding).astype(np.float32)[:, None])


def product(graph: Graph, x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Sums of the rows x, [N, dim] of their type, by SciPy."""
    values = np.ones(graph.edges, np.float32) if weight is None else weight
    return np.asarray(
        sparse.csr_matrix((values, graph.indices, graph.indptr), (graph.nodes, graph.nodes)) @ x
    )


def own_runs(problem: Problem, transfers: Sequence[str]) -> tuple[list[Baseline], np.ndarray]:
    """Ours, direct first, and its sums. Raises AssertionError where another transfer's are not the same, bit by bit."""
    clock, made = problem.stage.clock, []

    def sums(one: Baseline) -> np.ndarray:
        for out in problem.outputs:
            out[:] = float("nan")  # what others left there is not theirs
        clock.ms(one.calls)
        return one.result()

    for transfer in (each for each in transfers if each != "direct"):
        one = gpu_baselines.ours(problem, transfer)
        geometry = gpu_alone.geometry_of(problem.stage, transfer, problem.format)
        same = sums(gpu_baselines.ours(problem, geometry=geometry))  # hubs are cut as the knobs say
        if count := int(np.count_nonzero(sums(one).view(np.uint32) != same.view(np.uint32))):
            raise AssertionError(f"{one.name}: {count} sums differ from those of direct")
        made.append(one)
    own = gpu_baselines.ours(problem)
    return [own, *made], sums(own)


def joined(
    name: str, problem: Problem, expected: np.ndarray, limit: np.ndarray
) -> tuple[Baseline | None, str]:
    """A baseline whose sums are ours within rounding, or why there is none."""
    try:
        for out in problem.outputs:
            out[:] = float("nan")  # what we left there is not theirs
        baseline = gpu_baselines.MAKERS[name](problem)
        problem.stage.clock.ms(baseline.calls)
        wrong = expected.size - int(np.count_nonzero(np.abs(baseline.result() - expected) <= limit))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        return None, document.first_line(error)
    return (None, f"{wrong} of its {expected.size} sums differ from ours") if wrong else (baseline, "")


@dataclass
class Entry:
    """The runs that are compared for one type of rows.

    own: our kernel with the transfer "direct". notes: a line for each baseline that could not take part.
    """

    problem: Problem
    own: Baseline
    piped: list[Baseline]
    floors: list[Baseline]
    others: list[Baseline]
    notes: list[str]

    @property
    def everybody(self) -> list[Baseline]:
        """All of them."""
        return [self.own, *self.piped, *self.floors, *self.others]


def entry_of(problem: Problem, baselines: Sequence[str], transfers: Sequence[str]) -> Entry:
    """All whose sums are right. Raises AssertionError where our own kernels disagree."""
    (own, *piped), expected = own_runs(problem, transfers)
    made = Entry(problem, own, piped, gpu_baselines.floors(problem), [], [])
    limit = allowed(problem.graph, problem.x, problem.weight) if baselines else expected
    for name in baselines:
        baseline, failed = joined(name, problem, expected, limit)
        if baseline is None:
            made.notes.append(f"{name} is left out of {problem.graph.name}, {problem.format.dtype}: {failed}")
            gpu.release()  # it may have taken all memory
        else:
            made.others.append(baseline)
    return made


def measure(
    problems: Sequence[Problem],
    baselines: Sequence[str],
    turns: int,
    copy: float,
    transfers: Sequence[str] = ("direct",),
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row of the result for each of a few types of the same rows, which all take turns; and the notes."""
    entries = [entry_of(problem, baselines, transfers) for problem in problems]
    for _ in range(turns):  # A B C, A B C, ...
        for entry in entries:
            for one in entry.everybody:
                one.ms.append(entry.problem.stage.clock.ms(one.calls))
    whole = next((entry for entry in entries if entry.problem.format.dtype == np.float32), None)
    rows = [row_of(entry, copy) for entry in entries]
    for entry, row in zip(entries, rows, strict=True):
        if whole is not None and entry is not whole:
            row["over_float32"] = timing.ratios(whole.own.ms, entry.own.ms)
    return rows, [note for entry in entries for note in entry.notes]


def row_of(entry: Entry, copy: float) -> dict[str, Any]:
    """A row of the result."""
    problem, own, piped, others = entry.problem, entry.own, entry.piped, entry.others
    floor = min(entry.floors, key=lambda one: timing.spread(one.ms)["median"])
    median = timing.spread(own.ms)["median"]
    rate = problem.moved_bytes / median / 1e6
    return {
        "graph": problem.graph.name,
        "nodes": problem.graph.nodes,
        "edges": problem.graph.edges,
        "weighted": problem.weight is not None,
        "order": "none",
        "dtype": problem.format.dtype.name,
        "width": problem.format.dim,
        "sets": len(problem.sources),
        "ms": {one.name: timing.spread(one.ms) for one in (own, *piped, *others)},
        "floor": {"ms": timing.spread(floor.ms), "threads": int(floor.name.split()[1])},
        "compulsory": {"bytes": problem.moved_bytes, "ms": problem.moved_bytes / copy / 1e6},
        "gb_per_s": rate,
        "of_copy": rate / copy,
        "over_floor": timing.ratios(own.ms, floor.ms),
        "over_direct": {one.name: timing.ratios(one.ms, own.ms) for one in piped},
        "speedup": {one.name: timing.ratios(one.ms, own.ms) for one in others},
    }


def process_device(
    names: Sequence[str],
    widths: Sequence[int],
    dtypes: Sequence[str],
    baselines: Sequence[str],
    *,
    weighted: bool,
    options: Options,
    transfers: Sequence[str] = tuple(OURS),
    stage: Stage | None = None,
) -> None:
    """Measure, print and write. Raises InputError where there is no GPU, or no GPU kernels."""
    stage = stage or Stage.gpu()
    found = document.begin("aggregate", options.threads, options.turns)
    found["device"] = stage.module.limits()
    found["copy_gb_per_s"] = copy = stage.copy_gb_per_s()
    found["cases"] = []
    for name in names:
        graph = graphs.read(name)
        drawn = np.random.default_rng(0).uniform(0.1, 1, graph.edges).astype(np.float32)
        weight = (drawn if graph.weight is None else graph.weight) if weighted else None
        plans: dict[int, Plan] = {}
        made: dict[tuple[str, int], dict[str, Any]] = {}
        for width in widths:
            problems = [problem_of(stage, graph, dtype, width, weight, plans) for dtype in dtypes]
            rows, notes = measure(problems, baselines, options.turns, copy, transfers)
            made |= {(dtype, width): row for dtype, row in zip(dtypes, rows, strict=True)}
            found["notes"] += [note for note in notes if note not in found["notes"]]
            del problems
            gpu.release()
        found["cases"] += [made[each] for each in itertools.product(dtypes, widths)]
    found["summary"] = summary.summarise(found["cases"])
    found["speedup"] = {name: of["mean"] for name, of in found["summary"]["speedup"].items()}
    document.finish(found, sheets(found, baselines), options, plot.draw)


def sheets(found: dict[str, Any], baselines: Sequence[str]) -> list[Sheet]:
    """Times, and what they say: ours, then the baselines'."""
    own = [name for name in OURS.values() if any(name in case["ms"] for case in found["cases"])]
    times, says, theirs, faster = [], [], [], []
    for case in found["cases"]:
        graph = case["graph"] + (", weighted" if case["weighted"] else "")
        head = [graph, f"{case['dtype']} x {case['width']}"]

        def cells(values: dict[str, Any], names: Sequence[str], places: int) -> list[str]:
            return [cell(values[name], places) if name in values else "-" for name in names]

        times.append([*head, *cells(case["ms"], own, 3), cell(case["floor"]["ms"], 3)])
        rate = [f"{case['gb_per_s']:,.0f}", f"{case['of_copy']:.2f}", str(case["sets"])]
        says.append([*head, cell(case["over_floor"], 2), *cells(case["over_direct"], own[1:], 2), *rate])
        theirs.append([*head, *cells(case["ms"], baselines, 3)])
        faster.append([*head, *cells(case["speedup"], baselines, 2)])
    copy = f"of {found['copy_gb_per_s']:,.0f} GB/s"
    over = [f"{name} over mgg" for name in own[1:]]
    made = [
        Sheet("ours: ms, median (min .. max)", ["graph", "rows", *own, "gather floor"], times),
        Sheet(
            "ours over the floor; our other kernels over it; bytes moved over time, and as a share of copying",
            ["graph", "rows", "of the floor", *over, "GB/s", copy, "sets"],
            says,
        ),
    ]
    if baselines:
        columns = [f"over {name}" for name in baselines]
        made += [
            Sheet("baselines: ms, median (min .. max)", ["graph", "rows", *baselines], theirs),
            Sheet("times as fast as a baseline", ["graph", "rows", *columns], faster),
        ]
    return made + summary.sheets(found["summary"])
