"""A look-up of embedding bags over the shim: rows, bytes that cross and loads of distinct and of direct reads."""

from __future__ import annotations

from functools import partial

import cases
import numpy as np
import pytest
from gpu.pes.played import Played

from mgg_hpc.nn.embedding.pooling import Bags
from mgg_hpc.runtime.backends.arguments import TieredRows


@pytest.mark.parametrize(("way", "pointers"), [("distinct", True), ("direct", True), ("distinct", False)])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dim", [16, 33])
def test_a_look_up_moves_the_rows_of_its_model(rng, engine, ranks, dim, way, pointers):
    """Distinct reads each row of a rank's batch once, direct each entry; a row is a load of each 16 bytes through a
    pointer, or a get."""
    bounds = np.linspace(0, 300, ranks + 1).astype(np.int64)
    case = cases.csr(np.zeros(0, np.int64), np.zeros(0, np.int64), 300, bounds)
    x = rng.standard_normal((300, dim)).astype(np.float32)
    played = Played(engine, case, x, reaches=lambda rank, peer: pointers or rank == peer)
    tables = [TieredRows.of_ranks(rows, bounds) for rows in played.rows]
    drawn = [np.minimum(rng.zipf(1.3, 400) - 1, 299) for _ in range(ranks)]
    bags = [Bags(rank, ids, np.ones(400, np.int64)) for rank, ids in enumerate(drawn)]
    read = [each.ids if way == "direct" else each.distinct[0] for each in bags]
    many = np.full(ranks, 400)
    outs = [backend.rows(many, played.format, symmetric=True).local for backend in played.backends]
    calls = []
    for backend, table, ids, out in zip(played.backends, tables, read, outs, strict=True):
        backend.stream.meter.taken()
        calls.append(partial(backend.gathers.rows, backend, table, ids, out[: len(ids)]))
    engine.module.shim_counts()
    engine.together(played.world, [calls])
    counts, remote, row_bytes = engine.module.shim_counts(), 0, played.format.row_bytes
    for rank, (ids, out) in enumerate(zip(read, outs, strict=True)):
        np.testing.assert_array_equal(engine.numpy(out)[: len(ids)], x[ids])
        remote += np.count_nonzero((ids < bounds[rank]) | (ids >= bounds[rank + 1]))
    loaded = sum(map(len, read)) - (0 if pointers else remote)
    assert counts["loads"] == loaded * row_bytes // 16
    assert counts["crossed"] == (0 if pointers else remote * row_bytes)
    assert ranks == 1 or remote > 0
