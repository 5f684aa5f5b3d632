"""A benchmark that is ended on its way leaves the cells that it had measured."""

from __future__ import annotations

import json

import pytest
from command import mgg

from mgg_hpc.errors import InputError
from mgg_hpc.tools.bench.aggregate import gpu as aggregate_gpu
from mgg_hpc.tools.bench.epoch import gpu as epoch_gpu
from mgg_hpc.tools.bench.huge import gpu as huge_gpu
from mgg_hpc.tools.bench.overlap import gpu as overlap_gpu

from .test_bench_epoch import Counted

pytestmark = pytest.mark.long

# What is run, the function that measures a cell, the call at which it is ended, and how many cells are there then.
ENDED = {
    "aggregate": (
        ("rmat:5:4", "--widths=16,5", "--peers=none"),
        (aggregate_gpu.Comparison, "measure_types"),
        (2, 1),
    ),
    "overlap": (("uniform:5:4", "--width=5", "--shares=0,0.3,0.5"), (overlap_gpu, "measure"), (3, 2)),
    "epoch": (
        ("rmat:4:4", "uniform:4", "--features=5", "--hidden=3", "--classes=2", "--peers=none"),
        (epoch_gpu, "measure"),
        (2, 1),
    ),
    "huge": (("--rows=50", "--edges=200", "--features=4", "--width=5"), (huge_gpu, "step_ms"), (7, 4)),
}


@pytest.mark.parametrize("benchmark", ENDED)
def test_what_is_measured_stays(device, monkeypatch, tmp_path, benchmark):
    words, (owner, name), (ends_at, cells) = ENDED[benchmark]
    right, calls = getattr(owner, name), []

    def measure(*given, **named):
        calls.append(given)
        if len(calls) == ends_at:
            raise InputError("ended")
        return right(*given, **named)

    monkeypatch.setattr(owner, name, measure)
    monkeypatch.setattr(epoch_gpu, "GpuMemory", Counted)
    files = (f"--json={tmp_path / 'found.json'}", f"--table={tmp_path / 'found.md'}")
    assert mgg("bench", benchmark, *words, "--device=cuda", "--turns=2", *files) == 2
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["cases"]) == cells
    assert (tmp_path / "found.md").read_text().startswith("# mgg bench")
