"""Accuracy on real graphs over a few seeds; `make accuracy` runs all of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from jobs import python

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"

# Cases that take seconds. Seeds to run, then percent: the target of the mean of all seeds, and mean and standard
# deviation as measured over all of them.
CASES = {
    "cora": (3, 80.5, 81.43, 0.66),
    "citeseer": (3, 69.5, 71.16, 0.90),
    "pubmed": (2, 78.2, 79.13, 0.51),
    "digits": (2, 96.7, 97.09, 0.51),
    "cora-sage": (2, 80.5, 81.17, 0.72),
    "cora-gat": (2, 82.0, 82.59, 0.62),
}


def lowest(seeds: int, target: float, mean: float, deviation: float) -> float:
    """What the mean of a few seeds must reach: the target, less what chance takes once in a thousand."""
    return target - max(0.0, 3.1 * deviation / math.sqrt(seeds) - (mean - target))


@pytest.mark.data
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_mean_of_a_few_seeds_reaches_the_published_accuracy(name, request, tmp_path):
    if name != "digits":
        request.getfixturevalue("data_folder")
    seeds, *known = CASES[name]
    output = tmp_path / "accuracy.json"
    options = ["--cases", name, "--seeds", str(seeds), "-o", output]
    done = python(SCRIPT, *options, OMP_NUM_THREADS="1")
    assert output.exists(), done.stdout + done.stderr
    (row,) = json.loads(output.read_text())["rows"]
    assert row["std"] > 0  # seeds matter
    assert row["mean"] >= lowest(seeds, *known)
    assert done.returncode == (0 if row["verdict"] == "reached" else 1)
