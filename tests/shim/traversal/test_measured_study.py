"""`mgg study traversal --device cuda` on a GPU that the shim plays."""

from __future__ import annotations

import pytest

from mgg_hpc.tools.study import table
from mgg_hpc.tools.study.traversal.measured import WAYS


@pytest.mark.long
def test_every_way_is_timed(on_gpus, tmp_path):
    done = on_gpus(None, "study", "traversal", "rmat:6:4", "--sources", "2", "--device", "cuda")
    assert (done.returncode, done.stderr) == (0, "")
    rows = table.read(tmp_path / "traversal.csv")
    assert [row["variant"] for row in rows] == [str(way) for way in WAYS]
    assert (tmp_path / "traversal.png").exists()
    for row in rows:
        assert row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        assert row["copy_gb_per_s"] > 0 and row["times_first"] > 0
        assert ("moved_bytes" in row) == ("gb_per_s" in row) == row["variant"].startswith("host")
    by_way = {row["variant"]: row["moved_bytes"] for row in rows if "moved_bytes" in row}
    # Requests for edges of 8 bytes, which `counted` counts, and of 4.
    assert by_way["host, 8 bytes"] <= by_way["host, 8 bytes, merged"]
    assert by_way["host, 4 bytes"] < by_way["host, 8 bytes"] <= by_way["host, 8 bytes, strided"]
