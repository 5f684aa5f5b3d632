"""Aggregations in parts, on the host and over the shim: what each part moves, and what it sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cases
import numpy as np
import pytest
import reference
from gpu.pes.played import Played
from world import SMALL, plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

TRANSFERS = ["direct", "get", "halo"]
REMOTE = ["ordinary", "all_remote", "one_way", "rank_without_rows"]
WIDTH = 5


def drawn(rng, name):
    """A case, and its rows and weights in whole numbers, whose sums are exact in any order."""
    case = cases.CASES[name](rng, 3)
    x = rng.integers(-9, 9, (case.nodes, WIDTH)).astype(np.float32)
    return case, x, rng.integers(1, 5, len(case.indices)).astype(np.float32)


def sums(case, x, weight):
    return reference.aggregate(*case.edge_list, case.nodes, x, weight)


def counts_of_edges(case, weight):
    """Return the sums of rows of ones."""
    return sums(case, np.ones((case.nodes, WIDTH), np.float32), weight)


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("case", REMOTE)
def test_parts_on_a_host(rng, case, transfer):
    made, x, weight = drawn(rng, case)
    world, plans = World(3), plans_of(made, transfer)
    backends = [SerialBackend(rank, world, Options(SMALL, 2)) for rank in range(3)]
    rows = [each.rows(np.diff(made.bounds), RowFormat(x.dtype, WIDTH), symmetric=True) for each in backends]
    for rank, (backend, plan) in enumerate(zip(backends, plans, strict=True)):
        rows[rank].local[:] = x[made.rows(rank)]
        backend.prepare(plan, rows[rank].format)

    def play(rank):
        backend, plan = backends[rank], plans[rank]
        out = backend.memory.padded(plan.destinations, rows[rank].format)
        edge = weight[made.edges(rank)][plan.edge]
        parts = backend.phases(plan, "mul", rows[rank], out, edge=edge)
        metered = []
        for _ in range(3):  # each part is timed again and again
            out[:] = np.nan
            for part in (parts.transfer_only, parts.compute_only):
                part()
                metered.append(backend.stream.meter.taken())
        return out, metered

    with ThreadPoolExecutor(3) as pool:
        played = list(pool.map(play, range(3)))
    found = np.concatenate([out for out, _ in played])
    # A halo's sums are of what has arrived; elsewhere they are of rows of ones.
    arrived = transfer == "halo"
    np.testing.assert_array_equal(found, sums(made, x, weight) if arrived else counts_of_edges(made, weight))
    for plan, (_, metered) in zip(plans, played, strict=True):
        for move, add in zip(metered[::2], metered[1::2], strict=True):
            assert arrived or (move.local_bytes, move.remote_rows) == (0, plan.remote_edges)
            assert add.remote_rows == (len(plan.lists.send_rows) if arrived else 0)


def count_edges(backend, asked):
    """From now on ``asked`` takes the number of edges of each plan that is aggregated."""
    aggregate = backend.aggregate

    def counted(plan, *arguments, **more):
        asked.append(plan.edges)
        aggregate(plan, *arguments, **more)

    backend.aggregate = counted


@pytest.mark.parametrize(
    ("transfer", "reach"),
    [("direct", "near"), ("get", "near"), ("get", "far"), ("halo", "near"), ("halo", "far")],
)
@pytest.mark.parametrize("case", REMOTE)
def test_parts_over_the_shim(rng, engine, case, transfer, reach):
    made, x, weight = drawn(rng, case)
    played = Played(engine, made, x, SMALL, transfer, lambda a, b: a == b or reach == "near")
    outs, parts = [], []
    for backend, plan, rows, _, edges in played.each(rng):
        out = engine.nan_rows(backend, plan.destinations, played.format)
        edge = engine.array(weight[edges][plan.edge])
        parts.append((backend.phases(plan, "mul", rows, out, edge=edge), edge))
        outs.append(out)
        backend.ready(plan, rows)
    asked = []
    for backend in played.backends:
        count_edges(backend, asked)
    crossing = [
        len(plan.lists.send_rows) if transfer == "halo" else plan.remote_edges for plan in played.plans
    ]
    for turn in range(1, 4):
        for name in ("transfer_only", "compute_only"):
            for backend in played.backends:
                backend.stream.meter.taken()
            engine.seed(int(rng.integers(1 << 60)))
            asked.clear()
            with engine.together(played.world) as of:
                for rank, (part, _) in enumerate(parts):
                    with of(rank):
                        getattr(part, name)()
            counted = [backend.stream.meter.taken() for backend in played.backends]
            assert not any(each.local_bytes for each in counted)
            moved = [0] * 3 if name == "compute_only" else crossing
            assert [each.remote_rows for each in counted] == moved
            assert name == "compute_only" or asked == ([0] * 3 if transfer == "halo" else crossing)
        if transfer == "halo":
            found = [
                b.halo(plan).rows_pushed() for b, plan in zip(played.backends, played.plans, strict=True)
            ]
            assert sum(found) == turn * sum(len(plan.halo) for plan in played.plans)
    found = np.concatenate([engine.numpy(out) for out in outs])
    np.testing.assert_array_equal(found, counts_of_edges(made, weight))
    # What the parts share with the whole still works for it.
    wanted = sums(made, x, weight)
    np.testing.assert_array_equal(played.aggregate(rng, weight=weight), wanted)
