"""Aggregations in parts, on the host and over the shim: what each part moves, and what it sums."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from gpu.pes.engine import Engine
from gpu.pes.played import Played
from gpu.pes.table import TRANSFERS
from world import SMALL

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
    """Each part is timed again and again."""
    made, x, weight = drawn(rng, case)
    played = Played(Engine.host(), made, x, SMALL, transfer)
    metered = [[] for _ in played.plans]

    def call(backend, plan, rows, out, mine):
        parts = backend.profiling.phases(plan, rows, out["out"], edge=mine["edges"])
        for part in 3 * (parts.transfer_only, parts.compute_only):
            part()
            metered[backend.collectives.rank].append(backend.stream.meter.taken())

    (found,) = played.run(rng, [played.rows], {"out": played.format}, {"edges": weight}, call)
    # A halo's sums are of what has arrived; elsewhere they are of rows of ones.
    arrived = transfer == "halo"
    wanted = sums(made, x, weight) if arrived else counts_of_edges(made, weight)
    np.testing.assert_array_equal(found["out"], wanted)
    for plan, each in zip(played.plans, metered, strict=True):
        for move, add in zip(each[::2], each[1::2], strict=True):
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
    outs, parts, asked = [], [], []
    for rank, (backend, plan, rows) in enumerate(
        zip(played.backends, played.plans, played.rows, strict=True)
    ):
        outs.append(engine.nan_rows(backend, plan.destinations, played.format))
        edge = weight[made.edges(rank)][plan.edge]
        parts.append(backend.profiling.phases(plan, rows, outs[-1], edge=edge))
        backend.ready(plan, rows)
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
            engine.together(played.world, [[getattr(part, name) for part in parts]])
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
    found = np.concatenate(outs)
    np.testing.assert_array_equal(found, counts_of_edges(made, weight))
    # What the parts share with the whole still works for it.
    wanted = sums(made, x, weight)
    np.testing.assert_array_equal(played.aggregate(rng, weight=weight), wanted)
