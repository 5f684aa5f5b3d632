"""`mgg bench aggregate`: sums of neighbours' rows, ours, the peers', and the least that reading them costs.

The gather floor loads every cache line of the same rows in the same order and stores nothing
(cuda/bench/gather_floor.cpp): the best of three prefetch distances. The compulsory bytes are each row, each index and
offset, and each output once, over the bandwidth of reading memory from end to end; rows that fit in a cache may be
faster than that.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from scipy import sparse

from ....data.graph import Graph
from ....errors import InputError
from ....plan import order
from ..harness import document, graphs, libraries, timing
from ..harness.document import Options, Sheet, cell
from ..harness.libraries import Field
from ..harness.timing import Run, Worker
from . import plot, summary

DTYPES = ("float32", "bfloat16", "float16")
AHEAD = (4, 16, 64)  # edges; the floor's prefetch distances
STREAM_BYTES = 1 << 30
GRAPHS, GRAPHS_ON_GPU = ("rmat:18:16",), ("rmat:20:16", "uniform:20:16")
PEERS, PEERS_ON_GPU = "dgl,torch,pyg,mkl,scipy", "cusparse,torch,cupy,pyg,pyg-csr"
CPU_ONLY = frozenset(("orders", "threads", "pages", "peers_env"))
STREAM_TURNS = 5


@dataclass(frozen=True)
class Case:
    """A graph in an order of its rows, the type and width of these, and the files that workers read."""

    graph: Graph
    order: str
    dtype: str
    width: int
    files: dict[str, str | None]
    folder: Path

    @property
    def compulsory_bytes(self) -> int:
        """Each row and each output once; each index int32 and offset int64."""
        graph, item = self.graph, np.dtype(self.dtype).itemsize
        return 2 * graph.nodes * self.width * item + graph.edges * 4 + (graph.nodes + 1) * 8


def process_aggregate(
    names: tuple[str, ...],
    *,
    widths: str,
    dtypes: str,
    orders: str,
    weighted: bool,
    transfers: str,
    device: str,
    given: frozenset[str],
    **others: Any,
) -> None:
    """Measure, print and write; ``others`` are those of Options, and ``given`` the options that the user named.

    Raises InputError for a graph, option, peer or file that will not do.
    """
    on_gpu = device == "cuda"
    others["peers"] = others["peers"] or (PEERS_ON_GPU if on_gpu else PEERS)
    options = Options(**others)
    columns, kinds = document.widths_of(widths), document.words_of("dtypes", dtypes, DTYPES)
    names = names or (GRAPHS_ON_GPU if on_gpu else GRAPHS)
    options.check()
    document.refuse_ranks()
    for name in names:
        graphs.check(name)
    if on_gpu:
        from . import gpu

        if of_cpus := sorted(given & CPU_ONLY):
            raise InputError(f"--{of_cpus[0].replace('_', '-')} has no meaning with --device cuda")
        compared = [] if options.peers == "none" else document.words_of("peers", options.peers, gpu.BASELINES)
        widths_here = columns if "widths" in given else list(gpu.WIDTHS)
        kernels = document.words_of("transfers", transfers, tuple(gpu.OURS))
        gpu.process_device(
            names, widths_here, kinds, compared, weighted=weighted, options=options, transfers=kernels
        )
        return
    if "transfers" in given:
        raise InputError("--transfers has a meaning with --device cuda only")
    methods = document.words_of("orders", orders, order.METHODS)
    chosen, python = libraries.chosen(options.peers, "aggregate"), libraries.interpreter(options.peers_env)
    threads, pages = options.threads, options.pages
    with timing.workspace() as folder, libraries.started(chosen, python, threads, pages) as field:
        found = document.comparison("aggregate", options, field)
        found["stream_gb_per_s"] = bandwidth = stream(field.ours)
        found["cases"] = []
        for name in names:
            plain = graphs.read(name)
            for method in methods:
                graph = plain if method == "none" else renumbered(plain, method)
                files = graphs.write(graph, folder, weighted=weighted)
                for dtype, width in itertools.product(kinds, columns):
                    case = Case(graph, method, dtype, width, files, folder)
                    measured, notes = measure(case, field, options.turns, bandwidth)
                    found["cases"].append(measured)
                    found["notes"] += [note for note in notes if note not in found["notes"]]
    compare_orders(found["cases"])
    found["summary"] = summary.summarise(found["cases"])
    found["speedup"] = {name: of["mean"] for name, of in found["summary"]["speedup"].items()}
    document.finish(found, sheets(found), options, plot.draw)


def renumbered(graph: Graph, method: str) -> Graph:
    """The graph with its rows in another order."""
    return order.renumbered(graph, order.permutation(graph, method))


def compare_orders(cases: list[dict[str, Any]]) -> None:
    """Add to ordered cases how many times as fast ours is as each on the rows as they were, by medians.

    These were measured at another time, not in turns with this case.
    """
    keys = ("graph", "dtype", "width")
    plain = {tuple(case[key] for key in keys): case for case in cases if case["order"] == "none"}
    for case in cases:
        before = plain.get(tuple(case[key] for key in keys))
        if before and before is not case:
            ours = case["ms"]["mgg"]["median"]
            case["speedup_over_unordered"] = {name: ms["median"] / ours for name, ms in before["ms"].items()}


def stream(ours: Worker) -> float:
    """The most GB/s at which this process's threads read memory from end to end, in a few turns."""
    ours.need("prepare", task="stream", inputs={"size": STREAM_BYTES})
    times = [ours.need("run", name="stream")["ms"] for _ in range(STREAM_TURNS)]
    return STREAM_BYTES / min(times) / 1e6


def measure(case: Case, field: Field, turns: int, bandwidth: float) -> tuple[dict[str, Any], list[str]]:
    """One row of the result, and a note for each peer that could not take part."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.graph.nodes, case.width), dtype=np.float32)
    inputs: dict[str, Any] = {**case.files, "dtype": case.dtype, "ahead": list(AHEAD)}
    inputs["x"] = graphs.save(case.folder / "x.npy", x)
    names = field.ours.need("prepare", task="aggregate", inputs=inputs)["runs"]
    runs = [Run(field.ours, name) for name in names]
    for run in runs:
        run.once()
    expected = _result(field.ours, case.folder)
    limit = allowed(case, x) if field.peers else expected
    notes = []
    for peer in field.peers:
        problem = peer.ask("prepare", task="aggregate", inputs=inputs).get("failed")
        problem = problem or peer.ask("run", name=peer.name).get("failed")
        problem = problem or apart(expected, _result(peer, case.folder), limit)
        if problem:
            notes.append(f"{peer.name} is left out of {case.graph.name}, {case.dtype}: {problem}")
        else:
            runs.append(Run(peer, peer.name))
    timing.take_turns(runs, turns)
    return _row(case, runs, bandwidth), notes


def _result(worker: Worker, folder: Path) -> np.ndarray:
    file = folder / "out.npy"
    worker.need("result", name=worker.name, file=str(file))
    return np.load(file)


def allowed(case: Case, x: np.ndarray) -> np.ndarray:
    """How far two right results may lie apart, float32 [N, width]: twice eps sqrt(degree) sum |w x|, each one's bound.

    Half rows, weights and results are rounded to their type: an eps of it is added for each.
    """
    graph, weight = case.graph, case.files["weight"]
    values = np.ones(graph.edges, np.float32) if weight is None else np.abs(np.load(weight))
    matrix = sparse.csr_matrix((values, graph.indices, graph.indptr), (graph.nodes, graph.nodes))
    limit = matrix @ np.abs(x)
    rounding = 0.0 if case.dtype == "float32" else 3 * float(ml_dtypes.finfo(np.dtype(case.dtype)).eps)
    summing = np.finfo(np.float32).eps * np.sqrt(np.diff(graph.indptr))
    limit *= 2 * (summing + rounding).astype(np.float32)[:, None]
    return limit


def apart(ours: np.ndarray, theirs: np.ndarray, limit: np.ndarray) -> str:
    """What is wrong with a peer's result; nothing if each value lies within the limit (a NaN does not)."""
    wrong = ours.size - int(np.count_nonzero(np.abs(ours - theirs) <= limit))
    return f"{wrong} of its {ours.size} sums differ from ours" if wrong else ""


def _row(case: Case, runs: list[Run], bandwidth: float) -> dict[str, Any]:
    ours = runs[0]
    floors = dict(zip(AHEAD, runs[1 : 1 + len(AHEAD)], strict=True))
    others = runs[1 + len(AHEAD) :]
    ahead = min(AHEAD, key=lambda distance: timing.spread(floors[distance].ms)["median"])
    floor = floors[ahead]
    held = {run.worker.name: run.worker.need("memory") for run in (ours, *others)}
    return {
        "graph": case.graph.name,
        "nodes": case.graph.nodes,
        "edges": case.graph.edges,
        "weighted": case.files["weight"] is not None,
        "order": case.order,
        "dtype": case.dtype,
        "width": case.width,
        "ms": {run.name: timing.spread(run.ms) for run in (ours, *others)},
        "floor": {"ms": timing.spread(floor.ms), "ahead": ahead},
        "compulsory": {"bytes": case.compulsory_bytes, "ms": case.compulsory_bytes / bandwidth / 1e6},
        "over_floor": timing.ratios(ours.ms, floor.ms),
        "speedup": {run.name: timing.ratios(run.ms, ours.ms) for run in others},
        "huge_share": {name: document.shares(memory) for name, memory in held.items()},
    }


def _head(case: dict[str, Any]) -> list[str]:
    """ "rmat18, rcm, weighted" and "float32 x 64"."""
    order_said = "" if case["order"] == "none" else f", {case['order']}"
    weights_said = ", weighted" if case["weighted"] else ""
    return [case["graph"] + order_said + weights_said, f"{case['dtype']} x {case['width']}"]


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Times, and what they say."""
    cases, others = found["cases"], [name for name in found["contestants"] if name != "mgg"]
    times, says, unordered = [], [], []
    for case in cases:
        ms = [cell(case["ms"][name]) if name in case["ms"] else "-" for name in ("mgg", *others)]
        times.append([*_head(case), *ms, cell(case["floor"]["ms"]), f"{case['compulsory']['ms']:.1f}"])
        ratios = [cell(case["speedup"][name], 2) if name in case["speedup"] else "-" for name in others]
        huge = case["huge_share"].values()
        rest = [str(case["floor"]["ahead"]), f"{min(huge):.0%} .. {max(huge):.0%}"]
        says.append([*_head(case), cell(case["over_floor"], 2), *ratios, *rest])
        if before := case.get("speedup_over_unordered"):
            ratios = [f"{before[name]:.2f}" if name in before else "-" for name in ("mgg", *others)]
            unordered.append([*_head(case), *ratios])
    over = [f"over {name}" for name in others]
    bandwidth = f"bytes at {found['stream_gb_per_s']:.1f} GB/s"
    made = [
        Sheet(
            "ms, median (min .. max)",
            ["graph", "rows", "mgg", *others, "gather floor", bandwidth],
            times,
        ),
        Sheet(
            "ours over the floor; times as fast as a peer; the floor's distance; share of memory in huge pages",
            ["graph", "rows", "of the floor", *over, "ahead", "huge"],
            says,
        ),
    ]
    if unordered:
        title = "ours on ordered rows: times as fast as each on the rows as they were"
        made.append(Sheet(title, ["graph", "rows", "over mgg", *over], unordered))
    return made + summary.sheets(found["summary"])
