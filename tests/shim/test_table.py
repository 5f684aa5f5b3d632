"""Every GPU kernel, every thread of it executed, over the table of cases; another geometry; and rows gathered into
private memory."""

from __future__ import annotations

import os

import cases
import numpy as np
import pytest
from gpu.pes import table
from gpu.pes.engine import SMALL, Engine
from gpu.pes.played import Played
from gpu.pes.tiered import tables

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, Tier, TieredRows
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.tiers.files import FileRows

SUMS = ("sum", "weighted", "max", "same bits")
# Types of rows other than float32 are run by `make test-long`.
LINES = [
    line if line.dtype == "float32" else pytest.param(line, marks=pytest.mark.long)
    for line in table.entries(whole=True)
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LINES, ids=str)
def test_the_table(rng, engine, line):
    table.check(engine, line, rng)


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "line", [line for line in table.entries(whole=False) if line.operation in SUMS], ids=str
)
def test_sums_without_bulk_copies(rng, shim_before, line):
    """As they are before sm_90; the other kernels are the same."""
    table.check(Engine.shim(shim_before.folder / "_cuda.so"), line, rng)


@pytest.mark.parametrize("transfer", table.TRANSFERS)
def test_another_geometry_serves_a_backend_that_has_summed(rng, engine, transfer):
    """A plan's geometry changes for rows of one size, and is refused where the GPU cannot hold a block."""
    case = cases.hub(rng, 3)
    x = table.whole_rows(case, table.Entry("sum", "float32", 33, "hub"), rng)
    played = Played(engine, case, x, SMALL, transfer)
    ranks = list(zip(played.backends, played.plans, strict=True))
    wanted = played.aggregate(rng)
    launched = [backend.launch(plan, played.format) for backend, plan in ranks]
    for geometry in (Geometry(3, 1, 4), Geometry(1, 2, 1), Geometry(64, 16, 2), SMALL):
        for backend, plan in ranks:
            with pytest.raises(InputError, match="wpb = 1024"):
                backend.retune(plan, played.format, Geometry(2, 2, 1024))
            if geometry.ps == 64 and transfer == "get":
                with pytest.raises(InputError, match="shared memory"):
                    backend.retune(plan, played.format, geometry)
                continue
            backend.retune(plan, played.format, geometry)
            assert backend.geometry == SMALL  # of every other call
            with backend.cut_for(plan, played.format):
                assert backend.geometry == geometry
        np.testing.assert_array_equal(played.aggregate(rng), wanted)
    assert [backend.launch(plan, played.format) for backend, plan in ranks] == launched


@pytest.mark.parametrize("kind", ["f4", "f2", "bfloat16", "f8"])
def test_rows_of_tiers_are_counted_as_on_cpus(rng, engine, tmp_path, kind):
    world, count, width = World(3), int(rng.choice([1, 2, 300])), int(rng.integers(1, 200))
    backends, cpus = engine.backends(world), Engine.host().backends(World(3))
    x = rng.integers(0, 99, (count, width)).astype(kind)
    found, _, _ = tables(engine, backends, rng, tmp_path, x, mapped=bool(rng.integers(2)))
    for backend, cpu, held in zip(backends, cpus, found, strict=True):
        counted, ids = [], rng.integers(0, count, 700)
        for each in (backend, cpu):
            out = each.memory.padded(len(ids), held.format)
            each.gather(held, ids, out)
            np.testing.assert_array_equal(out, x[ids])
            meter = each.stream.meter.taken()
            names = ("local_bytes", "remote_bytes", "remote_rows", "messages", "stored_bytes")
            counted.append([*(getattr(meter, name) for name in names), *held.read])
            held.read[:] = 0
        assert counted[0] == counted[1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_slots_beyond_four_gib(rng, engine, ranks):
    """Of rows in turn, the last of which are there."""
    (backend,), format = engine.backends(World(1)), RowFormat(np.dtype(np.float32), 9)
    x, first = rng.integers(0, 99, (300, 9)).astype(np.float32), int(rng.integers(1 << 32, 1 << 44)) * ranks
    parts = [padded(len(x[rank::ranks]), format) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        part[:] = x[rank::ranks]
    begin = [(part.ctypes.data - first // ranks * format.row_bytes) % 2**64 for part in parts]
    tier = Tier("turns", first + 300, np.array(begin, np.uint64), np.zeros(ranks, np.int64), format.row_bytes)
    which = rng.integers(0, 300, 1000)
    out = backend.memory.padded(len(which), format)
    backend.gather(TieredRows(first + 300, format, [tier]), first + which, out)
    np.testing.assert_array_equal(out, x[which])


def test_bad_numbers_of_rows_are_refused_before_anything_is_written(rng, engine, tmp_path):
    (backend,), format = engine.backends(World(1)), RowFormat(np.dtype(np.float32), 5)
    rows, out = np.ones((9, 5), np.float32), backend.memory.padded(2, format)
    out[:] = 7
    rows.tofile(tmp_path / "rows")
    file, near = FileRows(tmp_path / "rows", 0, 9, 5, rows.dtype), Tier.of_array("near", rows)
    odd = np.zeros((9, 11), np.uint8)[:, 1:6]
    for kind, message, held, ids in (
        (IndexError, "row 9, and rows are 0 to 8", TieredRows(9, format, [near]), [0, 9, -1]),
        (IndexError, "row -1, and rows are 0 to 8", TieredRows(9, format, [near]), [-1, 9]),
        (ValueError, "slots that no tier has", TieredRows(2, format, [near], slots=np.array([0, 9])), [0, 1]),
        (ValueError, "slots that no tier has", TieredRows(1, format, [near], slots=np.array([-1])), [0]),
        (ValueError, "odd addresses", TieredRows(9, format, [Tier.of_array("odd", odd)]), [0, 1]),
    ):
        with pytest.raises(kind, match=message):
            backend.gather(held, np.array(ids), out[: len(ids)])
    assert (out == 7).all()
    held = TieredRows(18, format, [near], file)
    backend.gather(held, np.array([17, 0]), out)
    assert (out == 1).all()
    os.truncate(tmp_path / "rows", 9 * 20 - 1)
    with pytest.raises(InputError, match="has changed since it was opened"):
        backend.gather(held, np.array([0, 17]), out)
