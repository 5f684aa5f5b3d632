"""Rows of a table's file on a GPU that the shim plays: read beside launches, through buffers that are used again."""

from __future__ import annotations

import threading

import cases
import numpy as np
import pytest
from gpu.pes.played import Played
from gpu.pes.tiered import tables

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import reads
from mgg_hpc.runtime.backends.cuda.rows import Gathers
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.tiers.files import FileRows


@pytest.fixture
def gather(rng, engine, tmp_path, monkeypatch):
    """gather(ids): (rows of a table of tiers by number, what they are). Buffers have few rows; some are in the file."""
    case = cases.ordinary(rng, 2)
    width = int(rng.integers(1, 40))
    x = rng.standard_normal((case.nodes, width)).astype(rng.choice([np.float32, np.float16]))
    played = Played(engine, case, x)
    monkeypatch.setattr(reads, "BUFFER_BYTES", int(rng.integers(1, 5)) * played.format.row_bytes)
    filed = np.zeros(0, np.int64)
    while len(filed) < 5:
        made, tier, _ = tables(engine, played.backends, rng, tmp_path, x)
        filed = np.flatnonzero(tier == len(made[0].tiers))
    backend, table = played.backends[0], made[0]

    def gather(ids):
        out = engine.nan_rows(backend, len(ids), played.format)
        with engine.symmetric(played.world):
            backend.gather(table, ids, out)
        return engine.numpy(out), x[ids]

    gather.filed, gather.table, gather.held = filed, table, made
    return gather


def test_buffers_and_rows_are_used_again_once_they_are_read(rng, gather):
    """Copies over the shim are made when something waits for them."""
    nodes = gather.table.rows
    for count in (9, 1, 40, 7, 0, 64, 40):
        found, wanted = gather(rng.choice([*gather.filed, *range(nodes)], count).astype(np.int64))
        np.testing.assert_array_equal(found, wanted)


def test_files_are_read_while_other_rows_are_gathered(rng, gather, monkeypatch):
    """No read runs on the thread that launches, and none is waited for before other rows' launch."""
    launched, read_by, kept = threading.Event(), set[int](), (Gathers.anywhere, SerialBackend.gather)

    def anywhere(*given):
        kept[0](*given)
        launched.set()

    def read(*given):
        read_by.add(threading.get_ident())
        assert launched.wait(20), "other rows wait for the file"
        kept[1](*given)

    monkeypatch.setattr(Gathers, "anywhere", anywhere)
    monkeypatch.setattr(SerialBackend, "gather", read)
    found, wanted = gather(rng.permutation(gather.table.rows))
    np.testing.assert_array_equal(found, wanted)
    assert len(read_by) == 1 and threading.get_ident() not in read_by


def test_a_read_that_fails_is_named_and_the_next_gather_reads_again(rng, gather, monkeypatch):
    file, first, ids = gather.table.file, gather.table.first, rng.permutation(gather.table.rows)
    monkeypatch.setattr(FileRows, "check", lambda _: None)
    held = file.path.read_bytes()
    with file.path.open("r+b") as opened:
        opened.truncate(file.offset + first * file.row_bytes + 1)  # within the first read of several
    with pytest.raises(InputError, match=f"{file.path}: row {first} of it cannot be read"):
        gather(ids)
    file.path.write_bytes(held)
    found, wanted = gather(ids)
    np.testing.assert_array_equal(found, wanted)
