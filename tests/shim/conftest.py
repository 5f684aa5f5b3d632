"""The GPU kernels, and the code around them, compiled by the host compiler against the shim."""

from __future__ import annotations

import sys
from pathlib import Path

import jobs
import programs
import pytest
from builds import made

from .build import Build

CHILD = Path(__file__).with_name("rank_child.py")
LAUNCH = (
    "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run(sys.argv[2:], int(sys.argv[1])))"
)


@pytest.fixture
def on_gpus(shim, tmp_path):
    """Runs `mgg` on so many ranks whose GPUs the shim plays, in the test's folder. None: one without a launcher."""

    def run(ranks, *words, fault="none", **environment):
        program = (sys.executable, CHILD, shim.folder / "_cuda.so", fault, "--", *words)
        variables = jobs.clean_environment() | {"OMP_NUM_THREADS": "1"} | environment
        by = program[1:] if ranks is None else ("-c", LAUNCH, ranks, *program)
        return programs.python(*by, cwd=tmp_path, env=variables)

    return run


@pytest.fixture(scope="session")
def shim_before(shim) -> Build:
    """The kernels as they are before sm_90: without bulk copies."""
    return shim.older(made("shim-before"))
