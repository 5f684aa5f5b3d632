"""A Slurm of two nodes, jobs on it, and a user's folder with a job file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jobs
import programs
import pytest
from torture.launched import metrics

from slurm.cluster import Cluster, missing

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cluster(require):
    """Two nodes that run jobs."""
    require(not missing(), "no Slurm", f"apt install {' '.join(missing())}")
    require(os.geteuid() == 0, "a real Slurm needs root")
    # A short path: munge's socket must fit into 108 characters, and everyone must reach it.
    folder = Path(tempfile.mkdtemp(prefix="mgg-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class User:
    """A user who submits the scripts of slurm/ from a folder, with this environment."""

    cluster: Cluster
    folder: Path
    environment: dict[str, str]

    def sbatch(self, script, *arguments, options=(), **variables):
        """Submit a script; returns the job's number."""
        words = ("--output=out.%j", *options, ROOT / "slurm" / script, *arguments)
        return self.cluster.submit(*words, folder=self.folder, **self.environment | variables)

    def output(self, number):
        """Return what a job has written so far."""
        path = self.folder / f"out.{number}"
        return path.read_text() if path.exists() else ""

    def run(self, script, *arguments, options=(), **variables):
        """Submit a script and wait for its end; returns (facts of the job, its output)."""
        number = self.sbatch(script, *arguments, options=options, **variables)
        return self.cluster.result(number), self.output(number)

    def wait_for_epochs(self, number, more):
        """Wait until a job has trained so many more epochs, in runs/001."""
        run = self.folder / "runs" / "001"
        goal = len(metrics(run)) + more
        programs.wait_until(lambda: len(metrics(run)) >= goal, 60, lambda: self.output(number))


@pytest.fixture
def user(cluster, tmp_path):
    """A user with an empty folder."""
    return User(cluster, tmp_path, {"MGG_SLURM": str(ROOT / "slurm"), "MGG_VENV": sys.prefix})


@pytest.fixture
def open_mpi(require):
    """Variables with which jobs use the machine's Open MPI."""
    from mgg_hpc.runtime import find_mpi

    there = shutil.which("mpiexec.openmpi") is not None
    require(there, "no Open MPI", "apt install openmpi-bin libopenmpi-dev")
    return {"MGG_SRUN_MPI": "pmix", "MPI4PY_LIBMPI": str(find_mpi.system_library())}


@pytest.fixture
def shmem(open_mpi, require):
    """Variables with which ranks of several nodes train."""
    built = list((ROOT / "mgg_hpc").glob("_shmem*.so"))
    require(bool(built), "mgg_hpc._shmem is not built", "apt install openmpi-bin libopenmpi-dev, make setup")
    return open_mpi


@pytest.fixture
def job(tmp_path):
    """A job file and its graph."""
    jobs.write_job(tmp_path, jobs.blocks(200), run={"folder": "runs"})
    return "job.toml"
