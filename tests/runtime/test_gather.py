"""Rows by number: of all ranks that one process plays, of tiers, and of a CSR matrix."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest
import scipy.sparse as sp
from gpu.pes.engine import Engine
from gpu.pes.played import Played
from gpu.pes.tiered import tables

from mgg_hpc.runtime.backends.arguments import TieredRows
from mgg_hpc.runtime.backends.host.components import aligned_zeros, padded
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampler import take_csr


@pytest.mark.parametrize("reached", ["all", "own"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("name", cases.CASES)
def test_rows_of_all_ranks_come_by_number(rng, name, ranks, reached):
    """And the meter has them. reached: whose rows are read through pointers; others are got."""
    case = cases.CASES[name](rng, ranks)
    kind, width = rng.choice(["f4", "f8", "f2"]), int(rng.choice(cases.WIDTHS))
    x = rng.integers(-99, 99, (case.nodes, width)).astype(kind)
    played = Played(Engine.host(), case, x)
    for rank, (backend, rows) in enumerate(zip(played.backends, played.rows, strict=True)):
        ids = rng.integers(0, case.nodes, 3 * case.nodes + 1 if case.nodes else 0)
        own, reach = case.rows(rank), (np.arange(ranks) == rank) | (reached == "all")
        out = padded(len(ids), rows.format)
        reachable = replace(rows, addresses=np.where(reach, rows.addresses, 0))
        table = TieredRows.of_ranks(reachable, case.bounds)
        backend.gather(table, ids, out)
        np.testing.assert_array_equal(out, x[ids])
        remote, meter = int(((ids < own.start) | (ids >= own.stop)).sum()), backend.stream.meter
        assert meter.local_bytes == (len(ids) - remote) * width * x.itemsize
        assert (meter.remote_rows, meter.remote_bytes) == (remote, remote * width * x.itemsize)
        assert meter.messages == (remote if reached == "own" else 0)
        owners = np.searchsorted(case.bounds, ids, "right") - 1
        np.testing.assert_array_equal(table.read[:-1], np.bincount(owners, minlength=ranks))


@pytest.mark.parametrize(("width", "room"), [(5, 8), (96, 96), (100, 112), (90, 91), (361, 361)])
def test_many_rows_are_gathered_by_threads_and_past_the_caches(rng, width, room):
    """The results of 5 columns are smaller than caches are taken to be; 96 are whole lines. room: columns of memory."""
    case = cases.csr(np.zeros(0, int), np.zeros(0, int), 3000, np.array([0, 1000, 1000, 3000]))
    x = rng.standard_normal((3000, width)).astype(np.float32)
    played = Played(Engine.host(), case, x, threads=3)
    count = (34 << 20) // 4 // max(width, 90)
    ids, out = rng.integers(0, 3000, count), aligned_zeros(4 * room * (count + 3))
    out = out.view(x.dtype).reshape(-1, room)
    out[:] = -1
    table = TieredRows.of_ranks(played.rows[1], case.bounds)
    played.backends[1].gather(table, ids, out[:count, :width])
    np.testing.assert_array_equal(out[:count, :width], x[ids])
    assert (out[count:] == -1).all()
    assert (out[:, width:] == -1).all()
    np.testing.assert_array_equal(table.read, [(ids < 1000).sum(), 0, (ids >= 1000).sum(), 0])


def test_bad_arguments_are_refused_and_nothing_is_written(rng):
    case = cases.ordinary(rng, 2)
    played = Played(Engine.host(), case, np.ones((case.nodes, 5), np.float32))
    backend, mine, bounds = played.backends[0], played.rows[0], case.bounds
    out, two = padded(2, mine.format), np.array([0, 1])
    out[:] = 7
    private = backend.rows(np.diff(bounds), mine.format, symmetric=False)
    for wrong in (bounds + np.array([0, 0, 1]), bounds[:2], bounds + 1, bounds[::-1]):
        with pytest.raises(ValueError, match="are not of ranks that have"):
            TieredRows.of_ranks(mine, wrong)
    with pytest.raises(ValueError, match="are not of ranks that have"):
        TieredRows.of_ranks(private, bounds)
    table = TieredRows.of_ranks(mine, bounds)
    unread = TieredRows.of_ranks(replace(private, counts=mine.counts), bounds)
    slots = np.array([0, 2**40, -1])
    for kind, message, *arguments in (
        (IndexError, "row 97, and rows are 0 to 96", table, np.array([0, 97, 98]), padded(3, mine.format)),
        (IndexError, "row -1, and rows are", table, np.array([0, -1]), out),
        (ValueError, "rows out of reach", unread, two, out),
        (ValueError, r"2 rows of 5 x float32 into \[1, 5\]", table, two, out[:1]),
        (ValueError, r"2 rows of 5 x float32 into \[2, 5\] of float64", table, two, np.zeros((2, 5))),
        (ValueError, "columns must be", table, two, np.zeros((5, 2), "f4").T),
        (ValueError, "rows overlap", table, two, np.lib.stride_tricks.as_strided(out, (2, 5), (8, 4))),
        (ValueError, "more than slots", TieredRows(98, mine.format, table.tiers), two, out),
        (ValueError, "one for each row", TieredRows(98, mine.format, table.tiers, slots=slots), two, out),
        (ValueError, "slots: int32 or", TieredRows(3, mine.format, table.tiers, slots=slots * 1.0), two, out),
    ):
        with pytest.raises(kind, match=message):
            backend.gather(*arguments)
    assert (out == 7).all()
    for row in (1, 2):
        with pytest.raises(ValueError, match="slots that no tier has"):
            backend.gather(TieredRows(3, mine.format, table.tiers, slots=slots), np.full(2, row), out)
    assert (out == 7).all()


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "u1", "i8", "bfloat16"])
def test_rows_of_tiers_come_by_number(rng, tmp_path, kind, mapped, reached):
    """Rows of every tier and the file, into rows that may be padded, and how many of each."""
    count = int(rng.choice([0, 1, 2, 300]))
    for width in (1, 5, 16, 33, 1000):
        engine = Engine.host()
        backends = engine.backends(World(3))
        x = rng.integers(0, 99, (count, width)).astype(kind)
        found, tier, place = tables(engine, backends, rng, tmp_path, x, mapped=mapped, reached=reached)
        for rank, (backend, table) in enumerate(zip(backends, found, strict=True)):
            ids = rng.integers(0, count, 1500 if count else 0)
            room = np.full((len(ids) + 1, width + int(rng.integers(0, 3))), 7, x.dtype)
            backend.stream.meter.taken()
            backend.gather(table, ids, room[:-1, :width])
            np.testing.assert_array_equal(room[:-1, :width], x[ids])
            assert (room[-1] == 7).all()
            assert (room[:, width:] == 7).all()
            meter, tiers, places = backend.stream.meter, tier[ids], place[ids]
            np.testing.assert_array_equal(table.read, np.bincount(tiers, minlength=5))
            crossed = {
                0: np.full(len(ids), rank),
                1: places % 3,
                2: np.array([2, 0])[places % 2],
                3: 0 * places,
            }
            own = sum(int(((tiers == t) & (owners == rank)).sum()) for t, owners in crossed.items())
            got = sum(int(((tiers == t) & (crossed[t] != rank)).sum()) for t in (1, 2))
            row = width * x.itemsize
            assert (meter.local_bytes, meter.remote_rows) == (own * row, len(ids) - own)
            assert meter.messages == (0 if reached else got)
            assert meter.stored_bytes == int((tiers == 4).sum()) * row


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (40, 7), (2000, 900)])
def test_rows_of_a_csr_matrix(rng, kind, shape):
    """The largest is copied by several threads."""
    matrix = sp.random_array(shape, density=0.3, format="csr", rng=rng, dtype=kind)
    rows = rng.integers(0, shape[0], 2 * shape[0]) if shape[0] else np.empty(0, np.int64)
    given = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
    wanted = matrix[rows]
    arrays = wanted.indptr.astype(np.int64), wanted.indices.astype(np.int32), wanted.data
    for found, right in zip(take_csr(*given, rows, threads=3), arrays, strict=True):
        np.testing.assert_array_equal(found, right, strict=True)


@pytest.mark.parametrize(
    ("indptr", "values", "row", "said"),
    [
        ([0, 2, 3], 3, -1, "row -1, and there are 2"),
        ([0, 2, 3], 3, 2, "row 2, and there are 2"),
        ([0, 2, 9], 3, 1, "does not ascend within"),
        ([0, 2, 3], 2, 1, "not a CSR matrix"),
    ],
)
def test_csr_rows_that_are_not_there_are_refused(indptr, values, row, said):
    with pytest.raises(ValueError, match=said):
        take_csr(np.array(indptr), np.array([0, 1, 0], np.int32), np.ones(values, "f4"), np.array([0, row]))
