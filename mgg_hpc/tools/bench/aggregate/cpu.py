"""Sums of rows on CPUs, by a process for this package and one for each other library.

The gather floor loads every cache line of the same rows in the same order and stores nothing
(cuda/bench/gather_floor.cpp): the best of three prefetch distances. The compulsory bytes are each row, each index and
offset, and each output once, over the bandwidth of reading memory from end to end; rows that fit in a cache may be
faster than that.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....data.graph import Graph
from ....runtime.turns import take_turns
from ..harness import document, graphs, libraries, sums, timing
from ..harness.libraries import Libraries
from ..harness.options import BenchOptions
from .summary import row_of

GRAPHS = ("rmat:18:16",)
WIDTHS = "16,64,128,256"
LIBRARIES = ("dgl", "torch", "pyg", "mkl", "scipy")
PEERS = ",".join(LIBRARIES)
AHEAD = (4, 16, 64)  # edges; the floor's prefetch distances
STREAM_BYTES, STREAM_TURNS = 1 << 30, 5


@contextlib.contextmanager
def comparison(
    options: BenchOptions, baselines: Sequence[str], transfers: Sequence[str]
) -> Iterator[Comparison]:
    """Start the workers, which end with the context. Nothing is transferred, whatever ``transfers`` are."""
    with timing.workspace() as folder, libraries.started(baselines, options) as started:
        found = document.comparison("aggregate", options, started)
        # The most GB/s at which our threads read memory from end to end, in a few turns.
        started.ours.need("prepare", task="stream", inputs={"size": STREAM_BYTES})
        taken = take_turns({"stream": partial(started.ours.ms, "stream")}, STREAM_TURNS)
        found["stream_gb_per_s"] = STREAM_BYTES / min(taken["stream"]) / 1e6
        yield Comparison(found, started, folder, options.turns)


@dataclass
class Comparison:
    """The workers that take turns, and the document of their times."""

    found: dict[str, Any]
    libraries: Libraries
    folder: Path
    turns: int

    def measure(
        self, graph: Graph, dtypes: Sequence[str], widths: Sequence[int], *, weighted: bool
    ) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """Yield the row of each type and width, with a note for each baseline that could not take part."""
        files = graphs.write(graph, self.folder, weighted=weighted)
        for each in itertools.product(dtypes, widths):
            row, notes = self._case(graph, files, *each)
            yield [row], notes

    def _case(
        self, graph: Graph, files: dict[str, str | None], dtype: str, width: int
    ) -> tuple[dict[str, Any], list[str]]:
        ours, notes = self.libraries.ours, []
        x = np.random.default_rng(0).standard_normal((graph.nodes, width), dtype=np.float32)
        inputs: dict[str, Any] = {**files, "dtype": dtype, "ahead": list(AHEAD)}
        inputs["x"] = graphs.save(self.folder / "x.npy", x)
        names = ours.need("prepare", task="aggregate", inputs=inputs)["runs"]
        runs = {name: partial(ours.ms, name) for name in names}
        for run in runs.values():
            run()
        expected, limit = ours.result("mgg", self.folder), np.zeros(0)
        if self.libraries.baselines:
            weight = None if files["weight"] is None else np.load(files["weight"])
            limit = sums.allowed(graph, x.astype(dtype), weight)
        for baseline in self.libraries.baselines:
            problem = baseline.ask("prepare", task="aggregate", inputs=inputs).get("failed")
            problem = problem or baseline.ask("run", name=baseline.name).get("failed")
            problem = problem or sums.differing(expected, baseline.result(baseline.name, self.folder), limit)
            if problem:
                notes.append(f"{baseline.name} is left out of {graph.name}, {dtype}: {problem}")
            else:
                runs[baseline.name] = partial(baseline.ms, baseline.name)
        ms = take_turns(runs, self.turns, pause=timing.BREATH)
        floors = {ahead: ms.pop(f"floor {ahead}") for ahead in AHEAD}
        workers = [worker for worker in (ours, *self.libraries.baselines) if worker.name in ms]
        # Each row and each output once; each index int32 and offset int64.
        moved = 2 * graph.nodes * width * np.dtype(dtype).itemsize + graph.edges * 4 + (graph.nodes + 1) * 8
        row = row_of(dtype, width, ms, floors, "ahead", moved, self.found["stream_gb_per_s"])
        return row | {"huge_share": document.huge_shares(workers)}, notes
