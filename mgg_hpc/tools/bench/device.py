"""`mgg bench aggregate --device cuda`: sums of neighbours' rows on one GPU, ours, cuSPARSE's, and a gather floor.

Contestants take turns in one process, timed by events of the stream, each over several sets of rows that together are
more than the second cache holds. The gather floor (cuda/gather.cuh) reads the same rows in the same order and stores
nothing. Bytes that a sum must move are each edge's row and index and each output; over the time they say how near to
the bandwidth of copying memory it is, and more than that where a cache answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from scipy import sparse

from . import contest, device_rivals, document, subjects
from .device_stage import Problem, Stage, problem_of
from .document import Options, Sheet, cell

RIVALS = tuple(device_rivals.MAKERS)
WIDTHS = (16, 64, 128, 256, 602)


def allowed(problem: Problem) -> np.ndarray:
    """How far two right results may lie apart: twice eps sqrt(degree) sum |w x|, and three eps of a half type."""
    graph, x = problem.graph, np.abs(problem.x.astype(np.float32))
    values = np.ones(graph.edges, np.float32) if problem.weight is None else np.abs(problem.weight)
    limit = sparse.csr_matrix((values, graph.indices, graph.indptr), (graph.nodes, graph.nodes)) @ x
    half = problem.format.dtype.itemsize == 2
    rounding = 3 * float(ml_dtypes.finfo(problem.format.dtype).eps) if half else 0.0
    summing = np.finfo(np.float32).eps * np.sqrt(np.diff(graph.indptr))
    return np.asarray(limit * 2 * (summing + rounding).astype(np.float32)[:, None])


def first_line(error: Exception) -> str:
    """The first line of an error that says something: CuPy's begin with a rule."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if any(map(str.isalnum, line))), type(error).__name__)


def measure(
    problem: Problem, rivals: Sequence[str], turns: int, copy: float
) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each rival that could not take part."""
    clock, notes = problem.stage.clock, []
    own, floor_runs, others = device_rivals.ours(problem), device_rivals.floors(problem), []
    clock.ms(own.calls)
    expected = own.result()
    limit = allowed(problem) if rivals else expected
    for name in rivals:
        try:
            for out in problem.outputs:
                out[:] = float("nan")  # what we left there is not theirs
            rival = device_rivals.MAKERS[name](problem)
            clock.ms(rival.calls)
            wrong = expected.size - int(np.count_nonzero(np.abs(rival.result() - expected) <= limit))
            failed = f"{wrong} of its {expected.size} sums differ from ours" if wrong else ""
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            failed = first_line(error)
        if failed:
            notes.append(f"{name} is left out of {problem.graph.name}, {problem.format.dtype}: {failed}")
        else:
            others.append(rival)
    for _ in range(turns):  # A B C, A B C, ...
        for one in (own, *floor_runs, *others):
            one.ms.append(clock.ms(one.calls))
    floor = min(floor_runs, key=lambda one: contest.spread(one.ms)["median"])
    median = contest.spread(own.ms)["median"]
    rate = problem.moved_bytes / median / 1e6
    row = {
        "graph": problem.graph.name,
        "nodes": problem.graph.nodes,
        "edges": problem.graph.edges,
        "weighted": problem.weight is not None,
        "order": "none",
        "dtype": problem.format.dtype.name,
        "width": problem.format.dim,
        "sets": len(problem.sources),
        "ms": {one.name: contest.spread(one.ms) for one in (own, *others)},
        "floor": {"ms": contest.spread(floor.ms), "threads": int(floor.name.split()[1])},
        "compulsory": {"bytes": problem.moved_bytes, "ms": problem.moved_bytes / copy / 1e6},
        "gb_per_s": rate,
        "of_copy": rate / copy,
        "over_floor": contest.ratios(own.ms, floor.ms),
        "speedup": {one.name: contest.ratios(one.ms, own.ms) for one in others},
    }
    return row, notes


def process_device(
    names: Sequence[str],
    widths: Sequence[int],
    dtypes: Sequence[str],
    rivals: Sequence[str],
    *,
    weighted: bool,
    options: Options,
    stage: Stage | None = None,
) -> None:
    """Measure, print and write. Raises InputError where there is no GPU, or no GPU kernels."""
    stage = stage or Stage.gpu()
    found = document.begin("aggregate", options.threads, options.turns)
    found["device"] = stage.module.limits()
    found["copy_gb_per_s"] = copy = stage.copy_gb_per_s()
    found["cases"] = []
    for name in names:
        graph = subjects.read(name)
        drawn = np.random.default_rng(0).uniform(0.1, 1, graph.edges).astype(np.float32)
        weight = (drawn if graph.weight is None else graph.weight) if weighted else None
        for dtype, width in itertools.product(dtypes, widths):
            row, notes = measure(problem_of(stage, graph, dtype, width, weight), rivals, options.turns, copy)
            found["cases"].append(row)
            found["notes"] += [note for note in notes if note not in found["notes"]]
    found["speedup"] = {}
    for name in rivals:
        ratios = [case["speedup"][name]["median"] for case in found["cases"] if name in case["speedup"]]
        if ratios:
            found["speedup"][name] = document.geometric_mean(ratios)
    document.finish(found, sheets(found, rivals), options)


def sheets(found: dict[str, Any], rivals: Sequence[str]) -> list[Sheet]:
    """Times, and what they say."""
    times, says = [], []
    for case in found["cases"]:
        head = [
            case["graph"] + (", weighted" if case["weighted"] else ""),
            f"{case['dtype']} x {case['width']}",
        ]
        ms = [cell(case["ms"][name], 3) if name in case["ms"] else "-" for name in ("mgg", *rivals)]
        times.append([*head, *ms, cell(case["floor"]["ms"], 3)])
        ratios = [cell(case["speedup"][name], 2) if name in case["speedup"] else "-" for name in rivals]
        rate = [f"{case['gb_per_s']:,.0f}", f"{case['of_copy']:.2f}", str(case["sets"])]
        says.append([*head, cell(case["over_floor"], 2), *ratios, *rate])
    overall = [f"{found['speedup'][name]:.2f}" if name in found["speedup"] else "-" for name in rivals]
    says.append(["geometric mean", "", "", *overall, "", "", ""])
    over = [f"over {name}" for name in rivals]
    copy = f"of {found['copy_gb_per_s']:,.0f} GB/s"
    return [
        Sheet(
            "ms, median (min .. max)",
            ["graph", "rows", "mgg", *rivals, "gather floor"],
            times,
        ),
        Sheet(
            "ours over the floor; times as fast as a rival; bytes moved over time, and as a share of copying",
            ["graph", "rows", "of the floor", *over, "GB/s", copy, "sets"],
            says,
        ),
    ]
