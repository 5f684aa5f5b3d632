"""slurm/train.sbatch on a real Slurm: two ranks of one node train a job file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jobs
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "slurm" / "train.sbatch"
JOB = 'graph.file = "g.h5"\nrun.folder = "runs"\ntrain.epochs = 3\n'

pytestmark = pytest.mark.long


@pytest.fixture
def submit(cluster, tmp_path):
    """Submit train.sbatch from a folder of the user's; returns (facts of the job, its output)."""

    def submit(*arguments, options=(), **variables):
        site = {"MGG_SITE": str(ROOT / "slurm" / "site.env.sh"), "MGG_VENV": sys.prefix}
        words = ("--output=out.%j", *options, SCRIPT, *arguments)
        number = cluster.submit(*words, folder=tmp_path, **(site | variables))
        facts = cluster.result(number)
        return facts, (tmp_path / f"out.{number}").read_text()

    return submit


@pytest.fixture
def job(tmp_path):
    """A job file and its graph."""
    assert jobs.run("generate", "sbm", "--nodes", "200", "-o", tmp_path / "g.h5").returncode == 0
    (tmp_path / "job.toml").write_text(JOB)
    return "job.toml"


def test_two_ranks_train(submit, job, tmp_path):
    facts, output = submit(job)
    assert facts["JobState"] == "COMPLETED", output
    assert facts["NumNodes"] == "1"
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert summary["ranks"] == 2
    assert summary["epochs"] == 3


def test_options_reach_train_and_slurm(submit, job, tmp_path):
    facts, output = submit(job, "--set", "train.epochs=2", options=["--ntasks=3", "--cpus-per-task=1"])
    assert facts["JobState"] == "COMPLETED", output
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["ranks"], summary["epochs"]) == (3, 2)


def test_wrong_job_file_fails_with_one_line(submit, job, tmp_path):
    (tmp_path / job).write_text(JOB.replace("epochs", "epoch"))
    facts, output = submit(job)
    assert facts["JobState"] == "FAILED"
    assert facts["ExitCode"] == "2:0"
    errors = [line for line in output.splitlines() if line.startswith("mgg: error: ")]
    assert len(errors) == 1, output
    assert "epoch" in errors[0]
    assert not (tmp_path / "runs").exists()


def test_missing_job_file_fails_before_any_rank_starts(submit):
    facts, output = submit("absent.toml")
    assert facts["JobState"] == "FAILED"
    assert "mgg: error: absent.toml: no such job file in" in output
    assert "srun" not in output


def test_no_job_file_and_no_environment_are_named(submit, tmp_path):
    assert "mgg: error: no job file: sbatch" in submit()[1]
    (tmp_path / "job.toml").touch()
    assert f"{tmp_path} has no mgg: run make setup" in submit("job.toml", MGG_VENV=str(tmp_path))[1]
    assert "read slurm/site.env.sh first" in submit("job.toml", MGG_SITE=str(tmp_path / "absent"))[1]


def test_wrong_mpi_plugin_is_one_line(submit, job):
    """srun without a plugin that the MPI knows starts two worlds of one rank each."""
    facts, output = submit(job, MGG_SRUN_MPI="none")
    assert facts["JobState"] == "FAILED"
    assert output.count("mgg: error: ") == 1
    assert "the launcher started 2 ranks (MGG_RANKS), but MPI has 1" in output


def test_open_mpi_trains_through_pmix(submit, job, tmp_path, require):
    from mgg_hpc.runtime import find_mpi

    there = shutil.which("mpiexec.openmpi") is not None
    require(there, "no Open MPI", "apt install openmpi-bin libopenmpi-dev")
    facts, output = submit(job, MGG_SRUN_MPI="pmix", MPI4PY_LIBMPI=str(find_mpi.system_library()))
    assert facts["JobState"] == "COMPLETED", output
    assert json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())["ranks"] == 2
