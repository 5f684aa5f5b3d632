"""What the shim counts of kernels: fences, atomics, loads and stores of 16 bytes, and the transactions of these."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from gpu.pes.engine import SMALL
from gpu.pes.played import Played

from mgg_hpc.plan import launch
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from mgg_hpc.tools.bench import graphs

from .counted import LINE, SECTOR, rows_units, tasks_of, warp_steps

WARPS = 3 * 2  # of the exercise
# Of rmat:20:16 over two PEs at 16 columns, counted the same way at commit 2135815, where each worker claimed for itself
# and each warp fenced: claims of the busiest PE, and fences at system scope of both.
CLAIMS_BEFORE, FENCES_BEFORE = 39_074, 79_172


@pytest.fixture
def traced(engine):
    engine.module.shim_trace(True)
    yield engine.module
    engine.module.shim_trace(False)


def units(first: np.ndarray, nbytes: int, size: int) -> int:
    """Units of ``size`` bytes that spans touch."""
    return int(((first + nbytes - 1) // size - first // size + 1).sum())


def test_a_known_kernel(rng, traced):
    traced.shim_counts()
    traced.shim_exercise("counted", 1, int(rng.integers(1 << 60)))
    counts = traced.shim_counts()
    spans = 80 * np.arange(8)  # of four packs each; the copies of one pack by 32 lanes are 32 transactions
    wanted = {
        "fences": 3 + 2 + 1,
        "warp_fences": 3,
        "atomics": 32 + 1,
        "loads": 3 * 32,
        "stores": 32,
        "load_sectors": 16 + units(spans, 64, 32) + 32,
        "load_lines": 4 + units(spans, 64, 128) + 32,
        "store_sectors": 16,
        "store_lines": 4,
    }
    assert {name: counts[name] for name in wanted} == {name: WARPS * each for name, each in wanted.items()}
    assert counts["most_atomics_an_address"] == WARPS * 32
    assert not any(traced.shim_counts().values()), "counted since the last call"


def test_transactions_are_counted_where_they_are_asked_for(rng, engine):
    engine.module.shim_counts()
    engine.module.shim_exercise("counted", 1, int(rng.integers(1 << 60)))
    counts = engine.module.shim_counts()
    assert counts["loads"] == WARPS * 3 * 32
    assert not any(counts[f"{kind}_{unit}"] for kind in ("load", "store") for unit in ("sectors", "lines"))


@pytest.mark.parametrize("width", [4, 16, 20, 128, 300])
def test_rows_of_an_aggregation(rng, traced, engine, width):
    """Each row of an edge is asked for once, and the last of a segment again until four are under way."""
    destination = np.repeat(np.arange(40), rng.integers(0, 9, 40))  # no hub: a task is a segment
    case = cases.csr(rng.integers(0, 40, len(destination)), destination, 40, np.array([0, 40]))
    asked = [
        list(row) + [row[-1]] * (-len(row) % 4)
        for row in np.split(case.indices, case.indptr[1:-1])
        if len(row)
    ]
    played = Played(engine, case, rng.standard_normal((40, width)).astype(np.float32))
    traced.shim_counts()
    played.aggregate(rng)
    counts = traced.shim_counts()
    packs, row_bytes = played.format.row_bytes // 16, played.format.row_bytes
    rows = np.concatenate(asked).astype(np.int64) * row_bytes + engine.arrays.address(played.rows[0].local)
    assert counts["loads"] == len(rows) * packs
    assert counts["stores"] == 40 * packs
    assert counts["atomics"] == counts["fences"] == 0
    for size, name in ((32, "load_sectors"), (128, "load_lines")):
        parts = [  # 32 lanes ask for 512 bytes at once
            units(rows + begin, min(512, row_bytes - begin), size) for begin in range(0, row_bytes, 512)
        ]
        if packs in (4, 8, 16) and size == 128:  # rows of neighbouring workers may lie side by side
            assert 0.8 * sum(parts) < counts[name] <= sum(parts)
        else:
            assert counts[name] == sum(parts)


@pytest.mark.parametrize("width", [16, 20, 128, 300])
def test_the_model_of_expected_times_counts_what_runs(rng, traced, engine, width):
    """Rows that are asked for, with their sectors and lines; and the atomics on the counter of a hub."""
    most = launch.part_edges(SMALL.ps, SMALL.dist)
    degrees = rng.integers(0, most + 1, 60)
    source, destination = rng.integers(0, 60, degrees.sum()), np.repeat(np.arange(60), degrees)
    case = cases.csr(source, destination, 60, np.array([0, 60]))
    rows = np.split(case.indices, case.indptr[1:-1])
    asked = np.concatenate([np.append(each, [each[-1]] * (-len(each) % 4)) for each in rows if len(each)])
    played = Played(engine, case, rng.standard_normal((60, width)).astype(np.float32))
    assert engine.arrays.address(played.rows[0].local) % LINE == 0
    traced.shim_counts()
    played.aggregate(rng)
    counts, row_bytes = traced.shim_counts(), played.format.row_bytes
    steps = warp_steps(tasks_of(case.indptr, most), launch.LANES)[1]  # a worker a warp
    assert counts["loads"] == steps * row_bytes // 16 and steps == len(asked)
    assert counts["load_sectors"] == rows_units(asked, row_bytes, SECTOR)
    lines = rows_units(asked, row_bytes, LINE)
    # Rows of neighbouring workers may lie side by side.
    assert counts["load_lines"] == lines if row_bytes >= 512 else 0.8 * lines < counts["load_lines"] <= lines

    parts = int(rng.integers(2, 9))
    hub = np.full(parts * most, 7)
    case = cases.csr(rng.integers(0, 60, len(hub)), hub, 60, np.array([0, 60]))
    played = Played(engine, case, rng.standard_normal((60, width)).astype(np.float32))
    traced.shim_counts()
    played.aggregate(rng)
    assert traced.shim_counts()["most_atomics_an_address"] == parts


@pytest.mark.parametrize("scale", [14, 16, pytest.param(20, marks=pytest.mark.torture)])
def test_a_halo_claims_by_warp_and_fences_once_a_block(rng, engine, scale):
    """Rows of 16 columns over two PEs; by worker, there would be a claim for each 16 tasks at most."""
    graph = graphs.read(f"rmat:{scale}:16")
    middle = int(np.searchsorted(graph.indptr, graph.edges // 2))
    bounds = np.array([0, middle, graph.nodes])
    case = cases.Case(np.asarray(graph.indptr), np.asarray(graph.indices), bounds)
    x = rng.standard_normal((graph.nodes, 16)).astype(np.float32)
    played = Played(engine, case, x, DEFAULT_GEOMETRY, "halo", chunk_bytes=1 << 17)
    engine.module.shim_counts()
    played.aggregate(rng)
    counts = engine.module.shim_counts()
    claims = arrivals = 0
    for backend, plan in zip(played.backends, played.plans, strict=True):
        made, tasks = backend.launch(plan, played.format), backend.native_plan(plan).tasks
        workers = made.blocks * made.threads // made.lanes
        claims = max(claims, tasks // int(np.clip(tasks // (16 * workers), 1, 16)) + workers)
        arrivals += made.blocks * len(
            backend.halo(plan).schedule(backend, plan, played.format.row_bytes)[0].arrivals
        )
    found, fences = counts["most_atomics_an_address"], counts["fences"]
    print(
        f"{graph.name}: {found:,} claims of a PE, by worker {claims:,}; {fences:,} fences of threads, at most "
        f"{arrivals:,}, in {counts['warp_fences']:,} of warps"
    )
    assert found <= claims / 16
    assert fences <= arrivals
    if scale == 20:
        assert found <= CLAIMS_BEFORE / 16 and fences <= FENCES_BEFORE / 50
