"""benchmarks/studies/traversal.py --device cuda on a GPU that the shim plays."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest

ROOT = Path(__file__).parents[3]
HOST = ["host, 8 bytes", "host, 8 bytes, merged", "host, 8 bytes, strided", "host, 4 bytes"]


@pytest.mark.long
def test_every_variant_is_timed(shim, tmp_path):
    on_shim, script = ROOT / "tests" / "gpu" / "on_shim.py", ROOT / "benchmarks" / "studies" / "traversal.py"
    words = ("rmat:6:4", "--sources", "2", "--device", "cuda", "-o", "t.json", "-o", "t.png")
    done = jobs.python(on_shim, script, *words, folder=tmp_path, OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "t.png").exists()
    found = json.loads((tmp_path / "t.json").read_text())
    rows = found["rows"]
    assert found["copy_gb_per_s"] > 0 and [row["variant"] for row in rows] == [*HOST, "device, 4 bytes"]
    for row in rows:
        assert row["sources"] == 2 and "turns" not in row
        assert row["min_ms"] <= row["median_ms"] <= row["max_ms"] and row["times_first"] > 0
        assert ("moved_bytes" in row) == ("gb_per_s" in row) == (row["variant"] in HOST)
    moved = {row["variant"]: row["moved_bytes"] for row in rows if "moved_bytes" in row}
    # Requests for edges of 8 bytes, which are counted on any machine, and of 4.
    assert moved["host, 8 bytes"] <= moved["host, 8 bytes, merged"]
    assert moved["host, 4 bytes"] < moved["host, 8 bytes"] <= moved["host, 8 bytes, strided"]
