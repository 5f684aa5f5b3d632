"""The pipelined kernels over the shim: effects of the knobs, an exchange that several calls share, and refusals."""

from __future__ import annotations

from functools import partial

import cases
import numpy as np
import pytest
from gpu.pes.played import Played
from world import plans_of

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Rows, TieredRows
from mgg_hpc.runtime.backends.edges import Attention
from mgg_hpc.runtime.backends.simulated import all_reachable


def nowhere(rank, peer):
    """No pointer leads to another PE."""
    return rank == peer


def schedule(engine, rng, geometry, reach):
    """What the shim counted of one call in which every edge is remote: a PE sums, and the other only owns."""
    nodes, degree = 64, 24
    destination = np.repeat(np.arange(nodes // 2), degree)
    source = nodes // 2 + rng.integers(0, nodes // 2, len(destination))
    case = cases.csr(source, destination, nodes, np.array([0, nodes // 2, nodes]))
    x = rng.standard_normal((nodes, 128)).astype(np.float32)  # a warp each row
    reaches = nowhere if reach == "far" else all_reachable
    played = Played(engine, case, x, geometry, "get", reaches)
    backend, plan = played.backends[0], played.plans[0]
    out = backend.memory.padded(plan.destinations, played.format)
    found = []
    for _ in range(4):  # a lane that is late may ask when others have what they asked for
        engine.module.shim_counts()
        engine.seed(int(rng.integers(1 << 60)))
        call = partial(backend.aggregate, plan, "sum", played.rows[0], out)
        engine.together(played.world, [[call]])
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


def test_without_a_transport_all_pes_must_be_within_reach(rng, engine):
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 5)).astype(np.float32)
    for transfer in ("get", "halo"):
        played = Played(engine, case, x, transfer=transfer, reaches=nowhere)
        for backend in played.backends:
            backend.has_gets = False
        with pytest.raises(
            ValueError, match=f"{transfer}: .* of PE 1 .* not reachable .* NVSHMEM does not run"
        ):
            played.aggregate(rng)


@pytest.mark.parametrize(
    ("geometry", "transfer", "message"),
    [
        (
            Geometry(64, 8, 4),
            "get",
            r"plan.ps = 64: a block takes [\d,]+ bytes of shared memory, but shim has 232,448; at most \d+$",
        ),
        (
            Geometry(16, 32, 8),
            "get",
            r"plan.dist = 32: a block takes [\d,]+ bytes of shared memory.*; at most \d+$",
        ),
        (Geometry(1, 33, 1), "get", "plan.dist = 33: get has 32 stages under way at most"),
        (
            Geometry(1, 1, 33),
            "halo",
            "plan.wpb = 33: a block of 1056 threads, but shim takes 1024; at most 32",
        ),
        (
            Geometry(2, 2, 33),
            "direct",
            "plan.wpb = 33: a block of 1056 threads, but shim takes 1024; at most 32",
        ),
        (
            Geometry(2, 2, 32),
            "direct",
            r"1024 threads, .* hold \d+ of this kernel's; at most (1[6-9]|2[0-5])$",
        ),
    ],
)
def test_a_geometry_that_does_not_fit_is_refused(rng, engine, geometry, transfer, message):
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 129 if transfer == "get" else 5)).astype(np.float32)
    with pytest.raises(InputError, match=message):
        Played(engine, case, x, geometry, transfer).aggregate(rng)


def test_a_halo_that_is_not_prepared_for_a_call_is_refused(rng, engine):
    case = cases.ordinary(rng, 2)
    x = rng.standard_normal((case.nodes, 129)).astype(np.float32)
    played = Played(engine, case, x, transfer="halo")
    backend, plan = played.backends[0], played.plans[0]
    with pytest.raises(ValueError, match="GPUs take a plan of one round"):
        backend.prepare(plans_of(case, "halo", 3)[0], played.format)
    wider = backend.rows(np.diff(case.bounds), RowFormat(np.dtype(np.float32), 200), True)
    out = backend.memory.padded(plan.destinations, wider.format)
    with pytest.raises(ValueError, match="halo: rows of 800 bytes; prepared for up to 528"):
        backend.aggregate(plan, "sum", wider, out)


def test_bad_arguments_are_named(rng, engine):
    case, float32 = cases.ordinary(rng, 2), np.float32
    played = Played(engine, case, rng.standard_normal((case.nodes, 5)).astype(float32))
    backend, plan, rows = played.backends[0], played.plans[0], played.rows[0]
    out = backend.memory.padded(plan.destinations, played.format)
    wide = backend.memory.padded(plan.destinations, RowFormat(np.dtype(float32), 6))
    reached = np.array([rows.addresses[0], 0], np.uint64)
    unreached = Rows(rows.format, reached, rows.counts, rows.buffer, 0, True)
    private = backend.rows(np.diff(case.bounds), played.format, False)
    of_float64 = backend.rows(np.array([1, 1]), RowFormat(np.dtype(np.float64), 5), False)
    unprepared = plans_of(case, "halo")[0]

    def aggregate(src=rows, out=out, plan=plan, reduce="sum", edge=None):
        backend.aggregate(plan, reduce, src, out, edge=edge)

    def gather(ids, src=rows):
        backend.gathers.rows(backend, TieredRows.of_ranks(src, case.bounds), ids, out[: len(ids)])

    def attend(columns):
        score = np.zeros((plan.destinations, columns), float32)
        backend.edges.attend(plan, Attention(1, 5), rows, out, score=score)

    for message, call, given in (
        ("no such operation: reduce='min'", aggregate, {"reduce": "min"}),
        (r"edge: float64 \[3\]; expected contiguous float32", aggregate, {"edge": np.zeros(3)}),
        (r"out: float32 \[\d+, 4\]; expected float32 \[\d+, 5\]", aggregate, {"out": out[:, :4]}),
        ("out: rows 5 values apart, at .*; expected 8 apart", aggregate, {"out": out.copy()}),
        ("out: rows 8 values apart, at address .*[4c]; expected", aggregate, {"out": wide[:, 1:]}),
        ("a plan with a halo must be prepared first", aggregate, {"plan": unprepared}),
        ("these are float64", aggregate, {"src": of_float64}),
        ("rows of PE 1 are not reachable by pointer from PE 0", aggregate, {"src": private}),
        (r"ids: int64 \[2\]; expected contiguous int64", gather, {"ids": np.array([3, 9, 4, 9])[::2]}),
        (r"ids: int64 \[2, 2\]; expected contiguous", gather, {"ids": np.zeros((2, 2), np.int64)}),
        (r"ids: int32 \[2\]; expected contiguous int64", gather, {"ids": np.zeros(2, np.int32)}),
        (
            "gather: memory of PE 1 is not reachable .* does not run",
            gather,
            {"ids": np.array([3]), "src": unreached},
        ),
        (r"score: float32 \[\d+, 2\]; expected rows of float32 \[\d+, 1\]", attend, {"columns": 2}),
        ("attend: rows of 5 values; expected 6", attend, {"columns": 1}),
    ):
        with pytest.raises(ValueError, match=message):
            call(**given)
    with pytest.raises(ValueError, match=r"weight: float64 \[3\]; expected contiguous float32 \[\d+\] or"):
        backend.edges.weighted(plan, rows, np.zeros(3), out)
    with pytest.raises(ValueError, match=r"out_edge: float32 \[\d+, 5\]; expected"):
        backend.edges.sddmm(plan, rows, out, np.zeros((5, plan.edges), float32).T)
