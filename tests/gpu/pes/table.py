"""The table of cases: operations, types, widths and hard graphs, each against the float64 reference.

A check returns the worst error as a share of what DESIGN's bound allows (0: exact), and raises AssertionError where
it is more than 1, a bit differs that must not, or anything is written that is not the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import cases
import ml_dtypes
import numpy as np
import reference

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Epilogue, Geometry, RngKey
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY

from .edges import attention, maxima_back, over_a_halo, values_by_head
from .engine import DTYPES, Engine
from .played import MARGIN, Played
from .tapes import propagated
from .traversals import traversals

ANY = 0  # a width that is drawn each time
EDGES = ("attention", "max back", "by head", "edges of a halo", "propagate", "propagate over a halo")
OTHERS = ("traversals",)  # of no rows
FEW_WIDTHS = (1, 31, 129)  # a lane in part, a worker in part, several passes of a warp in float32
ONE_PROCESS = ("halo in turns", "large", "traversals")  # which plays the PEs
RANKS = 3
CALLS = 5  # of a pipeline: the third waits for a credit


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    operation: str
    dtype: str
    width: int
    case: str

    def __str__(self) -> str:
        return f"{self.operation}-{self.dtype}-{self.width}-{self.case}"


def entries(*, whole: bool, small: bool = False) -> Iterator[Entry]:
    """All of them; where not whole, sums at every width and the others at a few; where small, each over two graphs."""
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
        widths = {"large": (64, 513), **few}.get(operation, widths)
        for dtype in DTYPES:
            if operation in ("get", "halo", "halo in turns"):  # each takes many calls
                widths = FEW_WIDTHS[1:2] if not whole else FEW_WIDTHS if dtype != "float32" else cases.WIDTHS
            for width in widths:
                for case in ("ordinary",) if operation in ("large", "dropout") else cases.CASES:
                    yield Entry(operation, dtype, width, case)


def made(engine: Engine, entry: Entry, rng: np.random.Generator, remote_share: float | None) -> cases.Case:
    """The graph; remote_share: of two ranks, the second owns this share of all rows."""
    case = cases.CASES[entry.case](rng, engine.job.size if engine.job else RANKS)
    if remote_share is None:
        return case
    return replace(case, bounds=np.array([0, round(case.nodes * (1 - remote_share)), case.nodes]))


def check(engine: Engine, entry: Entry, rng: np.random.Generator, remote_share: float | None = None) -> float:
    """Run one line; see above."""
    return OPERATIONS[entry.operation](engine, made(engine, entry, rng, remote_share), entry, rng)


def within(found: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> float:
    """The worst error as a share of its bound."""
    error = np.abs(found.astype(np.float64) - wanted)
    assert (error <= bound).all(), f"{np.count_nonzero(~(error <= bound))} of {error.size} beyond their bound"
    return float((error / np.maximum(bound, 1e-300)).max(initial=0.0))


def random_rows(case: cases.Case, entry: Entry, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((case.nodes, entry.width)).astype(DTYPES[entry.dtype])


def whole_rows(case: cases.Case, entry: Entry, rng: np.random.Generator) -> np.ndarray:
    """Small whole numbers: their sums are exact in every type, but for rounding what is stored."""
    return rng.integers(-2, 3, (case.nodes, entry.width)).astype(DTYPES[entry.dtype])


def sums(engine, case, entry, rng, *, weighted=False):
    """Sums of normally distributed rows, within the bound."""
    x = random_rows(case, entry, rng)
    weight = rng.standard_normal(len(case.indices)).astype(np.float32) if weighted else None
    world = Played(engine, case, x)
    arguments = (*world.edge_lists(), case.nodes, x, weight)
    found = world.aggregate(rng, weight=weight)
    return within(found, reference.aggregate(*arguments), reference.error_bound(*arguments))


def same_bits(engine, case, entry, rng):
    """Whatever the transfer and the order of execution, and however often."""
    found, runs = set(), engine.repeats
    for transfer in ("direct", "get", "halo"):
        world = Played(engine, case, random_rows(case, entry, np.random.default_rng(1)), transfer=transfer)
        found |= {world.aggregate(rng).tobytes() for _ in range(runs)}
    assert len(found) == 1, f"{len(found)} different results of {3 * runs}"
    return 0.0


def means(engine, case, entry, rng, *, reduce="mean"):
    """Aggregate whole numbers: a maximum is exact, a mean is rounded once, and once more as it is stored."""
    x = whole_rows(case, entry, rng)
    world = Played(engine, case, x)
    wanted = reference.aggregate(*world.edge_lists(), case.nodes, x, None, reduce)
    eps = float(np.finfo(np.float32).eps) + (entry.dtype != "float32") * float(ml_dtypes.finfo(x.dtype).eps)
    bound = np.abs(wanted) * eps if reduce == "mean" else np.zeros_like(wanted)
    return within(world.aggregate(rng, reduce), wanted, bound)


def epilogues(engine, case, entry, rng):
    """Scaled by powers of two, plus a bias of whole numbers, through ReLU: exact, but for rounding what is stored."""
    x = whole_rows(case, entry, rng)
    scale = (2.0 ** rng.integers(-2, 3, case.nodes)).astype(np.float32)
    bias = rng.integers(-8, 9, entry.width).astype(np.float32)
    world = Played(engine, case, x)

    def epilogue(part):
        return Epilogue(engine.array(scale[part]), engine.array(bias), relu=True)

    wanted = reference.aggregate(*world.edge_lists(), case.nodes, x) * scale[:, None] + bias
    wanted = np.maximum(wanted, 0).astype(x.dtype).astype(np.float64)
    return within(world.aggregate(rng, epilogue=epilogue), wanted, np.zeros_like(wanted))


def transposed(engine, case, entry, rng):
    """The backward: the same kernel over the plan of the reversed edges is the adjoint, <A x, y> = <x, A' y>."""
    x, y = whole_rows(case, entry, rng), whole_rows(case, entry, rng)
    source, destination = reference.edge_list(case.indptr, case.indices)
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
    world, worst = Played(engine, case, x), 0.0
    for backend, plan, rows, part, edges in world.each(rng):
        local = slice(0, part.stop - part.start)
        wide = backend.memory.padded(
            part.stop - part.start, RowFormat(world.format.dtype, world.format.stride)
        )
        wide[:] = float("nan")
        mine = wide[:, : entry.width]
        engine.fill(mine, y[part][local])
        beyond = engine.array(np.full(plan.edges + MARGIN, np.nan, np.float32))
        backend.edges.sddmm(plan, rows, mine, beyond[: plan.edges])
        found = engine.numpy(beyond)
        assert np.isnan(found[plan.edges :]).all(), "wrote behind its values"
        source, destination = (ids[edges][plan.edge] for ids in world.edge_lists())
        wanted = reference.sddmm(source, destination, x, y)
        bound = reference.sddmm_bound(source, destination, x, y)
        worst = max(worst, within(found[: plan.edges], wanted, bound))
    return worst


def gathers(engine, case, entry, rng):
    """Rows by number from all ranks, some of them often; exact, and nothing written behind them."""
    x = random_rows(case, entry, rng)
    world = Played(engine, case, x)
    ids = rng.integers(0, case.nodes, 3 * case.nodes + 1 if case.nodes else 0)
    for backend, _, rows, _, _ in world.each(rng):
        beyond = backend.symmetric(len(ids) + MARGIN, world.format).local  # into which gets may write
        beyond[:] = float("nan")
        backend.gathers.rows(backend, rows, case.bounds, engine.array(ids), beyond[: len(ids)])
        found = engine.numpy(beyond)
        assert np.isnan(found[len(ids) :].astype(np.float32)).all(), "wrote behind its rows"
        assert (found[: len(ids)] == x[ids]).all()
    return 0.0


def dropouts(engine, case, entry, rng):
    """Drop whole numbers with probability one half: exact. Draws depend on the nodes' original ids, not on ranks."""
    x, ids = whole_rows(case, entry, rng), rng.integers(0, 2**40, case.nodes)
    key = RngKey(0.5, int(rng.integers(2**62)), *(int(each) for each in rng.integers(1, 1000, 2)))
    world = Played(engine, case, x)
    for backend, _, rows, part, _ in world.each(rng):
        beyond = engine.nan_rows(backend, part.stop - part.start + MARGIN, world.format)
        out = beyond[: part.stop - part.start]
        backend.dropout(rows.local, out, engine.array(ids[part]), key)
        found = engine.numpy(beyond)
        assert np.isnan(found[len(out) :].astype(np.float32)).all(), "wrote behind its rows"
        wanted = reference.dropout(x[part], ids[part], key.p, key.seed, key.epoch, key.stream)
        assert (found[: len(out)] == wanted).all(), "keeps other values than the reference"
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
        world = Played(engine, graph, x, geometry)
        arguments = (*world.edge_lists(), nodes, x)
        bound = reference.error_bound(*arguments)
        worst = max(worst, within(world.aggregate(rng), reference.aggregate(*arguments), bound))
    return worst


def drawn_pes(case, entry, rng):
    """The graph on one to four PEs, unless it is not on the table's."""
    return cases.CASES[entry.case](rng, int(rng.integers(1, 5))) if len(case.bounds) == RANKS + 1 else case


def on_any_pes(check):
    """The same check with as many PEs as are drawn."""
    return lambda engine, case, entry, rng: check(engine, drawn_pes(case, entry, rng), entry, rng)


def pipelined(engine, case, entry, rng, *, transfer):
    """Against `direct`, bit by bit: any reduction, weights and epilogue, over rows that change from call to call.

    The number of PEs, who reaches whom by pointer, and the sizes of partitions and chunks are drawn.
    """
    case = drawn_pes(case, entry, rng)
    ranks = len(case.bounds) - 1
    reach = np.ones((ranks, ranks), bool)
    if engine.device == "shim":
        reach = rng.random((ranks, ranks)) < rng.choice([0.0, 0.5, 1.0])
    ps = int(rng.choice([1, 2, 3, 16]))  # with 16, a task can have more edges than are summed in one block
    geometry = Geometry(ps, *(int(each) for each in rng.integers(1, 4, 2)), far_ps=int(rng.integers(1, 4)))
    return compare(engine, case, entry, rng, transfer, reach | reach.T | np.eye(ranks, dtype=bool), geometry)


def compare(engine, case, entry, rng, transfer, reach, geometry, deferred_bytes=None):
    """A transfer's sums against those of `direct`, in several calls; reach: bool [P, P]."""
    reduce = str(rng.choice(["sum", "mean", "max"]))
    weight = rng.standard_normal(len(case.indices)).astype(np.float32) if rng.random() < 0.5 else None
    scale = rng.standard_normal(case.nodes).astype(np.float32)
    finish = None
    if rng.random() < 0.5:
        bias = engine.array(rng.standard_normal(entry.width).astype(np.float32))

        def finish(part):
            return Epilogue(engine.array(scale[part]), bias, relu=bool(scale.sum() > 0))

    direct = Played(engine, case, random_rows(case, entry, rng), geometry)
    other = Played(
        engine,
        case,
        random_rows(case, entry, rng),
        geometry,
        transfer,
        lambda rank, peer: bool(reach[rank, peer]),
        int(rng.choice([1, 300, 2000, 1 << 17])),
    )
    if deferred_bytes is not None:
        for backend in other.backends:
            backend.deferred_bytes = deferred_bytes
    wanted, sets = [], []
    for _ in range(CALLS):
        x = random_rows(case, entry, rng)
        direct.write(x)
        wanted.append(direct.aggregate(rng, reduce, weight, finish))
        sets.append(other.more_rows(x))
    found = other.calls(rng, sets[:-1], reduce, weight, finish)
    found += other.calls(rng, sets[-1:], reduce, weight, finish)
    if transfer == "halo":  # each distinct remote row once, as the kernels have counted
        pushed = [b.halo(p).rows_pushed() for b, p in zip(other.backends, other.plans, strict=True)]
        pushed = engine.everywhere(pushed)
        assert sum(pushed) == CALLS * distinct_remote_rows(case), f"{pushed} rows were pushed"
    for call, (each, right) in enumerate(zip(found, wanted, strict=True)):
        assert each.tobytes() == right.tobytes(), f"{transfer} differs from direct in call {call + 1}"
    return 0.0


def halo_in_turns(engine, case, entry, rng):
    """Against `direct`, bit by bit: a halo of two PEs in one direction, whose kernels run one after the other.

    The second PE has no edges: it packs and pushes all that the first one needs before the first one's kernel begins,
    as a tool that runs one kernel at a time requires.
    """
    source, destination = reference.edge_list(case.indptr, case.indices)
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
        found = other.one_by_one(rng, (1, 0), reduce)
        assert found.tobytes() == direct.aggregate(rng, reduce).tobytes(), (
            f"differs from direct in call {call + 1}"
        )
    return 0.0


def distinct_remote_rows(case: cases.Case) -> int:
    """Return the number of distinct remote rows of all ranks together."""
    found = 0
    for rank in range(len(case.bounds) - 1):
        sources = np.unique(case.part(rank)[1])
        found += int(((sources < case.bounds[rank]) | (sources >= case.bounds[rank + 1])).sum())
    return found


def gets(engine, case, entry, rng):
    """Remote rows in stages; see `pipelined`."""
    return pipelined(engine, case, entry, rng, transfer="get")


def halos(engine, case, entry, rng):
    """Remote rows once each; see `pipelined`."""
    return pipelined(engine, case, entry, rng, transfer="halo")


OPERATIONS: dict[str, Callable[..., float]] = {
    "get": gets,
    "halo": halos,
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
    "dropout": dropouts,
    "large": large,
    "attention": on_any_pes(attention),
    "max back": on_any_pes(maxima_back),
    "by head": on_any_pes(values_by_head),
    "edges of a halo": on_any_pes(over_a_halo),
    "propagate": on_any_pes(propagated),
    "propagate over a halo": on_any_pes(partial(propagated, halo=True)),
    "traversals": traversals,
}
