"""Runs to report on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jobs import blocks, write_job
from tools.report.pages import EPOCHS

from mgg_hpc.__main__ import main


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run on one rank; tests take copies."""
    folder = tmp_path_factory.mktemp("trained")
    job = write_job(folder, blocks(), train={"epochs": EPOCHS, "seed": 5})
    assert main(["train", str(job)]) == 0
    return folder / "runs" / "001"


@pytest.fixture
def copied(trained, tmp_path):
    """Returns a copy of the run by name, to be changed."""
    return lambda name="001": Path(shutil.copytree(trained, tmp_path / "runs" / name))
