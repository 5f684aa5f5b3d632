"""Tables of rows in all kinds of tiers and a file, on any engine, and rows that are gathered from them by number."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cases
import numpy as np
from numpy.typing import NDArray

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Tier, TieredRows
from mgg_hpc.runtime.tiers.files import FileRows

from .engine import Engine
from .played import MARGIN, Played, drawn_reach


def tables(
    engine: Engine,
    backends: Sequence[Any],
    rng: np.random.Generator,
    folder: Path,
    x: NDArray[Any],
    *,
    mapped: bool = True,
    reached: bool = True,
) -> tuple[list[TieredRows], NDArray[np.int64], NDArray[np.int64]]:
    """(each rank's table of x [N, dim], the tier of each row, and its place there).

    Tiers: a copy on each rank, rows on all ranks in turn, rows on the last rank and the first in turn, an array of the
    host's memory at any address, a file. mapped: rows have slots. reached: whether pointers of CPUs lead to other
    ranks' rows; else these are got.
    """
    count, format, ranks = len(x), RowFormat(x.dtype, x.shape[1]), backends[0].collectives.size
    cuts = np.sort(rng.integers(0, count + 1, 4))
    slots = rng.permutation(count) if mapped else np.arange(count)
    near, turns, pairs, host, filed = np.split(x[np.argsort(slots)], cuts)
    skipped, offset = (int(rng.integers(0, 50)) for _ in range(2))
    behind = np.zeros((skipped + len(filed), x.shape[1]), x.dtype)
    behind[skipped:] = filed
    (folder / "rows").write_bytes(bytes(offset) + behind.tobytes())
    given = slots.astype(rng.choice([np.int32, np.int64])) if mapped else None
    shared = {"turns": (turns, np.arange(ranks)), "pairs": (pairs, np.array([ranks - 1, 0])[:ranks])}
    made: list[list[Tier]] = [[] for _ in backends]
    for backend, tiers in zip(backends, made, strict=True):
        rank = backend.collectives.rank
        alone = np.where(np.arange(ranks) == rank, len(near), 0)
        own = backend.rows(alone, format, symmetric=False)
        engine.fill(own.local, near)
        tiers.append(
            Tier("near", len(near), own.addresses[[rank]], np.array([rank]), format.row_bytes, kept=own)
        )
    for name, (rows, owners) in shared.items():
        held = [backend.rows(np.full(ranks, len(rows)), format, symmetric=True) for backend in backends]
        for backend, mine, tiers in zip(backends, held, made, strict=True):
            rank = backend.collectives.rank
            for place in np.flatnonzero(owners == rank)[:1]:
                part = rows[place :: len(owners)]
                engine.fill(mine.local[: len(part)], part)
            addresses = np.where((owners == rank) | reached, mine.addresses[owners], 0)
            at = int(mine.addresses[rank])
            tiers.append(Tier(name, len(rows), addresses, owners, format.row_bytes, at, mine))
    for tiers in made:
        wide = engine.arrays.pinned(len(host) * (x.shape[1] + 3) * x.itemsize).view(x.dtype)
        rows = wide.reshape(len(host), x.shape[1] + 3)[:, 1:-2]
        rows[:] = host
        tiers.append(Tier.of_array("host", rows))
    file = FileRows(folder / "rows", offset, len(behind), x.shape[1], x.dtype)
    found = [TieredRows(count, format, tiers, file, slots=given, first=skipped) for tiers in made]
    tier = np.searchsorted(cuts, slots, "right")
    return found, tier, slots - np.append(0, cuts)[tier]


def rows_of_tiers(engine: Engine, case: cases.Case, entry: Any, rng: np.random.Generator) -> float:
    """Rows of a table by number, some of them often; exact. Over the shim pointers lead to some PEs only.

    Rows that no pointer reaches take turns through symmetric memory, which the first call makes.
    """
    x = rng.standard_normal((case.nodes, entry.width)).astype(entry.dtype)
    played = Played(engine, case, x, reaches=drawn_reach(engine, len(case.bounds) - 1, rng))
    ids = rng.integers(0, case.nodes, int(rng.choice([0, 1, 3 * case.nodes])) if case.nodes else 0)
    with tempfile.TemporaryDirectory() as folder:
        made, _, _ = tables(engine, played.backends, rng, Path(folder), x, mapped=bool(rng.integers(2)))
        for backend, table in zip(played.backends, made, strict=True):
            backend.gather(table, ids[:0], backend.memory.padded(0, played.format))
        for rank, backend, table in zip(played.ranks, played.backends, made, strict=True):
            backend.publish(played.rows[0])
            out = engine.nan_rows(backend, len(ids) + MARGIN, played.format)
            engine.seed(int(rng.integers(1 << 60)), rank)
            with engine.symmetric(played.world):
                backend.gather(table, ids, out[: len(ids)])
                engine.arrays.finish()
            found = engine.numpy(out)
            assert np.isnan(found[len(ids) :].astype(np.float32)).all(), "wrote behind its rows"
            assert (found[: len(ids)] == x[ids]).all()
            assert table.read.sum() == len(ids)
    return 0.0
