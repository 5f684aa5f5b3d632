"""Tests that speak of one rank, or of four, by the mark ``ranks``: on as many as they name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import programs
import pytest
from ranks import OTHER_RANKS

MPI = Path(__file__).with_name("mpi")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 4])
def test_on_other_numbers_of_ranks(ranks):
    launch = [Path(sys.executable).with_name("mpiexec"), "-n", ranks, sys.executable, "-m", "mpi4py"]
    variables = {OTHER_RANKS: "1", "MGG_TEST_RANKS": str(ranks), "OMP_NUM_THREADS": "1"}
    pytest_ = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--with-mpi", MPI]
    done = programs.run(*launch, *pytest_, cwd=MPI.parents[1], env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
