"""Tests marked gpu and benchmarks of a GPU over the shim; the job's memory; texts of the faults for sanitizers."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import programs
import pytest
from mpi4py import MPI
from tiers import drawn

from . import bench
from .faults import FAULTS, edited
from .pes.engine import Engine

pytestmark = pytest.mark.long

ROOT, GPU = Path(__file__).parents[2], Path(__file__).parent
PARTS = {
    "test_smoke.py": "machine or sum-float32",
    "test_table.py": "random or many",
    "test_ranks.py": "test_processes and 2-unreached",
}


@pytest.mark.parametrize("file", drawn(PARTS, 2))
def test_a_part_over_the_shim(shim, file):
    chosen = ("-p", "no:cacheprovider", "--timeout=0", "-m", "gpu", "--device", "shim", "-n1")
    words = (GPU / file, "-k", PARTS[file], "--patience", 10)
    done = programs.python("-m", "pytest", *chosen, *words, cwd=ROOT)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]


def test_symmetric_memory_is_given_back_and_zeroed(rng, shim):
    """All allocations of a job of one PE have one size, so that the same place comes again."""
    engine = Engine.shim(shim.folder / "_cuda.so")
    engine.join(MPI.COMM_SELF)
    peers, address_of = engine.job, engine.arrays.address
    first = peers.memory.zeros(1000)
    first[:] = rng.integers(1, 255, 1000).astype(np.uint8)
    address = address_of(first)
    peers.release()
    again = peers.memory.zeros(1000)
    assert address_of(again) != 0 and not again.any() and abs(address_of(again) - address) <= 1024
    assert peers.allocate(0, 0, address_of(again), 1000).tolist() == [address_of(again)]
    peers.finish()


def test_texts_of_faults_for_sanitizers_are_there_once():
    assert edited(*FAULTS.values())  # raises ValueError where one is not


def test_benchmarks_of_a_gpu_run_over_the_shim(shim, tmp_path):
    """(cuSPARSE and PyG have no stand-in there.)"""
    words = ("--device", "shim", "--results", tmp_path, "--until", time.time() + 3000)
    done = programs.python(bench.__file__, *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stem for path in tmp_path.glob("*.json")} == bench.BENCHES.keys() - {bench.CONTACT}
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(bench.DRAWN)
