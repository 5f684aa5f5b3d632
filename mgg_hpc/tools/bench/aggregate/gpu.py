"""Sums of rows on one GPU: ours, cuSPARSE's, and a gather floor, in one process.

Baselines are timed by events of the stream, each over several sets of rows that together are more than the second
cache holds. The gather floor (cuda/gpu/rows/gather.cuh) reads the same rows in the same order and stores nothing. Bytes
that a sum must move are each edge's row and index and each output; over the time they say how near to the bandwidth of
copying memory it is, and more than that where a cache answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....data.graph import Graph
from ....runtime.turns import take_turns
from ..harness import document, gpu, graphs, sums, timing, watch
from ..harness.gpu import Device, Problem, problem_of
from ..harness.options import BenchOptions
from . import gpu_alone, gpu_baselines
from .gpu_baselines import Baseline
from .summary import row_of

GRAPHS = ("rmat:20:16", "uniform:20:16")
WIDTHS = "128,16,602,64,256"  # those first that say most, should time run out
LIBRARIES = tuple(gpu_baselines.MAKERS)
PEERS = ",".join(LIBRARIES)


@contextlib.contextmanager
def comparison(
    options: BenchOptions, baselines: Sequence[str], transfers: Sequence[str]
) -> Iterator[Comparison]:
    """Open the GPU. Raises InputError where there is none, or no GPU kernels."""
    device = Device.current()
    found = document.begin("aggregate", options, device)
    yield Comparison(found, device, baselines, transfers, options.turns)


@dataclass
class Comparison:
    """The GPU, the baselines, and the document of their times."""

    found: dict[str, Any]
    device: Device
    baselines: Sequence[str]
    transfers: Sequence[str]
    turns: int

    def measure(
        self, graph: Graph, dtypes: Sequence[str], widths: Sequence[int], *, weighted: bool
    ) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """Yield the rows of each width, one for each type, and a note for each baseline that could not take part."""
        weight = graphs.weights(graph) if weighted else None
        edges = gpu.edges_of(graph)
        for width in widths:
            with watch.cell(graph.name, *dtypes, f"width {width}"):
                problems = [problem_of(self.device, graph, dtype, width, weight, edges) for dtype in dtypes]
                rows, notes = self.measure_types(problems)
            yield rows, notes
            del problems
            gpu.release()

    def measure_types(self, problems: Sequence[Problem]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return a row for each of a few types of the same rows, which all take turns; and the notes."""
        entries = {problem.format.dtype.name: self.entry_of(problem) for problem in problems}
        ms = take_turns(
            {
                (dtype, one.name): partial(self.device.clock.ms, one.calls)
                for dtype, (baselines, _) in entries.items()
                for one in baselines
            },
            self.turns,
        )
        rows = []
        for problem in problems:
            dtype = problem.format.dtype.name
            row = self.row_of(problem, {name: times for (of, name), times in ms.items() if of == dtype})
            row["about"] = {one.name: one.about for one in entries[dtype][0] if one.about}
            if dtype != "float32" and ("float32", "mgg") in ms:
                row["over_float32"] = timing.ratios(ms["float32", "mgg"], ms[dtype, "mgg"])
            rows.append(row)
        return rows, [note for _, notes in entries.values() for note in notes]

    def entry_of(self, problem: Problem) -> tuple[list[Baseline], list[str]]:
        """Return all entries whose sums are right, ours first; and a note for each baseline that could not take part.

        Raises AssertionError where our own kernels disagree.
        """
        own, expected = own_runs(problem, self.transfers)
        made, notes = [*own, *gpu_baselines.floors(problem)], []
        picked = sums.sample(problem.graph.indptr)
        right = sums.rows_of(expected, picked)
        limit = sums.allowed(problem.graph, problem.x, problem.weight, picked) if self.baselines else right
        for name in self.baselines:
            try:
                problem.clear_outputs()
                baseline = gpu_baselines.MAKERS[name](problem)
                self.device.clock.ms(baseline.calls)
                failed = sums.differing(right, sums.rows_of(baseline.result(), picked), limit)
            except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
                failed = document.first_line(error)
            if failed:
                notes.append(f"{name} is left out of {problem.graph.name}, {problem.format.dtype}: {failed}")
                gpu.release()  # it may have taken all memory
            else:
                made.append(baseline)
        return made, notes

    def row_of(self, problem: Problem, ms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return a row of the result."""
        floors = {int(name.split()[1]): times for name, times in ms.items() if name.startswith("floor ")}
        others = {name: times for name, times in ms.items() if not name.startswith("floor ")}
        moved, copy = problem.moved_bytes, self.found["copy_gb_per_s"]
        dtype, width = problem.format.dtype.name, problem.format.dim
        row = row_of(dtype, width, others, floors, "threads", moved, copy)
        rate = moved / row["ms"]["mgg"]["median"] / 1e6
        return row | {"sets": len(problem.sources), "gb_per_s": rate, "of_copy": rate / copy}


def own_runs(problem: Problem, transfers: Sequence[str]) -> tuple[list[Baseline], Any]:
    """Return our runs, direct first, and its sums.

    Raises AssertionError where another transfer's sums are not the same, bit by bit.
    """
    import torch

    clock, made = problem.device.clock, []

    def summed(one: Baseline) -> Any:
        problem.clear_outputs()
        clock.ms(one.calls)
        return one.result()

    for transfer in (each for each in transfers if each != "direct"):
        one = gpu_baselines.ours(problem, transfer)
        geometry = gpu_alone.geometry_of(problem.device, transfer, problem.format)
        same = summed(gpu_baselines.ours(problem, geometry=geometry))  # hubs are cut as the knobs say
        if count := int((summed(one).view(torch.int32) != same.view(torch.int32)).count_nonzero()):
            raise AssertionError(f"{one.name}: {count} sums differ from those of direct")
        made.append(one)
    own = gpu_baselines.ours(problem)
    return [own, *made], summed(own)
