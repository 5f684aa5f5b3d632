"""The benchmark of sampling: what it counts, and which of the other libraries' times it compares ours with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sampling(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import sampling

    return sampling


def test_ours_is_compared_with_the_fastest_of_the_others(sampling):
    ms = {"mgg": [2.0, 4.0], "mgg loader": [1.0, 1.0], "dgl": [9.0, 12.0], "pyg": [6.0, 16.0]}
    assert sampling.best(ms) == {"min": 3.0, "median": 3.75, "max": 4.5}  # dgl's median is 10.5, pyg's 11
    assert sampling.best({"mgg": [1.0], "mgg loader": [1.0]}) is None


def test_a_loss_that_is_another_is_refused(sampling):
    sampling.check_losses({"mgg": 1.0, "dgl": 1.09})
    with pytest.raises(RuntimeError, match=r"pyg.s loss is 1\.2000 and ours 1\.0000"):
        sampling.check_losses({"mgg": 1.0, "pyg": 1.2})


def test_all_parts_run_and_count_all_edges_where_fanouts_leave_none_out(tmp_path):
    output = tmp_path / "sampling.json"
    words = ["--graphs=rmat:8:4", "--fanouts=5000,5000", "--batch-size=256", "--batches=1", "--turns=1"]
    command = [sys.executable, ROOT / "benchmarks" / "sampling.py", *words, "--peers=none", "--json", output]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(output.read_text())
    (sampler,), (blocks,), (train,) = (found[part] for part in ("sampler", "blocks", "train"))
    assert sampler["edges_a_batch"] == dict.fromkeys(("mgg", "mgg loader"), 2 * sampler["edges"])
    assert sampler["rows_a_batch"] == dict.fromkeys(("mgg", "mgg loader"), sampler["nodes"])
    assert blocks["ms"].keys() == {"mgg", "mgg plans", "mgg schedules", "mgg sums"}
    assert set(blocks["edges_a_batch"].values()) == {2 * blocks["edges"]} and blocks["times_best"] is None
    assert train["edges_a_batch"] == {"mgg": 2 * train["edges"]} and train["times_best"] is None
    assert 2 < train["loss"]["mgg"] < 4  # 32 classes, little trained
