"""The benchmark runs and says what it promises, and the figures that do not hang on a quiet machine hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import MGG, clean_environment

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.long


@pytest.fixture
def bench(tmp_path):
    """Run benchmarks/run.py and return what it wrote."""

    def bench(*options: str) -> dict:
        output = tmp_path / "bench.json"
        command = [sys.executable, ROOT / "benchmarks" / "run.py", "--json", output, *options]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return json.loads(output.read_text()) | {"text": done.stdout}

    return bench


def test_every_part_runs_and_is_printed(bench):
    small = ["--graph=rmat:10", "--epochs=2", "--epoch-graphs=digits"]
    found = bench(*small, "--memory-nodes=2000")
    assert found["machine"]["instruction_set"] in ("baseline", "avx2", "avx512")
    assert found["machine"]["huge_pages"] in ("always", "madvise", "never", "unknown")
    assert found["plan"]["graph"] == "rmat10"
    assert found["plan"]["ranks"] == 4
    assert 0 < found["plan"]["slowest_rank_s"] <= found["plan"]["all_ranks_s"]
    assert [(row["graph"], row["ranks"], row["threads"]) for row in found["epoch"]] == [
        ("digits", 1, 2),
        ("digits", 2, 1),
    ]
    assert found["memory"]["nodes"] == 2000
    for peak, planned, rest in zip(
        *(found["memory"][f"{key}_bytes"] for key in ("peak", "estimated", "remainder")), strict=True
    ):
        assert peak == planned + rest
        assert 0.85 * peak < planned < 1.15 * peak
    assert 0 < found["help"]["processor_s"] < 2
    for heading in ("plan of rmat10", "ms an epoch", "MB of a rank", "mgg --help"):
        assert heading in found["text"]


def test_a_graph_that_is_not_there_is_replaced_and_named(bench):
    found = bench("--only=plan", "--graph=absent", "--turns=1")
    assert found["plan"]["graph"] == "rmat18"
    assert "absent.npz: no such graph" in found["note"]
    assert "rmat of scale 18 instead" in " ".join(found["text"].split())


@pytest.mark.data
def test_plan_takes_two_seconds_at_most(bench, data_folder):
    found = bench("--only=plan")
    assert found["plan"]["graph"] == "cnr_2000"
    assert found["plan"]["all_ranks_s"] < 2.0


@pytest.mark.data
@pytest.mark.parametrize("weighted", [False, True])
def test_aggregation_is_twice_as_fast_as_torch(weighted, data_folder, tmp_path):
    """On every machine that it was measured on; where memory is far and cores have small caches, 4 times.

    Turns alternate, so what slows one slows the other; still, a busy machine gets a few tries.
    """
    output = tmp_path / "bench.json"
    command = [MGG, "bench", "aggregate", data_folder / "cnr_2000" / "cnr_2000.npz", "--widths=128"]
    command += ["--peers=torch", f"--peers-env={sys.prefix}", "--turns=5", f"--json={output}"]
    best = 0.0
    for _ in range(4):
        subprocess.run([*command, *["--weighted"] * weighted], env=clean_environment(), check=True)
        best = max(best, json.loads(output.read_text())["speedup"]["torch"])
        if best >= 2.0:
            break
    assert best >= 2.0


def test_a_rank_takes_less_than_420_mb_beside_its_part_of_the_graph(bench):
    found = bench("--only=memory")["memory"]
    assert found["edges"] > 3_000_000
    assert min(found["estimated_bytes"]) > 100e6
    assert max(found["remainder_bytes"]) < 420e6
