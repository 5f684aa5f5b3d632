"""The pipelined kernels over the shim: any PEs and ways to reach them, rows that cross, and effects of the knobs."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes import table
from gpu.pes.engine import SMALL
from gpu.pes.played import Played
from tiers import long_except
from world import plans_of

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.runtime.backends.simulated import all_reachable

REACH = {
    "all": lambda ranks: np.ones((ranks, ranks), bool),
    "none": lambda ranks: np.eye(ranks, dtype=bool),
    "nodes of two": lambda ranks: np.arange(ranks)[:, None] // 2 == np.arange(ranks) // 2,
}
REMOTE = ("ordinary", "all_remote", "hub")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transfer", ["get", "halo"])
@pytest.mark.parametrize("reach", REACH)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("case", cases.CASES)
def test_bits_equal_those_of_direct(rng, engine, case, ranks, reach, transfer):
    entry = table.Entry(transfer, "float32", 33, case)
    made = cases.CASES[case](rng, ranks)
    table.compare(engine, made, entry, rng, transfer, REACH[reach](ranks), SMALL)


@pytest.mark.sampled
@pytest.mark.parametrize("case", ["ordinary", "hub", "all_remote"])
@pytest.mark.parametrize("transfer", ["get", "halo"])
@pytest.mark.parametrize("geometry", [Geometry(1, 1, 1), Geometry(7, 3, 4, 2), Geometry(8, 32, 1)], ids=str)
def test_any_geometry(rng, engine, transfer, geometry, case):
    entry = table.Entry(transfer, "bfloat16", 31, case)
    made = cases.CASES[case](rng, 3)
    table.compare(engine, made, entry, rng, transfer, REACH["nodes of two"](3), geometry)


@pytest.mark.sampled
@pytest.mark.parametrize("case", long_except(REMOTE, "ordinary", "all_remote"))
@pytest.mark.parametrize("ranks", [2, 4])
def test_without_room_to_put_tasks_off_workers_wait(rng, engine, ranks, case):
    entry = table.Entry("halo", "float32", 129, case)
    made = cases.CASES[case](rng, ranks)
    reach = REACH[str(rng.choice(list(REACH)))](ranks)
    for room in (0, 100_000):
        table.compare(engine, made, entry, rng, "halo", reach, SMALL, deferred_bytes=room)


@pytest.mark.sampled
@pytest.mark.parametrize("reach", REACH)
@pytest.mark.parametrize(
    "case", ["ordinary", "one_way", "rank_without_rows", "duplicates", "self_loops", "no_edges"]
)
def test_each_distinct_remote_row_crosses_once_in_halo_and_once_an_edge_otherwise(rng, engine, case, reach):
    made = cases.CASES[case](rng, 4)
    x = rng.standard_normal((made.nodes, 33)).astype(np.float32)
    for transfer in ("direct", "get", "halo"):
        reaches = REACH["all" if transfer == "direct" else reach](4)
        played = Played(
            engine, made, x, transfer=transfer, reaches=lambda rank, peer, of=reaches: bool(of[rank, peer])
        )
        distinct = sum(len(np.unique(remote_sources(made, rank))) for rank in range(4))
        edges = sum(len(remote_sources(made, rank)) for rank in range(4))
        rows = distinct if transfer == "halo" else edges
        engine.module.shim_counts()
        for call in range(3):
            played.aggregate(rng)
            assert engine.module.shim_counts()["crossed"] == rows * played.format.row_bytes
            if transfer == "halo":
                pushed = [b.halo(p).rows_pushed() for b, p in zip(played.backends, played.plans, strict=True)]
                assert sum(pushed) == (call + 1) * rows
            metered = sum(backend.stream.meter.remote_rows for backend in played.backends)
            assert metered == (call + 1) * rows


def remote_sources(case, rank):
    """Return the sources of a rank's edges that other ranks own."""
    sources = case.part(rank)[1]
    return sources[(sources < case.bounds[rank]) | (sources >= case.bounds[rank + 1])]


def schedule(engine, rng, geometry, reach):
    """What the shim counted of one call in which every edge is remote: a PE sums, and the other only owns."""
    nodes, degree = 64, 24
    destination = np.repeat(np.arange(nodes // 2), degree)
    source = nodes // 2 + rng.integers(0, nodes // 2, len(destination))
    case = cases.csr(source, destination, nodes, np.array([0, nodes // 2, nodes]))
    x = rng.standard_normal((nodes, 128)).astype(np.float32)  # a warp each row
    reaches = (lambda rank, peer: rank == peer) if reach == "far" else all_reachable
    played = Played(engine, case, x, geometry, "get", reaches)
    backend, plan = played.backends[0], played.plans[0]
    out = backend.memory.padded(plan.destinations, played.format)
    found = []
    for _ in range(4):  # a lane that is late may ask when others have what they asked for
        engine.module.shim_counts()
        engine.seed(int(rng.integers(1 << 60)))
        with engine.together(played.world) as of, of(0):
            backend.aggregate(plan, "copy", "sum", played.rows[0], out)
        found.append(engine.module.shim_counts())
    return max(found, key=lambda counts: counts["most_under_way"])


@pytest.mark.parametrize("reach", ["near", "far"])
def test_each_knob_changes_what_the_paper_says_and_nothing_else(rng, engine, reach):
    """ps: rows of a stage. dist: stages under way. wpb: warps of a block. (MGG, sections 3.3 and 4.)"""
    found = {
        (ps, dist, wpb): schedule(engine, rng, Geometry(ps, dist, wpb), reach)
        for ps, dist, wpb in [(3, 2, 2), (6, 2, 2), (3, 4, 2), (3, 2, 4)]
    }
    for (ps, _, wpb), counts in found.items():
        assert counts["most_rows_a_stage"] == ps
        assert counts["threads"] == 32 * wpb
    assert found[6, 2, 2]["stages"] == found[3, 2, 2]["stages"] / 2 == 32 * 24 / 6
    # More stages under way, of as many rows each: what a warp has asked for, where it has as much to do.
    for (ps, dist, _), counts in found.items():
        assert counts["most_under_way"] == ps * dist
    # numWarps = partitions / dist, numBlocks = numWarps / wpb, where more would fit at once.
    if reach == "near":
        partitions = {ps: 32 * 24 // ps for ps in (3, 6)}
        for (ps, dist, wpb), counts in found.items():
            assert counts["blocks"] == -(-partitions[ps] // (dist * wpb))


def test_rows_out_of_reach_have_a_partition_size_of_their_own(rng, engine):
    for reach, rows in (("near", 8), ("far", 2)):
        counts = schedule(engine, rng, Geometry(8, 2, 2, far_ps=2), reach)
        assert counts["most_rows_a_stage"] == rows


def test_calls_over_rows_of_several_widths_share_an_exchange(rng, engine):
    """Chunks of narrow rows hold more of them; signals stay those of their senders."""
    case = cases.ordinary(rng, 3)
    wide = rng.standard_normal((case.nodes, 65)).astype(np.float32)
    played = Played(engine, case, wide, transfer="halo", chunk_bytes=600)
    for width in (65, 3, 3, 65, 17, 65, 1):
        x = rng.standard_normal((case.nodes, width)).astype(np.float32)
        wanted = Played(engine, case, x).aggregate(rng)
        played.format = RowFormat(np.dtype(np.float32), width)
        played.rows = [rows.shaped(width) for rows in played.rows]
        played.write(x)
        np.testing.assert_array_equal(played.aggregate(rng), wanted)


def test_ranks_that_need_no_rows_have_a_ring_of_the_same_size(rng, engine):
    entry = table.Entry("get", "float32", 33, "one_way")
    case = cases.one_way(rng, 3)
    table.compare(engine, case, entry, rng, "get", REACH["none"](3), SMALL)


def test_without_a_transport_all_pes_must_be_within_reach(rng, engine):
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 5)).astype(np.float32)
    for transfer in ("get", "halo"):
        reaches = REACH["none"](2)
        played = Played(
            engine, case, x, transfer=transfer, reaches=lambda rank, peer, of=reaches: bool(of[rank, peer])
        )
        for backend in played.backends:
            backend.has_gets = False
        with pytest.raises(
            ValueError, match=f"{transfer}: .* of PE 1 .* not reachable .* NVSHMEM does not run"
        ):
            played.aggregate(rng)


def test_what_does_not_fit_is_refused_by_name(rng, engine):
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 129)).astype(np.float32)

    def refused(error, message, geometry, transfer="get", **more):
        with pytest.raises(error, match=message):
            Played(engine, case, x, geometry, transfer, **more).aggregate(rng)

    refused(
        InputError,
        r"plan.ps = 64: a block takes [\d,]+ bytes of shared memory, but shim has 232,448; at most \d+$",
        Geometry(64, 8, 4),
    )
    refused(
        InputError,
        r"plan.dist = 32: a block takes [\d,]+ bytes of shared memory, but shim has 232,448; at most (\d+)$",
        Geometry(16, 32, 8),
    )
    refused(InputError, r"plan.dist = 33: get has 32 stages under way at most", Geometry(1, 33, 1))
    refused(InputError, r"plan.wpb = 33: a block of 1056 threads", Geometry(1, 1, 33), "halo")
    played = Played(engine, case, x, transfer="halo")
    backend, rows = played.backends[0], played.rows[0]
    out = backend.memory.padded(played.plans[0].destinations, played.format)
    other = plans_of(case, "halo", 1)[0]
    with pytest.raises(ValueError, match="a plan with a halo must be prepared first"):
        backend.aggregate(other, "copy", "sum", rows, out)
    with pytest.raises(ValueError, match="GPUs take a plan of one round"):
        backend.prepare(plans_of(case, "halo", 3)[0], played.format)
    wider = backend.rows(np.diff(case.bounds), RowFormat(np.dtype(np.float32), 200), True)
    out = backend.memory.padded(played.plans[0].destinations, wider.format)
    with pytest.raises(ValueError, match="halo: rows of 800 bytes; prepared for up to 528"):
        backend.aggregate(played.plans[0], "copy", "sum", wider, out)
