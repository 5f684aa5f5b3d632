"""Every kernel of the module is loaded before the first one runs."""

from __future__ import annotations

import csv
from pathlib import Path

RESOURCES = (
    Path(__file__).parents[1] / "nvcc" / "resources.csv"
)  # a line for each function of the linked module


def test_all_kernels_are_loaded(engine):
    with RESOURCES.open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        kernels = {line["kernel"] for line in lines if not line["kernel"].startswith("device::")}
    engine.module.shim_counts()  # of the tests before
    assert engine.module.load_all() == len(kernels)
    assert not any(engine.module.shim_counts().values()), "and none has run"
