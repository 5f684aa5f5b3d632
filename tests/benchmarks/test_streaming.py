"""benchmarks/streaming.py: variants compute the same, and move the bytes that they must."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def rows(measured):
    """Run some parts on a small graph; return the rows by program and variant."""

    def run(parts: str, *words: object) -> dict[tuple[str, str], dict]:
        found = measured("streaming", "rmat:8", f"--parts={parts}", "--turns=1", "--threads=1", *words)
        return {(row["program"], row["variant"]): row for row in found["rows"]}

    return run


def test_steps_that_stream_are_the_steps_in_memory(rows, tmp_path):
    """Losses are compared by the script."""
    found = rows("memory", "--folder", tmp_path)
    variants = ["in memory", "in place", "copied into chunks", "files, direct"]
    assert list(found) == [(program, variant) for program in ("gcn", "gated-gcn") for variant in variants]
    for (_, variant), row in found.items():
        assert row["peak_mb"] > 0
        if variant != "in memory":
            assert (row["chunks_mb"] > 0) == (variant != "in place") and row["limit_mb"] > 1
            assert row["storage_mb"] > 0 or variant != "files, direct"


def test_schedules_move_sums_where_they_must_and_a_rate_is_kept(rows):
    found = rows("schedules,overlap", "--rate=0.05")
    variants = ["accumulator", "stage", "destination"]  # one chunk holds all sources
    alone = ["bytes alone", "all else alone"]
    assert list(found) == [
        (program, name)
        for names in (variants, ["ahead", "when wanted", *alone])
        for program in ("gcn", "gated-gcn")
        for name in names
    ]
    for (_, name), row in found.items():
        if name in variants:
            assert (row["sums_mb"] > 0) == (name == "stage")
        if name not in alone:
            assert row["median_ms"] > 0.9 * row["moved_mb"] / 0.05  # by stores of 0.05 GB/s


def test_chains_load_each_chunk_once(rows):
    chains, alone = rows("ring", "--ranks=2").values()
    assert chains["ranks"] == 2 and alone["chunks_mb"] > 1.5 * chains["chunks_mb"] > 0
