"""`mgg submit` on a real Slurm: plain jobs train, and hostile names of files are only names."""

from __future__ import annotations

import json
import re
import sys

import jobs
import pytest

pytestmark = pytest.mark.long

# In the place of `mgg`: notes its arguments beside the job file.
PROGRAM = """\
#!/bin/bash
printf '%s\\0' "$@" >"noted.$SLURM_ARRAY_TASK_ID"
"""
NAMES = (
    "$(touch executed).toml",
    "`touch executed`.toml",
    "'; touch executed; '.toml",
    '"; touch executed; ".toml',
    "a\ntouch executed\n.toml",
    "--wrap=touch executed.toml",
    "%j%x \\%A*.toml",
    "&& touch executed #.toml",
)


def submit(user, *arguments, **variables):
    """Run `mgg submit` as a user; returns the job's number."""
    done = user.cluster.user(
        jobs.MGG, "submit", *arguments, folder=user.folder, **user.environment | variables
    )
    assert done.returncode == 0, done.stderr
    return re.match(r"job (\d+); its output will be in \S+\n", done.stdout)[1]


def test_a_job_trains(user, job, tmp_path):
    number = submit(user, job, "--ranks", "2", "--time", "10", "--requeue", "--set", "train.epochs=2")
    facts = user.cluster.result(number)
    output = (tmp_path / f"mgg-job-{number}.out").read_text()
    assert facts["JobState"] == "COMPLETED", output
    assert (facts["JobName"], facts["TimeLimit"], facts["Requeue"]) == ("mgg-job", "00:10:00", "1")
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert (summary["ranks"], summary["epochs"]) == (2, 2)


def test_hostile_names_of_job_files_reach_mgg_unchanged(user, tmp_path):
    (tmp_path / "g.h5").touch()
    program = tmp_path / "venv" / "bin" / "mgg"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for name in NAMES:
        (tmp_path / name).write_text('graph.file = "g.h5"\nrun.folder = "$(touch executed)"\n')
    before = {path.name for path in tmp_path.iterdir()}
    value = "run.folder=`touch executed`; $(touch executed)"
    number = submit(user, "--set", value, "--", *NAMES, MGG_VENV=str(tmp_path / "venv"))
    for index, name in enumerate(NAMES):
        assert user.cluster.result(f"{number}_{index}")["JobState"] == "COMPLETED"
        words = (tmp_path / f"noted.{index}").read_text().split("\0")[:-1]
        job = f"./{name}" if name.startswith("-") else name
        assert words == ["train", "--set", "run.threads=1", "--set", value, "--", job]
    made = {path.name for path in tmp_path.iterdir()} - before
    outputs = {f"mgg-touch_executed-{number}_{index}.out" for index in range(len(NAMES))}
    assert made == outputs | {f"noted.{index}" for index in range(len(NAMES))}


def test_what_slurm_refuses_is_one_line(user, job):
    variables = user.environment | {"MGG_VENV": sys.prefix}
    done = user.cluster.user(jobs.MGG, "submit", job, "--partition", "none", folder=user.folder, **variables)
    assert done.returncode == 2
    assert done.stderr.startswith("mgg: error: sbatch refused the job: ") and done.stderr.count("\n") == 1
    assert "invalid partition" in done.stderr
