"""The model of a sum's time on a GPU: its cache against a simulated one, its counts, and which term it suspects."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from command import mgg

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry
from mgg_hpc.tools.bench.harness import expected, graphs
from mgg_hpc.tools.bench.harness.expected import SHEETS, Reuse

KNOBS = Geometry(16, 4, 8)


def simulated(rows, capacity):
    """Misses of a cache that keeps the rows used last."""
    kept, missed = OrderedDict(), 0
    for row in rows.tolist():
        if row in kept:
            kept.move_to_end(row)
            continue
        missed += 1
        kept[row] = True
        if len(kept) > capacity:
            kept.popitem(last=False)
    return missed


@pytest.mark.parametrize("name", ["rmat:11:8", "uniform:11:8"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 2.0])
def test_a_cache_misses_as_often_as_a_simulated_one(name, share):
    graph = graphs.read(name)
    capacity = int(share * graph.nodes)
    found = Reuse(graph.indices).misses(capacity)
    assert found == pytest.approx(simulated(graph.indices, capacity), rel=0.03)


def test_no_rows_miss_nothing():
    assert Reuse(np.zeros(0, np.int32)).misses(3) == 0


def test_a_warp_takes_as_long_as_its_longest_worker():
    assert expected.tasks_of(np.array([0, 3, 3, 303]), 128).tolist() == [128, 128, 44, 3, 0]
    # Two workers a warp: (3, 0) takes 4 steps of each, (128, 128) 128, and (44, none) 44.
    assert expected.warp_steps(np.array([3, 0, 128, 128, 44]), 2) == (303, 2 * (4 + 128 + 44))


@pytest.mark.parametrize(
    ("row_bytes", "sectors"), [(64, [2, 2]), (80, [3, 3]), (16, [1, 1]), (512, [16, 16])]
)
def test_sectors_of_rows(row_bytes, sectors):
    assert expected.rows_units(np.array([0, 1]), row_bytes, expected.SECTOR) == sum(sectors)


def test_lines_of_rows():
    """Of 80 bytes the second row lies in two lines; of 600 bytes the last 88 are read apart."""
    assert [expected.rows_units(np.array([at]), 80, expected.LINE) for at in range(4)] == [1, 2, 1, 2]
    assert expected.rows_units(np.array([0]), 600, expected.LINE) == 4 + 1


def test_without_a_cache_an_edge_costs_its_row_and_index():
    graph, format = graphs.read("uniform:12:16"), RowFormat(np.dtype(np.float32), 128)
    sheet = replace(SHEETS["H100"], l2_bytes=0)
    none, large = (expected.expect(graph, format, KNOBS, of) for of in (sheet, SHEETS["H100"]))
    assert none["bytes_an_edge"]["no_reuse"] == 516
    beside = (graph.nodes * (512 + 4 + 24)) / graph.edges  # outputs, degrees and segments; there are no hubs
    assert none["bytes_an_edge"]["cache"] == pytest.approx(516 + beside)
    used = len(np.unique(graph.indices))
    assert large["bytes_an_edge"]["cache"] == pytest.approx(4 + used * 512 / graph.edges + beside)
    assert none["ms"] == pytest.approx(
        none["bytes_an_edge"]["cache"] * graph.edges / 3350e6 + expected.LAUNCH_MS
    )
    faster = expected.expect(graph, format, KNOBS, replace(sheet, gb_per_s=4800.0))
    assert faster["terms"]["memory"] == pytest.approx(none["terms"]["memory"] * 3350 / 4800)


def test_data_sheets_are_of_the_gpu_that_they_name():
    assert expected.sheet_of("NVIDIA H100 80GB HBM3").gb_per_s == 3350
    assert expected.sheet_of("NVIDIA H200").gb_per_s == 4800
    assert expected.sheet_of("NVIDIA H100 PCIe") is expected.sheet_of("shim") is None


@pytest.mark.parametrize(
    ("ms", "floor", "says"),
    [
        (1.2, 1.1, None),
        (0.7, 0.6, None),
        (1.6, 0.9, "instructions"),
        (1.6, 1.5, "memory"),
        (9.0, 8.5, "second cache"),
        (0.5, 0.5, "memory: less"),
    ],
)
def test_the_suspect(ms, floor, says):
    terms = {"memory": 1.0, "second cache": 0.5, "instructions": 0.1, "atomics": 0.0}
    made = expected.beside_measured({"ms": 1.0, "terms": terms, "no_reuse_ms": 3.0}, ms, floor)
    assert made["over_expected"] == ms
    assert made.get("suspect", "").startswith(says or "") and ("suspect" in made) == (says is not None)


def test_expectations_need_no_gpu(tmp_path, capsys):
    file = tmp_path / "expected.json"
    widths = ("--widths=16,128", f"--json={file}")
    assert mgg("bench", "aggregate", "rmat:6:4", "--device=cuda", "--expect=H200", *widths) == 0
    found = json.loads(file.read_text())
    assert [case["width"] for case in found["cases"]] == [16, 128]
    assert all(case["expected"]["sheet"]["name"] == "H200" and "ms" not in case for case in found["cases"])
    assert "data sheet of H200" in capsys.readouterr().out
    assert mgg("bench", "aggregate", "rmat:6:4", "--expect=H200") == 2
    assert "--expect" in capsys.readouterr().err
