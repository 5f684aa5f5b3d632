"""benchmarks/streaming.py and its study: variants compute the same, and move the bytes that they must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.long


@pytest.fixture
def rows(tmp_path):
    """Run a script on a small graph; return its rows by all words that name them."""

    def run(script: str, *words: str) -> dict[tuple[str, ...], dict]:
        files = ["-o", str(tmp_path / "rows.json"), "-o", str(tmp_path / "rows.svg")]
        command = [sys.executable, BENCHMARKS / script, *words, "--turns=1", "--threads=1", *files]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "</svg>" in (tmp_path / "rows.svg").read_text()
        found = json.loads((tmp_path / "rows.json").read_text())["rows"]
        return {(row["program"], row["variant"]): row for row in found}

    return run


def test_steps_that_stream_are_the_steps_in_memory(rows, tmp_path):
    found = rows("streaming.py", "rmat:8", "--parts=memory", f"--folder={tmp_path}")
    variants = ["in memory", "in place", "copied into chunks", "files, direct"]
    assert list(found) == [(program, variant) for program in ("gcn", "gated-gcn") for variant in variants]
    for (_, variant), row in found.items():
        if variant != "in memory":  # losses were compared
            assert row["apart"] < 1e-5 and row["of_belady"] >= 1
            assert (row["loaded_mib"] > 0) == (variant != "in place")
            assert (row.get("storage_ms", 0) > 0) == (variant == "files, direct")


def test_schedules_move_sums_where_they_must(rows):
    found = rows("studies/streaming.py", "schedules", "rmat:8")
    variants = ["accumulator", "stage", "destination"]  # one chunk holds all sources
    assert [(name, row["sums_mb"] > 0) for (_, name), row in found.items()] == [
        (v, v == "stage") for v in variants
    ] * 2


def test_chains_load_each_chunk_once(rows, tmp_path):
    found = rows("studies/streaming.py", "ring", "rmat:8", "--ranks=1,2")
    chains, alone = found.values()  # on two ranks, the last ones
    assert chains["ranks"] == 2 and alone["chunks_mb"] > 1.5 * chains["chunks_mb"] > 0
    every = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["ranks"] for row in every] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("streaming.py", "--parts=memroy", "--parts memroy: 'memroy' is not one of memory, capped"),
        (
            "streaming.py",
            "--folder=/absent",
            "Invalid value for '--folder': Directory '/absent' does not exist. (see 'streaming.py --help')",
        ),
        ("studies/streaming.py", "ring --ranks=2;3", "--ranks 2;3: '2;3'; expected numbers of 1 .. 65536"),
    ],
)
def test_bad_input_is_one_line(script, words, said):
    command = [sys.executable, BENCHMARKS / script, *words.split()]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"streaming.py: error: {said}\n")
