"""`mgg submit`: which script with which options, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command import mgg
from jobs import python
from tools.submit.stand_ins import SCRIPTS, noted, parsed, refused, submitted, write

from mgg_hpc.errors import InputError
from mgg_hpc.tools.submit import Request, _minutes, process_submit

# ---- what is submitted ----------------------------------------------------------------------------------


def test_ranks_on_cpus(folder, capsys):
    words = (
        "job.toml",
        "--nodes",
        2,
        "--ranks",
        4,
        "--threads",
        8,
        "--time",
        "1:00:00",
        "--set",
        "train.epochs=5",
    )
    options, script, arguments = submitted(*words)
    assert options == {
        "parsable": "",
        "job-name": "mgg-job",
        "nodes": "2",
        "ntasks": "8",
        "ntasks-per-node": "4",
        "cpus-per-task": "8",
        "time": "1:00:00",
    }
    assert (script, arguments) == ("train.sbatch", ["job.toml", "--set", "train.epochs=5"])
    assert capsys.readouterr().out == "job 7; its output will be in mgg-job-7.out\n"


def test_gpus(folder):
    words = ("job.toml", "--nodes", 2, "--gpus", 4, "--partition", "a100,h100", "--account", "p-1")
    assert mgg("submit", *words, "--dry-run") == 0
    assert noted("sbatch") is None
    # The script's own check of GPUs needs a node that has some.
    with pytest.raises(InputError, match="Slurm gave this job no GPUs"):
        process_submit(
            [Path("job.toml")], (), Request(nodes=2, gpus=4, partition="a100,h100", account="p-1"), False
        )
    options, script, arguments = parsed(noted("sbatch"))
    assert (script, arguments) == ("gpu.sbatch", ["job.toml"])
    assert (options["ntasks"], options["ntasks-per-node"], options["gpus-per-node"]) == ("8", "4", "4")
    assert (options["partition"], options["account"]) == ("a100,h100", "p-1")


def test_requeue(folder, monkeypatch):
    options, script, _ = submitted("job.toml", "--requeue", "--time", 60, "--save-seconds", 300)
    assert script == "requeue.sbatch"
    assert (options["signal"], options["requeue"], options["time"]) == ("B:USR1@300", "", "60")
    monkeypatch.setenv("REQUEUE", "1")
    submitted("job.toml", "--requeue", "--set", "run.resume=never")
    at = (words := noted("srun")).index("train")
    assert words[at:] == [
        *("train", "--set", "run.threads=1", "--set", "run.resume=auto"),  # the user's come after it
        *("--set", "run.resume=never", "--", "job.toml"),
    ]


def test_several_files_are_an_array(folder):
    write("second.toml")
    options, script, arguments = submitted("job.toml", "second.toml", "--at-once", 1, "--set", "train.seed=3")
    assert (script, options["array"], options["job-name"]) == ("array.sbatch", "0-1%1", "mgg-job")
    assert arguments == ["job.toml", "second.toml", "--", "--set", "train.seed=3"]
    assert noted("srun")[-4:] == ["--set", "train.seed=3", "--", "second.toml"]


def test_dry_run_prints_the_command_and_runs_nothing(folder, capsys):
    write("it's a job.toml")
    words = ("it's a job.toml", "--ranks", 2, "--set", "run.folder=my runs")
    assert mgg("submit", *words, "--dry-run") == 0
    line = capsys.readouterr().out
    assert (noted("sbatch"), line.count("\n")) == (None, 1)
    _, _, arguments = submitted(*words)
    assert arguments == ["it's a job.toml", "--set", "run.folder=my runs"]
    expected = noted("srun")
    environment = {name: value for name, value in os.environ.items() if name != "MGG_SLURM"}
    subprocess.run(["bash", "-c", line], check=True, capture_output=True, env=environment)
    assert noted("srun") == expected
    shown = shlex.split(line)
    assert shown[:4] == [".", str(SCRIPTS / "site.env.sh"), "&&", "sbatch"]


def test_the_sites_file_is_read(folder, tmp_path, monkeypatch):
    site = shutil.copytree(SCRIPTS, tmp_path / "site of ours")
    with (site / "site.env.sh").open("a") as file:
        file.write('export SBATCH_PARTITION=cpu\necho loading modules\nexport PATH="$PATH:/ours"\n')
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text('#!/bin/bash\nenv >"$NOTES/environment"\necho "8;cluster"\n')
    monkeypatch.setenv("MGG_SLURM", str(site))
    assert mgg("submit", "job.toml") == 0
    lines = Path(os.environ["NOTES"], "environment").read_text().splitlines()
    assert {"SBATCH_PARTITION=cpu", f"MGG_SLURM={site}"} <= set(lines)


# ---- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("1:30", 1.5),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("1-12:30", 2190),
        ("0-0:1:0", 1),
        ("0:60", 1),
    ],
)
def test_times_are_slurms(text, minutes):
    assert _minutes(text) == minutes


@pytest.mark.parametrize(
    "text", ["", "0", "0:59", "1h", "-5", "1:2:3:4", "1-", "1.5", " 5", "٣٠", "5\n", "UNLIMITED"]
)
def test_other_times_are_refused(text):
    with pytest.raises(InputError, match=r"--time '.*': write at least a minute as hours:minutes:seconds"):
        _minutes(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "soon"], "--time 'soon': write at least a minute as"),
        (["--time", "6", "--requeue"], "ask for 7 minutes or more"),
        (["--name", "a b"], "--name 'a b': use up to 64 letters"),
        (["--name", "a" * 65], "use up to 64 letters"),
        (["--partition", "a;b"], "--partition 'a;b': use letters"),
        (["--account", "--x"], "--account '--x': use letters"),
        (["--gpus", 2, "--ranks", 4], "--ranks: a rank drives one GPU"),
        (["--nodes", 0], "Invalid value for '--nodes'"),
        (["--at-once", 2], "--at-once is for several job files"),
        (["--set", "train.epoch=5"], "job.toml: unknown key train.epoch; did you mean train.epochs?"),
        (["--set", "graph.file=h.h5"], "h.h5: no such file"),
        (["--gpus", 2, "--set", "run.backend=shm"], 'run.backend = "shm" is for CPUs'),
        (["--set", "run.backend=cuda"], "ask for them: --gpus 1"),
        (["--nodes", 2, "--set", "run.backend=shm"], 'run.backend = "shm" is for one node'),
        (["--ranks", 2, "--set", "run.backend=serial"], 'run.backend = "serial" is for one rank'),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_submitted(folder, capsys, options, message):
    assert message in refused(capsys, "job.toml", *options)


def test_a_job_file_that_is_missing_is_named(folder, capsys):
    assert "absent.toml: no such job file" in refused(capsys, "job.toml", "absent.toml")


def test_a_run_that_has_finished_is_named(folder, capsys):
    run = folder / "runs" / "job" / "001"
    run.mkdir(parents=True)
    (folder / "runs" / "job" / "latest").symlink_to("001")
    write(run / "job.toml", train={"epochs": 50})
    submitted("job.toml", "--requeue", "--set", "train.epochs=50")  # it has not finished
    (run / "summary.json").touch()
    assert "has finished, and this job would go on with it" in refused(
        capsys, "job.toml", "--requeue", "--set", "train.epochs=50"
    )
    submitted("job.toml", "--requeue", "--set", "train.epochs=51")
    submitted("job.toml", "--set", "train.epochs=50")  # it begins a run of its own


def test_jobs_that_would_go_on_with_each_others_runs_are_refused(folder, capsys):
    write("second.toml")
    both = ("job.toml", "second.toml", "--set", "run.folder=runs")
    assert "second.toml: run.folder is runs, as that of job.toml" in refused(capsys, *both, "--requeue")
    submitted("job.toml", "second.toml", "--requeue")
    submitted(*both)


def test_without_slurm_one_line_says_so(folder, capsys, monkeypatch, tmp_path):
    programs = tmp_path / "few"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "basename"):
        (programs / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(programs))
    assert refused(capsys, "job.toml").startswith(
        "no sbatch on PATH: submit where Slurm is, or train on this machine"
    )
    assert mgg("submit", "job.toml", "--dry-run") == 0


def test_what_sbatch_says_is_passed_on(folder, capsys):
    sbatch = Path(os.environ["NOTES"]).parent / "bin" / "sbatch"
    sbatch.write_text("#!/bin/bash\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    assert refused(capsys, "job.toml") == "sbatch refused the job: sbatch: error: invalid partition"


def test_missing_scripts_and_a_broken_site_are_named(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MGG_SLURM", str(tmp_path))
    assert f"{tmp_path}: holds no scripts for Slurm (common.sh); set MGG_SLURM" in refused(capsys, "job.toml")
    site = shutil.copytree(SCRIPTS, tmp_path / "site")
    monkeypatch.setenv("MGG_SLURM", str(site))
    monkeypatch.setenv("MGG_VENV", str(tmp_path))
    assert refused(capsys, "job.toml").startswith(f"{tmp_path}/bin/mgg is missing: run make setup there")
    (site / "site.env.sh").write_text("echo no module load >&2\nfalse\n")
    assert "site.env.sh ended with 1 (no module load)" in refused(capsys, "job.toml")


def test_the_scripts_of_the_checkout_are_found(folder, monkeypatch):
    monkeypatch.delenv("MGG_SLURM")
    assert mgg("submit", "job.toml") == 0
    assert str(SCRIPTS / "train.sbatch") in noted("sbatch")


def test_help_loads_neither_torch_nor_mpi():
    code = (
        "import sys, json; from mgg_hpc.__main__ import main; code = main(['submit', '--help'])\n"
        "print(json.dumps(sorted(sys.modules))); sys.exit(code)"
    )
    *text, names = python("-c", code).stdout.splitlines()
    assert "mgg submit job.toml --nodes 2 --gpus 4 --time 1:00:00" in "\n".join(text)
    assert not {"torch", "mpi4py", "numpy", "h5py"} & set(json.loads(names))
