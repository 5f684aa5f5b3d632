"""The table of cases: operations, types, widths, hard graphs and transfers, each against the float64 reference, over
every backend: CPUs, the kernels of a GPU over the shim, and a GPU.

A check returns the worst error as a share of what DESIGN's bound allows (0: exact), and raises AssertionError where
it is more than 1, a bit differs that must not, or anything is written that is not the kernel's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import cases
import ml_dtypes
import numpy as np
import reference

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Epilogue, Geometry, RngKey, TieredRows
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY

from .edges import attention, maxima_back, over_a_halo, values_by_head
from .engine import DTYPES, Engine
from .played import MARGIN, Played, drawn_reach
from .samples import samples
from .tapes import propagated
from .tiered import rows_of_tiers
from .traversals import traversals

ANY = 0  # a width that is drawn each time
EDGES = ("attention", "max back", "by head", "edges of a halo", "propagate", "propagate over a halo")
OTHERS = ("traversals", "sampling")  # of no rows
FEW_WIDTHS = (1, 31, 129)  # a lane in part, a worker in part, several passes of a warp in float32
ONE_PROCESS = ("halo in turns", "large", "traversals", "sampling")  # which plays the PEs
TRANSFERS = ("direct", "get", "halo")
TIERS = "gather of tiers"
RANKS = 3
CALLS = 5  # of a pipeline: the third waits for a credit
HOST = (
    "sum",
    "weighted",
    "mean",
    "max",
    "epilogue",
    "get",
    "halo",
    "same bits",
    "transposed",
    "dropout",
)  # of CPUs
HOST += ("gather", "attention", "max back", "by head", "propagate")
WORLDS = [(1, "direct"), *((ranks, transfer) for ranks in (2, 4) for transfer in TRANSFERS)]  # of CPUs


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    operation: str
    dtype: str
    width: int
    case: str
    transfer: str = "direct"
    ranks: int = RANKS

    def __str__(self) -> str:
        world = "" if self.ranks == RANKS else f"-{self.transfer}-{self.ranks}"
        return f"{self.operation}-{self.dtype}-{self.width}-{self.case}{world}"


def entries(*, whole: bool, small: bool = False) -> Iterator[Entry]:
    """All of a GPU; where not whole, sums at every width and the others at a few; where small, each over two graphs."""
    if small:
        yield from (Entry(name, "float32", 33, case) for name in OPERATIONS for case in ("ordinary", "hub"))
        return
    for operation in OPERATIONS:
        if operation in OTHERS:
            yield from (Entry(operation, "float32", ANY, case) for case in cases.CASES)
            continue
        if operation in EDGES:  # shapes are drawn
            yield from (Entry(operation, "float32", ANY, case) for case in cases.CASES)
            yield from (Entry(operation, dtype, ANY, "hub") for dtype in ("float16", "bfloat16"))
            continue
        widths = cases.WIDTHS if whole or operation in ("sum", "weighted") else FEW_WIDTHS
        few = {"dropout": FEW_WIDTHS, "same bits": FEW_WIDTHS}
        widths = {"large": (64, 513), TIERS: (1, 33, 257, 600), **few}.get(operation, widths)
        for dtype in DTYPES:
            if operation in ("get", "halo", "halo in turns"):  # each takes many calls
                widths = FEW_WIDTHS[1:2] if not whole else FEW_WIDTHS if dtype != "float32" else cases.WIDTHS
            for width in widths:
                for case in ("ordinary",) if operation in ("large", "dropout", TIERS) else cases.CASES:
                    yield Entry(operation, dtype, width, case)


def host_entries() -> Iterator[Entry]:
    """All of CPUs, at widths that are drawn."""
    for operation in HOST:
        for dtype in DTYPES if operation == "propagate" else (*DTYPES, "float64"):
            for case in cases.CASES:
                for ranks, transfer in WORLDS:
                    if operation == transfer or operation not in TRANSFERS:
                        yield Entry(operation, dtype, ANY, case, transfer, ranks)


def check(engine: Engine, entry: Entry, rng: np.random.Generator, remote_share: float | None = None) -> float:
    """Run one line; see above. remote_share: of two ranks, the second owns this share of all rows."""
    case = cases.CASES[entry.case](rng, engine.job.size if engine.job else entry.ranks)
    if remote_share is not None:
        case = replace(case, bounds=np.array([0, round(case.nodes * (1 - remote_share)), case.nodes]))
    return OPERATIONS[entry.operation](engine, case, entry, rng)


def within(found: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> float:
    """The worst error as a share of its bound."""
    error = np.abs(found.astype(np.float64) - wanted)
    assert found.shape == wanted.shape
    assert (error <= bound).all(), f"{np.count_nonzero(~(error <= bound))} of {error.size} beyond their bound"
    return float((error / np.maximum(bound, 1e-300)).max(initial=0.0))


def random_rows(case: cases.Case, entry: Entry, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((case.nodes, entry.width)).astype(entry.dtype)


def whole_rows(case: cases.Case, entry: Entry, rng: np.random.Generator) -> np.ndarray:
    """Small whole numbers: their sums are exact in every type, but for rounding what is stored."""
    return rng.integers(-2, 3, (case.nodes, entry.width)).astype(entry.dtype)


def accumulated(entry: Entry) -> type:
    """The type of sums, of weights and of what is done to sums."""
    return np.float64 if entry.dtype == "float64" else np.float32


def weights(case: cases.Case, entry: Entry, rng: np.random.Generator) -> np.ndarray:
    """Weights of all edges, some of which are 0: with others above 0 alone, with any, and of some rows all."""
    destination = case.edge_list[1]
    weight = rng.standard_normal(len(destination))
    weight = np.where(destination % 5 < 2, np.abs(weight), weight)
    nothing = (rng.random(len(weight)) < 0.2) | (destination % 5 == 2)
    return np.where(nothing, 0, weight).astype(accumulated(entry))


def sums(engine, case, entry, rng, *, weighted=False):
    """Sums of normally distributed rows, within the bound."""
    x = random_rows(case, entry, rng)
    weight = weights(case, entry, rng) if weighted else None
    found = Played(engine, case, x, transfer=entry.transfer).aggregate(rng, weight=weight)
    arguments = (*case.edge_list, case.nodes, x, weight)
    return within(found, reference.aggregate(*arguments), reference.error_bound(*arguments))


def same_bits(engine, case, entry, rng):
    """Whatever the order of execution and the number of threads, and however often; on GPUs whatever the transfer."""
    found, cpus = defaultdict(set), engine.device == "serial"
    for transfer in (entry.transfer,) if cpus else TRANSFERS:
        for threads in (1, 2, 3, 8) if cpus else (1,):
            x = random_rows(case, entry, np.random.default_rng(1))
            played = Played(engine, case, x, transfer=transfer, threads=threads)
            found[threads] |= {played.aggregate(rng).tobytes() for _ in range(engine.repeats)}
    assert len(set().union(*found.values())) == 1, f"different results: {[*map(len, found.values())]}"
    return 0.0


def means(engine, case, entry, rng, *, reduce="mean"):
    """Aggregate whole numbers: a maximum is exact, a mean is rounded once, and once more as it is stored."""
    x, worst = whole_rows(case, entry, rng) - np.dtype(entry.dtype).type(3), 0.0  # below an empty maximum's 0
    weight = np.trunc(2 * weights(case, entry, rng))
    eps = float(np.finfo(accumulated(entry)).eps)
    eps += (x.dtype.itemsize == 2) * float(ml_dtypes.finfo(x.dtype).eps)
    played = Played(engine, case, x, transfer=entry.transfer)
    for each in (None, weight):
        wanted = reference.aggregate(*case.edge_list, case.nodes, x, each, reduce)
        bound = np.abs(wanted) * eps if reduce == "mean" else np.zeros_like(wanted)
        worst = max(worst, within(played.aggregate(rng, reduce, each), wanted, bound))
    return worst


def epilogues(engine, case, entry, rng):
    """Scaled by powers of two, plus a bias of whole numbers, with and without ReLU: exact, but for rounding what is
    stored. ReLU hides no NaN."""
    x, wide = whole_rows(case, entry, rng), accumulated(entry)
    scale = (2.0 ** rng.integers(-2, 3, case.nodes)).astype(wide)
    bias = rng.integers(-8, 9, entry.width).astype(wide)
    lost = rng.random(case.nodes) < 0.02
    x[lost] = np.nan
    plain = reference.aggregate(*case.edge_list, case.nodes, x) * scale[:, None] + bias
    played = Played(engine, case, x, transfer=entry.transfer)
    for relu in (False, True):
        found = played.aggregate(rng, epilogue=Epilogue(scale, bias, relu))
        wanted = (np.maximum(plain, 0) if relu else plain).astype(x.dtype)
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    return 0.0


def transposed(engine, case, entry, rng):
    """The backward: the same kernel over the plan of the reversed edges is the adjoint, <A x, y> = <x, A' y>."""
    x, y = whole_rows(case, entry, rng), whole_rows(case, entry, rng)
    source, destination = case.edge_list
    back = cases.csr(destination, source, case.nodes, case.bounds)
    forward = Played(engine, case, x).aggregate(rng).astype(np.float64)
    backward = Played(engine, back, y).aggregate(rng).astype(np.float64)
    left, right = np.sum(forward * y.astype(np.float64)), np.sum(x.astype(np.float64) * backward)
    wanted = np.sum(reference.sddmm(source, destination, x, y))
    exact = entry.dtype != "bfloat16"  # which stores whole numbers up to 256 only
    bound = 0.0 if exact else 2.0**-8 * np.sum(reference.sddmm(source, destination, np.abs(x), np.abs(y)))
    return max(within(np.array([found]), np.array([wanted]), np.array([bound])) for found in (left, right))


def dots(engine, case, entry, rng):
    """SDDMM, and nothing written but its values. What lies behind rows is NaN, and takes no part."""
    x, y = random_rows(case, entry, rng), random_rows(case, entry, rng)
    played = Played(engine, case, x)
    wide = RowFormat(played.format.dtype, played.format.stride)

    def call(backend, plan, rows, out, mine):
        own = mine["own"] = engine.nan_rows(backend, len(mine["y"]), wide)[
            :, : entry.width
        ]  # kept until the end
        own[:] = mine["y"]
        backend.edges.sddmm(plan, rows, own, out["edges"][:, 0])

    (found,) = played.run(rng, [played.rows], {"edges": 1}, {"y": y}, call)
    ends = (*case.edge_list, x, y)
    return within(found["edges"][:, 0], reference.sddmm(*ends), reference.sddmm_bound(*ends))


def gathers(engine, case, entry, rng):
    """Rows by number from all ranks, some of them often; exact. Over the shim pointers lead to some PEs only."""
    x = random_rows(case, entry, rng)
    played = Played(engine, case, x, reaches=drawn_reach(engine, len(case.bounds) - 1, rng))
    ids = rng.integers(0, case.nodes, 3 * case.nodes + 1 if case.nodes else 0)
    many, chosen = np.full(len(case.bounds) - 1, len(ids) + MARGIN), engine.array(ids)
    into = [each.rows(many, played.format, symmetric=True).local for each in played.backends]  # for gets
    tables = [TieredRows.of_ranks(rows, case.bounds) for rows in played.rows]

    def gather(backend, table, out):
        out[:] = float("nan")
        by = backend.gather if engine.device == "serial" else partial(backend.gathers.rows, backend)
        by(table, chosen, out[: len(ids)])

    engine.seed(int(rng.integers(1 << 60)))
    parts = zip(played.backends, tables, into, strict=True)
    engine.together(played.world, [[partial(gather, *each) for each in parts]])
    for found in map(engine.numpy, into):
        assert np.isnan(found[len(ids) :].astype(np.float32)).all(), "wrote behind its rows"
        assert (found[: len(ids)] == x[ids]).all()
    return 0.0


def dropouts(engine, case, entry, rng):
    """Drop whole numbers with probability one half: exact. Draws depend on the nodes' original ids, not on ranks."""
    x, ids = whole_rows(case, entry, rng), rng.integers(0, 2**40, case.nodes)
    key = RngKey(0.5, int(rng.integers(2**62)), *(int(each) for each in rng.integers(1, 1000, 2)))
    played = Played(engine, case, x)

    def call(backend, plan, rows, out, mine):
        backend.dropout(rows.local, out["out"], mine["ids"], key)

    (found,) = played.run(rng, [played.rows], {"out": played.format}, {"ids": ids}, call)
    wanted = reference.dropout(x, ids, key.p, key.seed, key.epoch, key.stream)
    assert (found["out"] == wanted).all(), "keeps other values than the reference"
    return 0.0


def weighted_sums(engine, case, entry, rng):
    """The same with a weight on each edge."""
    return sums(engine, case, entry, rng, weighted=True)


def maxima(engine, case, entry, rng):
    """Exact."""
    return means(engine, case, entry, rng, reduce="max")


def large(engine, case, entry, rng):
    """As kernels are used: blocks of many warps, more shared memory than is there unasked, several waves of blocks.

    On a GPU 20,000 nodes; of the case only its PEs are taken.
    """
    nodes = 20_000 if engine.device == "cuda" else 300
    source, destination = rng.integers(0, nodes, 10 * nodes), rng.integers(0, nodes, 10 * nodes)
    destination[: 2 * nodes] = 7  # a hub
    bounds = case.bounds * nodes // max(1, case.bounds[-1])
    bounds[-1] = nodes
    graph, worst = cases.csr(source, destination, nodes, bounds), 0.0
    x = random_rows(graph, entry, rng)
    for geometry in (DEFAULT_GEOMETRY, Geometry(ps=32, dist=1, wpb=12)):
        found = Played(engine, graph, x, geometry).aggregate(rng)
        arguments = (*graph.edge_list, nodes, x)
        worst = max(worst, within(found, reference.aggregate(*arguments), reference.error_bound(*arguments)))
    return worst


def drawn_pes(case, entry, rng):
    """The graph on one to four PEs, unless it is not on the table's."""
    return cases.CASES[entry.case](rng, int(rng.integers(1, 5))) if len(case.bounds) == RANKS + 1 else case


def on_any_pes(check):
    """The same check with as many PEs as are drawn."""
    return lambda engine, case, entry, rng: check(engine, drawn_pes(case, entry, rng), entry, rng)


def pipelined(engine, case, entry, rng, *, transfer):
    """Against `direct`, bit by bit: any reduction, weights and epilogue, over rows that change from call to call.

    Drawn are who reaches whom by pointer, the sizes of partitions and chunks, and whether there is room to put tasks
    off. Each distinct remote row crosses once in a halo, and each remote edge's otherwise. CPUs promise bits for sums
    of whole numbers alone.
    """
    rows, wide = (whole_rows if engine.device == "serial" else random_rows), accumulated(entry)
    ps = int(rng.choice([1, 2, 3, 7, 16]))  # with 16, a task can have more edges than are summed in one block
    geometry = Geometry(ps, *map(int, rng.integers(1, 4, 2)), far_ps=int(rng.integers(1, 4)))
    geometry = geometry if rng.random() < 0.8 else Geometry(4, 32, 1)
    reduce = str(rng.choice(["sum", "mean", "max"]))
    weight, finish = None, None
    if rng.random() < 0.5:
        weight = rng.standard_normal(len(case.indices)).astype(wide)
        weight = np.rint(weight) if engine.device == "serial" else weight
    if rng.random() < 0.5:
        scale, bias = (rng.standard_normal(size).astype(wide) for size in (case.nodes, entry.width))
        finish = Epilogue(scale, bias, relu=bool(rng.random() < 0.5))
    direct = Played(engine, case, rows(case, entry, rng), geometry)
    reaches = drawn_reach(engine, len(case.bounds) - 1, rng)
    chunk_bytes = int(rng.choice([1, 300, 2000, 1 << 17]))
    other = Played(engine, case, rows(case, entry, rng), geometry, transfer, reaches, chunk_bytes)
    room = rng.choice([None, 0, 100_000])
    wanted, sets = [], []
    for backend in other.backends if room is not None else ():
        backend.deferred_bytes = room
    for _ in range(CALLS):
        x = rows(case, entry, rng)
        direct.write(x)
        wanted.append(direct.aggregate(rng, reduce, weight, finish))
        sets.append(other.more_rows(x))
    if engine.device == "shim":
        engine.module.shim_counts()
    found = other.calls(rng, sets[:-1], reduce, weight, finish)
    found += other.calls(rng, sets[-1:], reduce, weight, finish)
    remote = [remote_sources(case, rank) for rank in range(len(case.bounds) - 1)]
    crossing = CALLS * sum(len(np.unique(each) if transfer == "halo" else each) for each in remote)
    if engine.device == "shim":
        crossed = engine.everywhere([engine.module.shim_counts()["crossed"]])
        assert sum(crossed) == crossing * other.format.row_bytes
    assert sum(engine.everywhere([each.stream.meter.remote_rows for each in other.backends])) == crossing
    if transfer == "halo" and engine.device != "serial":  # as the kernels have counted
        pushed = [b.halo(p).rows_pushed() for b, p in zip(other.backends, other.plans, strict=True)]
        assert sum(engine.everywhere(pushed)) == crossing, f"{pushed} rows were pushed"
    for call, (each, right) in enumerate(zip(found, wanted, strict=True)):
        assert each.tobytes() == right.tobytes(), f"{transfer} differs from direct in call {call + 1}"
    return 0.0


def remote_sources(case: cases.Case, rank: int) -> np.ndarray:
    """Return the sources of a rank's edges that other ranks own."""
    sources = case.part(rank)[1]
    return sources[(sources < case.bounds[rank]) | (sources >= case.bounds[rank + 1])]


def halo_in_turns(engine, case, entry, rng):
    """Against `direct`, bit by bit: a halo of two PEs in one direction, whose kernels run one after the other.

    The second PE has no edges: it packs and pushes all that the first one needs before the first one's kernel begins,
    as a tool that runs one kernel at a time requires.
    """
    source, destination = case.edge_list
    own = (case.nodes + 1) // 2
    mine = destination < own
    graph = cases.csr(source[mine], destination[mine], case.nodes, np.array([0, own, case.nodes]))
    reduce = str(rng.choice(["sum", "mean", "max"]))
    direct = Played(engine, graph, random_rows(graph, entry, rng))
    chunk_bytes = int(rng.choice([1, 300, 2000, 1 << 17]))
    other = Played(engine, graph, random_rows(graph, entry, rng), transfer="halo", chunk_bytes=chunk_bytes)
    for call in range(CALLS):
        x = random_rows(graph, entry, rng)
        direct.write(x)
        other.write(x)
        (found,) = other.calls(rng, [other.rows], reduce, order=(1, 0))
        wanted = direct.aggregate(rng, reduce)
        assert found.tobytes() == wanted.tobytes(), f"differs from direct in call {call + 1}"
    return 0.0


OPERATIONS: dict[str, Callable[..., float]] = {
    "get": on_any_pes(partial(pipelined, transfer="get")),  # remote rows in stages
    "halo": on_any_pes(partial(pipelined, transfer="halo")),  # remote rows once each
    "halo in turns": halo_in_turns,
    "sum": sums,
    "weighted": weighted_sums,
    "mean": means,
    "max": maxima,
    "epilogue": epilogues,
    "transposed": transposed,
    "same bits": same_bits,
    "sddmm": dots,
    "gather": gathers,
    TIERS: rows_of_tiers,
    "dropout": dropouts,
    "large": large,
    "attention": on_any_pes(attention),
    "max back": on_any_pes(maxima_back),
    "by head": on_any_pes(values_by_head),
    "edges of a halo": on_any_pes(over_a_halo),
    "propagate": on_any_pes(propagated),
    "propagate over a halo": on_any_pes(partial(propagated, halo=True)),
    "traversals": traversals,
    "sampling": samples,
}
