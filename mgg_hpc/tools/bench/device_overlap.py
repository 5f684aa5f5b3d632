"""`mgg bench overlap --device cuda`: how much of fetching remote rows hides behind sums, in kernels on one GPU.

One process plays two PEs. The first sums; the second owns a share of the rows, which lie in page-locked memory of the
host: the link to the host plays a slow one between GPUs. What the parts of a way take is measured without the other:
sums by the direct kernel over rows that all lie on the GPU (`sum`), and the transfer by the way's own kernel over a
plan with nothing else to do (`moves`; `get` fetches nothing without edges, so that it sums its remote rows there too).
`near` is the whole way with all rows on the GPU. With T of both in one kernel,

    hidden share = (T_sum + T_transfer - T) / min(T_sum, T_transfer)

is 0 where one waits for the other, and 1 where the shorter one costs nothing. Beside the pipelined transfers stand
those that MGG is compared with: `bulk` (all rows arrive, then sums), `direct` (loads through pointers), and `managed`:
pages move to the GPU as they are touched, and back to the host between turns. If asked for, too: `ring` (whole
partitions, passed on), and gets without neighbour partitions (`get-whole`), asked for when they are needed
(`get-late`), by single threads (`get-thread`) or by whole blocks (`get-block`), or one row an edge without anything of
MGG (`get-plain`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.graph import Graph
from ...errors import InputError
from ...plan import crossing, waves, workload
from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ...runtime.backends import cuda
from ...runtime.backends.base import Geometry, Rows
from ...runtime.backends.base import Options as BackendOptions
from ...runtime.backends.cuda_memory import ManagedMemory
from ...runtime.backends.world import World
from . import contest, document, subjects
from .device_stage import Stage
from .document import Options, Sheet, cell

# MGG's schedules, and those that it is compared with.
STUDIES = {
    "halo": cuda.Study(),
    "get": cuda.Study(),
    "bulk": cuda.Study(bulk=True),
    "direct": cuda.Study(),
    "managed": cuda.Study(),
    "ring": cuda.Study(),
    "get-whole": cuda.Study(partition=False),
    "get-late": cuda.Study(interleave=False),
    "get-thread": cuda.Study(level="thread"),
    "get-block": cuda.Study(level="block"),
    "get-plain": cuda.Study(partition=False, interleave=False),  # and a row at a time
}
WAYS = ("halo", "get", "bulk", "direct", "managed")
HIDES = ("halo", "get")  # what has parts
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
GRAPH, WIDTH = "uniform:20:16", 128
OWNER_SHARE = 0.125  # of the GPU's blocks, for the PE that only packs and pushes
NOT_SEEN = np.iinfo(np.uint64).max


def cut(graph: Graph, share: float, ps: int) -> list[Plan]:
    """Both PEs' plans: the first has all destinations, its own rows; the second the last ``share`` of the rows."""
    own = graph.nodes - min(graph.nodes - 1, round(share * graph.nodes))
    bounds = np.array([0, own, graph.nodes], dtype=np.int64)
    edges = graph.indices[: graph.indptr[own]]
    nothing = np.zeros(graph.nodes - own + 1, dtype=np.int64)
    return [
        workload.build(0, bounds, graph.indptr[: own + 1], edges, ps),
        workload.build(1, bounds, nothing, edges[:0], ps),
    ]


def moving_only(plan: Plan, *, edges: bool) -> Plan:
    """The plan without what it sums: no edges at all (its halo still comes), or the remote ones only.

    Destinations that have none left are left out too: nothing is written for them.
    """
    first = int(plan.chunks[0]["segments"])
    chunks, segments = plan.chunks.copy(), plan.segments[first if edges else len(plan.segments) :].copy()
    chunks["first_segment"] = np.maximum(chunks["first_segment"], first) - first if edges else 0
    chunks["segments"][: 1 if edges else len(chunks)] = 0
    left, segments["destination"] = np.unique(segments["destination"], return_inverse=True)
    local = int(plan.local_edges)
    indices = plan.indices[local:] if edges else plan.indices[:0]
    segments["first_edge"] -= local
    return replace(plan, chunks=chunks, segments=segments, indices=indices, destinations=len(left))


@dataclass
class Way:
    """Two PEs that sum in one way, or do a part of it."""

    name: str
    stage: Stage
    plans: Sequence[Plan]
    rows: list[Rows]
    backends: list[cuda.DeviceBackend]
    out: Any
    world: World
    between: Callable[[], None] = lambda: None  # turns
    ms: list[float] = field(default_factory=list)

    def call(self) -> None:
        """Once; on a GPU it is not waited for."""

        def of(rank: int) -> Callable[[], None]:
            out = self.out[: self.plans[rank].destinations]
            return lambda: self.backends[rank].aggregate(
                self.plans[rank], "copy", "sum", self.rows[rank], out
            )

        active = [rank for rank, plan in enumerate(self.plans) if rank == 0 or crossing.crosses(plan)]
        self.stage.together(self.world, [of(rank) for rank in active])

    def turn(self) -> None:
        """Once, timed."""
        self.between()
        self.ms.append(self.stage.clock.ms([self.call]))


class Subject:
    """A graph with a share of its rows far away."""

    def __init__(self, stage: Stage, graph: Graph, share: float, format: RowFormat) -> None:
        self.stage, self.format = stage, format
        self.geometry = cuda.default_geometry(format, cuda.limits_of(stage.module))
        self.plans = cut(graph, share, self.geometry.ps)
        sums, owner = (plan for plan, _ in waves.of_all_ranks(self.plans, 1))
        self.halos = [sums, moving_only(owner, edges=False)]
        bounds = np.array([0, self.plans[0].destinations, graph.nodes])
        sums, owner = (crossing.ring(plan, bounds) for plan in self.plans)
        self.rings = [sums, moving_only(owner, edges=False)]
        self.counts = np.array([self.plans[0].destinations, graph.nodes - self.plans[0].destinations])
        self.whole = workload.rectangular(
            0,
            graph.indptr[: self.plans[0].destinations + 1],
            graph.indices[: self.plans[0].edges].astype(np.int32, copy=False),
            graph.nodes,
            self.geometry.ps,
        )
        random = np.random.default_rng(0)
        self.x = random.standard_normal((graph.nodes, format.dim), dtype=np.float32).astype(format.dtype)
        self.uploaded = stage.memory.uploaded(self.x)
        backend = cuda.DeviceBackend(0, World(1), BackendOptions(self.geometry), stage.module, stage.memory)
        self.out = backend.padded(self.plans[0].destinations, format)

    def geometry_of(self, name: str) -> Geometry:
        """A way's."""
        return replace(self.geometry, ps=1, dist=1) if name == "get-plain" else self.geometry

    def sums(self, name: str = "direct") -> Way:
        """All rows on the GPU: what sums take by themselves. The same bits as those of a way of this name."""
        study, options = cuda.Study(partition=STUDIES[name].partition), BackendOptions(self.geometry_of(name))
        stage, world = self.stage, World(1)
        backend = cuda.DeviceBackend(0, world, options, stage.module, stage.memory, study)
        rows = backend.rows(np.array([len(self.x)]), self.format, symmetric=False)
        rows.local[:] = self.uploaded
        return Way(name, stage, [self.whole], [rows], [backend], self.out, world)

    def way(self, name: str, plans: Sequence[Plan] | None = None, *, near: bool = False) -> Way:
        """One of STUDIES, whole or over a part of its plan. near: all rows lie on the GPU."""
        stage, world = self.stage, World(2)
        memory = stage.memory if near else stage.slow["managed" if name == "managed" else "pinned"]
        options = BackendOptions(self.geometry_of(name))
        backends = [
            cuda.DeviceBackend(rank, world, options, stage.module, stage.memory, STUDIES[name], table)
            for rank, table in enumerate((stage.memory, memory))
        ]
        pushed = name in ("halo", "bulk", "ring")
        if pushed:
            backends[0].share, backends[1].share = 1 - OWNER_SHARE, OWNER_SHARE
        rows = [each.rows(self.counts, self.format, symmetric=True) for each in backends]
        for rank, part in enumerate((slice(0, self.counts[0]), slice(self.counts[0], None))):
            rows[rank].local[:] = self.uploaded[part]
        if plans is None and name == "ring":
            plans = self.rings
        elif plans is None:
            transfer = "get" if name.startswith("get") else "direct"
            plans = self.halos if pushed else [replace(plan, transfer=transfer) for plan in self.plans]
        between: Callable[[], None] = lambda: None  # noqa: E731
        if isinstance(memory, ManagedMemory):
            moving, far = memory, rows[1].buffer

            def between() -> None:
                moving.to_host(far)

        for backend, plan in zip(backends, plans, strict=True):
            backend.prepare(plan, self.format)
        for backend, plan, of in zip(backends, plans, rows, strict=True):
            backend.ready(plan, of)
        return Way(name, stage, plans, rows, backends, self.out, world, between)

    def moving(self, name: str) -> Way:
        """What fetching takes by itself: nothing is summed, or for `get` remote rows only."""
        if name == "get":
            return self.way(name, [replace(moving_only(p, edges=True), transfer="get") for p in self.plans])
        return self.way(name, [moving_only(plan, edges=False) for plan in self.halos])

    def wrong(self, way: Way) -> int:
        """How many of its sums are not those of rows on the GPU, bit by bit."""
        self.out[:] = float("nan")
        way.between()
        way.call()
        found = way.stage.tensor(self.out).clone()
        self.sums(way.name).call()
        return int((found != way.stage.tensor(self.out)).sum())


def measure(
    stage: Stage, graph: Graph, share: float, format: RowFormat, ways: Sequence[str], turns: int
) -> dict[str, Any]:
    """One row of the result. Raises AssertionError where ways differ in their sums."""
    subject = Subject(stage, graph, share, format)
    plan, row = subject.plans[0], format.dim * format.dtype.itemsize
    hides = [name for name in HIDES if name in ways and plan.remote_edges]
    whole = {name: subject.way(name) for name in ways}
    runs = {"sum": subject.sums()} | whole
    runs |= {f"{name} moves": subject.moving(name) for name in hides}
    runs |= {f"{name} near": subject.way(name, near=True) for name in hides}
    for run in runs.values():
        stage.clock.ms([run.call])
    for _ in range(turns):  # A B C, A B C, ...
        for run in runs.values():
            run.turn()
    for name, run in whole.items():
        if count := subject.wrong(run):
            raise AssertionError(f"{name}: {count} sums differ from those of rows on the GPU")
    spreads = {name: contest.spread(run.ms) for name, run in runs.items()}
    return {
        "share": share,
        "local_edges": plan.local_edges,
        "remote_edges": plan.remote_edges,
        "halo_rows": len(plan.halo),
        "bytes": {name: row * (len(plan.halo) if name != "get" else plan.remote_edges) for name in HIDES},
        "ms": spreads,
        "balance": {name: spreads[f"{name} moves"]["median"] / spreads["sum"]["median"] for name in hides},
        "hidden_share": {name: hidden(spreads, name) for name in hides},
        "over_direct": {
            name: spreads[name]["median"] / spreads["direct"]["median"]
            for name in HIDES
            if name in ways and "direct" in ways
        },
    }


def hidden(ms: dict[str, Any], name: str) -> float:
    """See above; of medians."""
    summing, moving, both = (ms[each]["median"] for each in ("sum", f"{name} moves", name))
    return float((summing + moving - both) / min(summing, moving))


def timeline(stage: Stage, graph: Graph, share: float, format: RowFormat) -> dict[str, Any]:
    """One call of the halo with time stamps, in microseconds since the first.

    pushes: [began, packed] of each chunk, which is signalled then; arrivals: when the first worker saw it; blocks:
    of the PE that sums, [began, has taken the last work, ended].
    """
    way = Subject(stage, graph, share, format).way("halo")
    way.call()
    owner, sums = way.backends[1].halo(way.plans[1]), way.backends[0].halo(way.plans[0])
    blocks = way.backends[0].launch(way.plans[0], format).blocks
    chunks = owner.pushes(way.backends[1], way.plans[1], format.row_bytes)
    taken = {
        "pushes": stage.memory.uploaded(np.zeros((chunks, 2), np.int64)),
        "arrivals": stage.memory.uploaded(np.full(chunks, NOT_SEEN).view(np.int64)),
        "blocks": stage.memory.uploaded(np.zeros((blocks, 4), np.int64)),
    }
    address = {name: stage.memory.address(array) for name, array in taken.items()}
    owner.stamps = (0, address["pushes"], 0)
    sums.stamps = (address["blocks"], 0, address["arrivals"])
    stage.clock.ms([way.call])
    found: dict[str, NDArray[Any]] = {
        name: stage.tensor(array).cpu().numpy().view(np.uint64) for name, array in taken.items()
    }
    found["blocks"] = found["blocks"][:, [0, 2, 3]]
    first = min(int(each.min()) for each in found.values())
    return {
        "share": share,
        "chunk_bytes": way.backends[1].chunk_bytes,
        **{name: ((each - first) / 1e3).tolist() for name, each in found.items()},
    }


def shares_of(text: str | None) -> list[float]:
    """The shares named on the command line. Raises InputError for what is none."""
    try:
        found = [float(word) for word in text.split(",")] if text else list(SHARES)
    except ValueError:
        found = [-1.0]
    if not all(0 <= each < 1 for each in found):
        raise InputError(f"--shares: {text!r}; expected numbers from 0 to less than 1, as 0,0.05,0.1")
    return sorted(set(found))


def run_overlap(
    graph: str | None,
    *,
    width: int | None,
    ways: str | None,
    backend: str,
    threads: int,
    turns: int,
    shares: str | None,
    json: Path | None,
    table: Path | None,
    plot: Path | None,
) -> int:
    """Check what was named on the command line, and measure. Raises InputError."""
    if threads or backend != "auto":
        raise InputError(f"--{'threads' if threads else 'backend'} has no meaning with --device cuda")
    chosen = [word.strip() for word in (ways or ",".join(WAYS)).split(",")]
    if unknown := [word for word in chosen if word not in STUDIES]:
        raise InputError(f"--ways: {unknown[0]!r}; expected {', '.join(STUDIES)}")
    options = Options("none", None, 0, turns, "", json, table, plot)
    name, far = graph or GRAPH, shares_of(shares)
    options.check()
    document.refuse_ranks()
    subjects.check(name)
    process_device_overlap(name, width=width or WIDTH, shares=far, ways=chosen, options=options)
    return 0


def process_device_overlap(
    name: str,
    *,
    width: int,
    shares: Sequence[float],
    ways: Sequence[str],
    options: Options,
    stage: Stage | None = None,
) -> None:
    """Measure, print and write. Raises InputError where there is no GPU, or no GPU kernels."""
    stage = stage or Stage.gpu()
    graph, format = subjects.read(name), RowFormat(np.dtype(np.float32), width)
    found = document.begin("device-overlap", options.threads, options.turns)
    found["device"] = stage.module.limits()
    found["copy_gb_per_s"] = stage.copy_gb_per_s()
    found |= {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges, "width": width}
    found["cases"] = [measure(stage, graph, share, format, ways, options.turns) for share in shares]
    for way in HIDES:
        if (share := balanced(found["cases"], way)) is not None:
            found["cases"].append(measure(stage, graph, share, format, ways, options.turns))
    found["cases"].sort(key=lambda case: case["share"])
    found["balance"] = {}
    for way in HIDES:
        at = [case for case in found["cases"] if way in case["balance"]]
        if at:
            case = min(at, key=lambda case: abs(np.log(case["balance"][way])))
            kept = {
                "share": case["share"],
                "ratio": case["balance"][way],
                "hidden": case["hidden_share"][way],
            }
            found["balance"][way] = kept
            found["notes"].append(
                f"{way}: at a remote share of {kept['share']:.3g} the transfer takes {kept['ratio']:.2f} times the "
                f"sums' time, and {kept['hidden']:.2f} of the shorter one is hidden"
            )
    if "halo" in found["balance"]:
        found["timeline"] = timeline(stage, graph, found["balance"]["halo"]["share"], format)
    document.finish(found, sheets(found), options)


def balanced(cases: Sequence[dict[str, Any]], name: str) -> float | None:
    """The share, between those measured, at which a transfer should take as long as the sums; None: at none of them."""
    known = sorted((case["share"], case["balance"][name]) for case in cases if name in case["balance"])
    for (low, below), (high, above) in itertools.pairwise(known):
        if below < 1 < above:
            part = np.log(1 / below) / np.log(above / below)
            return float(np.exp(np.log(low) + part * np.log(high / low)))
    return None


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Times, and what is hidden."""
    cases = found["cases"]
    names = list(dict.fromkeys(name for case in reversed(cases) for name in case["ms"]))
    hides = [name for name in HIDES if name in names]
    times, says = [], []
    for case in cases:
        ms, share = case["ms"], f"{case['share']:.3g}"
        times.append([share, *(cell(ms[name], 3) if name in ms else "-" for name in names)])
        counts = [f"{case['halo_rows']:,}", f"{case['remote_edges']:,}"]
        there = [name for name in hides if name in case["hidden_share"]]
        rates = {name: case["bytes"][name] / ms[f"{name} moves"]["median"] / 1e6 for name in there}
        for values, places in (
            (rates, 1),
            (case["balance"], 2),
            (case["hidden_share"], 2),
            (case["over_direct"], 2),
        ):
            counts += [f"{values[name]:.{places}f}" if name in values else "-" for name in hides]
        says.append([share, *counts])
    kinds = ("{}, GB/s", "{} moves / sum", "{} hides", "{} / direct")
    columns = [kind.format(name) for kind in kinds for name in hides]
    title = f"{found['graph']}, float32 x {found['width']}: ms, median (min .. max)"
    return [
        Sheet(title, ["remote share", *names], times),
        Sheet(
            "what crosses, and how much of it is hidden", ["remote share", "rows", "edges", *columns], says
        ),
    ]
