"""`mgg bench profile --device cuda` with the shim in place of a GPU, and a program of our own in place of ncu."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from command import refused

from mgg_hpc.errors import InputError
from mgg_hpc.plan import launch
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from mgg_hpc.tools.bench.harness import graphs
from mgg_hpc.tools.bench.profile import gpu as profile_gpu
from mgg_hpc.tools.bench.profile import launches, ncu

from . import fake_ncu

pytestmark = pytest.mark.long

HERE = Path(__file__).parent

# As `ncu --csv --page raw` writes it.
REPORT = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "aggregate_direct" - 0: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","gpu__time_duration.sum","l1tex__t_sector_hit_rate.pct","launch__block_size",\
"launch__grid_size","launch__registers_per_thread","lts__t_sectors_srcunit_tex.sum",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_not_issued_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"
"","","","","","","","","","","","byte","nsecond","%","","","register/thread","sector","inst","inst","inst","inst"
"0","4711","python3.12","127.0.0.1","void aggregate_direct<float, DeviceSum, 4, 1, 0>(DeviceAggregation<T1>)","1","7",\
"(256, 1, 1)","(8,192, 1, 1)","0","9.0","1,234,567","2,345,678","n/a","256","8,192","72","1,000,001","0.25","17.5",\
"17","1.00"
"1","4711","python3.12","127.0.0.1","void gather_floor<32>(DeviceFloor)","1","7","(256, 1, 1)","(3, 1, 1)","0","9.0",\
"12,345.00","67.00","33.5","256","3","40","7","0.50","0.25","0.2","1.00"
"""


def test_a_report():
    first, second = ncu.launches(REPORT)
    assert first.function == "void aggregate_direct<float, DeviceSum, 4, 1, 0>(DeviceAggregation<T1>)"
    assert first.values[ncu.READ] == 1_234_567
    assert first.values[ncu.TIME] == pytest.approx(2.345678)  # milliseconds
    assert first.values[ncu.SECTORS] == 1_000_001
    assert (first.values[ncu.BLOCKS], first.values[ncu.THREADS]) == (8192, 256)
    assert ncu.HITS_1 not in first.values and second.values[ncu.HITS_1] == 33.5
    assert list(first.stalls.items()) == [("long_scoreboard", 17.5), ("barrier", 0.25)]
    assert list(second.stalls) == ["barrier", "long_scoreboard"]
    found = profile_gpu.measured(first)
    assert found["second_cache_bytes"] == 32 * 1_000_001
    assert found["first_cache_hits"] is None and found["occupancy"] is None
    assert profile_gpu.measured(second)["first_cache_hits"] == pytest.approx(0.335)


@pytest.mark.parametrize(
    ("unit", "milliseconds"), [("ns", 1e-6), ("us", 1e-3), ("usecond", 1e-3), ("ms", 1), ("second", 1e3)]
)
def test_times_in_other_units(unit, milliseconds):
    first, _ = ncu.launches(REPORT.replace('"nsecond"', f'"{unit}"'))
    assert first.values[ncu.TIME] == pytest.approx(2_345_678 * milliseconds)


def test_a_report_without_launches_or_of_another_page():
    assert ncu.launches("==PROF== Connected\n==WARNING== No kernels were profiled.\n") == []
    details = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","f()","x__y.sum","ns","3"\n'
    with pytest.raises(InputError, match="expected the page raw"):
        ncu.launches(details)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts an ncu on PATH that runs its program and reports made-up counters, but its true grids."""

    def made(**given):
        monkeypatch.setenv("PATH", f"{fake_ncu.made(tmp_path / 'bin', **given)}:{os.environ['PATH']}")

    return made


@pytest.fixture(autouse=True)
def child(shim, engine, monkeypatch):
    """Launch kernels over the shim."""
    tests = HERE.parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tests}:{tests.parent}")
    monkeypatch.setattr(module, "load", lambda: engine.module)
    monkeypatch.setattr(module, "need_device", lambda module: 1)
    command = (sys.executable, str(HERE / "launch_child.py"), str(shim.folder / "_cuda.so"))
    monkeypatch.setattr(profile_gpu, "CHILD", command)


@pytest.fixture
def refusal(tmp_path, capsys, monkeypatch):
    """Run `mgg bench profile --device cuda`, and return why it is refused."""

    def run(graph: str, *transfers: str) -> str:
        here = tmp_path / "here"
        here.mkdir(exist_ok=True)
        monkeypatch.chdir(here)
        words = ("profile", graph, "--device=cuda", "--widths=5", f"--transfers={','.join(transfers)}")
        return refused(capsys, "bench", *words, "--json=found.json")

    return run


def test_a_whole_run(bench, fake, engine):
    fake()
    names = list(launches.FUNCTIONS)
    found = bench("profile", "rmat:7:8", "--widths=5,64", plot=False)
    assert found["device"]["name"] == "shim"
    assert [(case["width"], case["name"]) for case in found["cases"]] == [
        (width, name) for width in (5, 64) for name in names
    ]
    graph, limits = graphs.read("rmat:7:8"), module.limits_of(engine.module)
    for at, case in enumerate(found["cases"]):
        got = case["measured"]
        number = 1000 * (at % len(names) + 1)  # ncu runs once for each width
        metric = {name: number + position + 0.5 for position, name in enumerate(ncu.METRICS)}
        assert got["ms"] == pytest.approx(metric[ncu.TIME] / 1e3)
        assert got["memory_written_bytes"] == metric[ncu.WRITTEN]
        assert got["stalls"] == {"drain": 2.5, "wait": 0.5}
        assert f"mgg::{case['function']}<" in got["kernel"]
        model, row_bytes = case["bytes"], RowFormat(np.dtype(np.float32), case["width"]).row_bytes
        memory = metric[ncu.READ] + metric[ncu.WRITTEN]
        assert case["over"]["memory"] == pytest.approx(memory / model["memory_least"])
        assert case["over"]["second_cache"] == pytest.approx(32 * metric[ncu.SECTORS] / model["second_cache"])
        floor = model["memory_least"] / found["copy_gb_per_s"] / 1e6
        assert case["over"]["ms"] == pytest.approx(got["ms"] / floor)
        edges, own = graph.edges, graph.nodes
        if case["name"] in ("direct", "get", "halo"):
            own -= round(launches.SHARE * graph.nodes)
            edges = int(graph.indptr[own])
        distinct = len({*graph.indices[:edges].tolist()})
        moved = edges * (row_bytes + 4)
        if case["name"] == "floor":
            assert model["second_cache"] == moved
        else:
            # Beside edges: outputs, their degrees and segments, and where rows are remote their tasks.
            least = row_bytes + (28 if case["name"] == "local" else 52)
            assert own * least <= model["second_cache"] - moved <= own * row_bytes + edges * 52
        assert model["memory_most"] == model["second_cache"]
        assert model["memory_most"] - model["memory_least"] == (edges - distinct) * row_bytes
        if case["name"] == "local":
            format = RowFormat(np.dtype(np.float32), case["width"])
            knobs = DEFAULT_GEOMETRY
            pieces = int((-(-np.diff(graph.indptr) // knobs.ps)).clip(1).sum())
            expected = launch.direct(
                pieces, 0, format, ps=knobs.ps, dist=knobs.dist, wpb=knobs.wpb, limits=limits
            )
            assert case["launch"]["warps"] == expected.warps
            assert case["launch"]["work_per_warp"] == 2 * knobs.ps * knobs.dist * case["width"]
            assert got["grid"] == [expected.blocks, 32 * knobs.wpb]
    for word in ("halo x 64", "rmat7", "drain", "L2 hits", "registers"):
        assert word in found["printed"]
    assert "| get x 5 |" in found["markdown"]
    assert " turns each" not in found["markdown"]


def test_a_kernel_that_is_not_in_the_report_is_named(fake, refusal):
    fake(without="aggregate_get")
    said = refusal("rmat:5:4", "local", "get", "floor")
    assert said.startswith("aggregate_get (get, width 5) is not in ncu's report")


def test_counters_that_ncu_may_not_read(fake, refusal):
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    fake(before=f"print({said!r}, file=log); sys.exit(1)")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refusal("rmat:5:4", "local")


def test_a_program_that_cannot_go_on(fake, refusal, monkeypatch):
    """Its own words, where it has some; else the last ones of its error, or ncu's."""
    fake()
    assert "rmat:4:0: has 0 edges" in refusal("rmat:4:0", "local")
    dead = (sys.executable, "-c", "raise SystemExit('out of memory, say')")
    monkeypatch.setattr(profile_gpu, "CHILD", dead)
    assert "has ended early: out of memory, say" in refusal("rmat:5:4", "local")


def test_a_metric_that_ncu_does_not_know_is_named(bench, fake):
    fake(lacks=ncu.HITS_2)
    found = bench("profile", "rmat:5:4", "--widths=5", "--transfers=local,floor", plot=False)
    assert found["notes"][0] == f"ncu gave no {ncu.HITS_2}"
    assert all(case["measured"]["second_cache_hits"] is None for case in found["cases"])
