"""slurm/train.sbatch on a real Slurm: ranks of one node, and of two, train a job file."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long


def summary_in(folder):
    return json.loads((folder / "runs" / "latest" / "summary.json").read_text())


def test_two_ranks_train(user, job, tmp_path):
    facts, output = user.run("train.sbatch", job)
    assert facts["JobState"] == "COMPLETED", output
    assert (facts["NumNodes"], facts["Requeue"]) == ("1", "0")
    summary = summary_in(tmp_path)
    assert summary["ranks"] == 2
    assert summary["epochs"] == 3


def test_two_ranks_tune(user, job, tmp_path):
    facts, output = user.run(
        "tune.sbatch", job, "--transfers", "halo", XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert facts["JobState"] == "COMPLETED", output
    assert 'transfer = "halo"' in output and "1 forward" in output
    assert list((tmp_path / "cache" / "mgg-hpc" / "tuned").glob("*.json"))
    assert not (tmp_path / "runs").exists()


def test_options_reach_train_and_slurm(user, job, tmp_path):
    options = ["--ntasks=3", "--cpus-per-task=1"]
    facts, output = user.run("train.sbatch", job, "--set", "train.epochs=2", options=options)
    assert facts["JobState"] == "COMPLETED", output
    summary = summary_in(tmp_path)
    assert (summary["ranks"], summary["epochs"]) == (3, 2)


def test_wrong_job_file_fails_with_one_line(user, job, tmp_path):
    path = tmp_path / job
    path.write_text(path.read_text().replace("epochs", "epoch"))
    facts, output = user.run("train.sbatch", job)
    assert facts["JobState"] == "FAILED"
    assert facts["ExitCode"] == "2:0"
    errors = [line for line in output.splitlines() if line.startswith("mgg: error: ")]
    assert len(errors) == 1, output
    assert "epoch" in errors[0]
    assert not (tmp_path / "runs").exists()


def test_missing_job_file_fails_before_any_rank_starts(user):
    facts, output = user.run("train.sbatch", "absent.toml")
    assert facts["JobState"] == "FAILED"
    assert "mgg: error: absent.toml: no such job file in" in output
    assert "srun" not in output


def test_no_job_file_and_no_environment_are_named(user, tmp_path):
    assert "mgg: error: no job file: sbatch" in user.run("train.sbatch")[1]
    (tmp_path / "job.toml").touch()
    output = user.run("train.sbatch", "job.toml", MGG_VENV=str(tmp_path))[1]
    assert f"{tmp_path} has no mgg: run make setup" in output
    output = user.run("train.sbatch", "job.toml", MGG_SLURM=str(tmp_path / "absent"))[1]
    assert "read slurm/site.env.sh first" in output


def test_wrong_mpi_plugin_is_one_line(user, job):
    """srun without a plugin that the MPI knows starts two worlds of one rank each."""
    facts, output = user.run("train.sbatch", job, MGG_SRUN_MPI="none")
    assert facts["JobState"] == "FAILED"
    assert output.count("mgg: error: ") == 1
    assert "the launcher started 2 ranks (MGG_RANKS), but MPI has 1" in output


def test_open_mpi_trains_through_pmix(user, job, tmp_path, open_mpi):
    facts, output = user.run("train.sbatch", job, **open_mpi)
    assert facts["JobState"] == "COMPLETED", output
    assert summary_in(tmp_path)["ranks"] == 2


def test_ranks_of_two_nodes_train(user, job, tmp_path, shmem):
    options = ["--nodes=2", "--ntasks=2"]
    facts, output = user.run("train.sbatch", job, options=options, **shmem)
    assert facts["JobState"] == "COMPLETED", output
    assert facts["NumNodes"] == "2"
    summary = summary_in(tmp_path)
    assert (summary["ranks"], summary["backend"]) == (2, "shmem")
