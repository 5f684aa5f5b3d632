"""`mgg bench aggregate`: sums of neighbours' rows, ours, the peers', and the least that reading them costs.

The gather floor loads every cache line of the same rows in the same order and stores nothing (cuda/floor_host.cpp):
the best of three prefetch distances. The compulsory bytes are each row, each index and offset, and each output
once, over the bandwidth of reading memory from end to end; rows that fit in a cache may be faster than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ...data.graph import Graph
from ...errors import InputError
from . import contest, document, peers, subjects
from .contest import Contestant, Run
from .document import Options, Sheet, cell
from .peers import Field

AHEAD = (4, 16, 64)  # edges; the floor's prefetch distances
STREAM_BYTES = 1 << 30
STREAM_TURNS = 5


@dataclass(frozen=True)
class Case:
    """A graph and a width, and the files that contestants read."""

    graph: Graph
    width: int
    files: dict[str, str | None]
    folder: Path

    @property
    def compulsory_bytes(self) -> int:
        """Each row and each output once, float32; each index int32 and offset int64."""
        graph = self.graph
        return 2 * graph.nodes * self.width * 4 + graph.edges * 4 + (graph.nodes + 1) * 8


def widths_of(text: str) -> list[int]:
    """The numbers in a comma-separated list. Raises InputError for anything else."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isdigit() and 1 <= int(word) <= 2**16)]
    if wrong:
        raise InputError(
            f"--widths {text}: {wrong[0]!r} is no width; expected numbers of 1 .. 65536, as in 16,64"
        )
    return [int(word) for word in words]


def process_aggregate(names: tuple[str, ...], widths: str, weighted: bool, options: Options) -> None:
    """Measure, print and write. Raises InputError for a graph, width, peer or file that will not do."""
    columns, chosen = widths_of(widths), peers.chosen(options.peers, "aggregate")
    python = peers.interpreter(options.peers_env)
    options.check()
    for name in names:
        subjects.check(name)
    with (
        contest.workspace() as folder,
        peers.started(chosen, python, options.threads, options.pages) as field,
    ):
        found = document.begin("aggregate", options, field)
        found["stream_gb_per_s"] = bandwidth = stream(field.ours)
        found["cases"] = []
        for name in names:
            graph = subjects.read(name)
            files = subjects.write(graph, folder, weighted=weighted)
            for width in columns:
                case = Case(graph, width, files, folder)
                measured, notes = measure(case, field, options.turns, bandwidth)
                found["cases"].append(measured)
                found["notes"] += notes
    found["speedup"] = {
        peer.name: document.geometric_mean(ratios)
        for peer in field.peers
        if (
            ratios := [c["speedup"][peer.name]["median"] for c in found["cases"] if peer.name in c["speedup"]]
        )
    }
    document.finish(found, sheets(found), options)


def stream(ours: Contestant) -> float:
    """The most GB/s at which this process's threads read memory from end to end, in a few turns."""
    ours.need("prepare", task="stream", inputs={"size": STREAM_BYTES})
    times = [ours.need("run", name="stream")["ms"] for _ in range(STREAM_TURNS)]
    return STREAM_BYTES / min(times) / 1e6


def measure(case: Case, field: Field, turns: int, bandwidth: float) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each peer that could not take part."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.graph.nodes, case.width), dtype=np.float32)
    inputs: dict[str, Any] = {
        **case.files,
        "x": subjects.save(case.folder / "x.npy", x),
        "ahead": list(AHEAD),
    }
    runs = [
        Run(field.ours, name) for name in field.ours.need("prepare", task="aggregate", inputs=inputs)["runs"]
    ]
    result = case.folder / "out.npy"
    for run in runs:
        run.once()
    expected = _result(field.ours, result)
    allowed = Allowed(case.graph, np.load(case.files["weight"]) if case.files["weight"] else None, x)
    notes = []
    for peer in field.peers:
        problem = peer.ask("prepare", task="aggregate", inputs=inputs).get("failed")
        problem = problem or peer.ask("run", name=peer.name).get("failed")
        if problem:
            notes.append(f"{peer.name} is left out of {case.graph.name} at width {case.width}: {problem}")
            continue
        allowed.check(peer.name, expected, _result(peer, result))
        runs.append(Run(peer, peer.name))
    contest.take_turns(runs, turns)
    return _row(case, runs, bandwidth), notes


def _result(contestant: Contestant, file: Path) -> np.ndarray:
    contestant.need("result", name=contestant.name, file=str(file))
    return np.load(file)


class Allowed:
    """How far two right results may lie apart: twice eps sqrt(degree) sum |w x|, the bound of each."""

    def __init__(self, graph: Graph, weight: np.ndarray | None, x: np.ndarray) -> None:
        values = np.ones(graph.edges, np.float32) if weight is None else np.abs(weight)
        matrix = sparse.csr_matrix((values, graph.indices, graph.indptr), (graph.nodes, graph.nodes))
        self.limit = matrix @ np.abs(x)
        self.limit *= 2 * np.finfo(np.float32).eps * np.sqrt(np.diff(graph.indptr), dtype=np.float32)[:, None]

    def check(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Raises RuntimeError if any value differs by more; a NaN does."""
        if wrong := ours.size - int(np.count_nonzero(np.abs(ours - theirs) <= self.limit)):
            raise RuntimeError(f"{name}'s sums and ours differ in {wrong} of {ours.size} values")


def _row(case: Case, runs: list[Run], bandwidth: float) -> dict[str, Any]:
    ours = runs[0]
    floors = dict(zip(AHEAD, runs[1 : 1 + len(AHEAD)], strict=True))
    others = runs[1 + len(AHEAD) :]
    ahead = min(AHEAD, key=lambda distance: contest.spread(floors[distance].ms)["median"])
    floor = floors[ahead]
    held = {run.contestant.name: run.contestant.need("memory") for run in (ours, *others)}
    return {
        "graph": case.graph.name,
        "nodes": case.graph.nodes,
        "edges": case.graph.edges,
        "weighted": case.files["weight"] is not None,
        "width": case.width,
        "ms": {run.name: contest.spread(run.ms) for run in (ours, *others)},
        "floor": {"ms": contest.spread(floor.ms), "ahead": ahead},
        "compulsory": {"bytes": case.compulsory_bytes, "ms": case.compulsory_bytes / bandwidth / 1e6},
        "over_floor": contest.ratios(ours.ms, floor.ms),
        "speedup": {run.name: contest.ratios(run.ms, ours.ms) for run in others},
        "huge_share": {name: document.shares(memory) for name, memory in held.items()},
    }


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Times, and what they say."""
    cases, others = found["cases"], [name for name in found["contestants"] if name != "mgg"]
    times, says = [], []
    for case in cases:
        head = [case["graph"] + (" weighted" if case["weighted"] else ""), str(case["width"])]
        ms = [cell(case["ms"][name]) if name in case["ms"] else "-" for name in ("mgg", *others)]
        times.append([*head, *ms, cell(case["floor"]["ms"]), f"{case['compulsory']['ms']:.1f}"])
        ratios = [cell(case["speedup"][name], 2) if name in case["speedup"] else "-" for name in others]
        huge = case["huge_share"].values()
        pages = f"{min(huge):.0%} .. {max(huge):.0%}"
        says.append([*head, cell(case["over_floor"], 2), *ratios, str(case["floor"]["ahead"]), pages])
    means = [f"{found['speedup'][name]:.2f}" if name in found["speedup"] else "-" for name in others]
    says.append(["geometric mean", "", "", *means, "", ""])
    over = [f"over {name}" for name in others]
    return [
        Sheet(
            "ms, median (min .. max)",
            [
                "graph",
                "width",
                "mgg",
                *others,
                "gather floor",
                f"bytes at {found['stream_gb_per_s']:.1f} GB/s",
            ],
            times,
        ),
        Sheet(
            "ours over the floor; times as fast as a peer; the floor's distance; share of memory in huge pages",
            ["graph", "width", "of the floor", *over, "ahead", "huge"],
            says,
        ),
    ]
