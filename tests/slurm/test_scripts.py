"""The scripts of slurm/, and `mgg submit`, on a real Slurm: jobs train, others say in one line what is wrong."""

from __future__ import annotations

import json
import re

import jobs
import pytest

pytestmark = pytest.mark.long

# In the place of `mgg`: says what a rank is given, and notes its arguments beside the job file.
PROGRAM = """\
#!/bin/bash
printf '%s\\0' "$@" >"noted.$SLURM_ARRAY_TASK_ID"
echo "rank $SLURM_PROCID of $MGG_RANKS on $SLURMD_NODENAME sees $CUDA_VISIBLE_DEVICES: $*"
"""
GPUS = ("--gpus-per-node=2", "--ntasks-per-node=2")  # files, so that jobs train on CPUs
TWO_NODES = ("--nodes=2", "--ntasks=2")


@pytest.fixture
def stand_in(tmp_path):
    """The variable with which PROGRAM runs in the place of `mgg`."""
    program = tmp_path / "venv" / "bin" / "mgg"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return {"MGG_VENV": str(tmp_path / "venv")}


def summary_in(folder):
    return json.loads((folder / "latest" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("script", "words", "options", "mpi", "wanted", "facts"),
    [
        ("train", (), (), None, {"ranks": 2, "epochs": 3}, {"NumNodes": "1", "Requeue": "0"}),
        ("train", ("--set", "train.epochs=2"), ("--ntasks=3",), None, {"ranks": 3, "epochs": 2}, {}),
        ("train", (), (), "open_mpi", {"ranks": 2}, {}),
        ("train", (), TWO_NODES, "shmem", {"ranks": 2, "backend": "shmem"}, {"NumNodes": "2"}),
        ("gpu", (), GPUS, None, {"ranks": 2}, {}),
    ],
    ids=["default", "options", "Open MPI", "two nodes", "gpu"],
)
def test_a_job_trains(request, user, job, script, words, options, mpi, wanted, facts):
    variables = request.getfixturevalue(mpi) if mpi else {}
    found, output = user.run(f"{script}.sbatch", job, *words, options=options, **variables)
    assert found["JobState"] == "COMPLETED", output
    assert found.items() >= facts.items()
    assert summary_in(user.folder / "runs").items() >= wanted.items()


def test_two_ranks_tune(user, job):
    cache = user.folder / "cache"
    facts, output = user.run("tune.sbatch", job, "--transfers", "halo", XDG_CACHE_HOME=str(cache))
    assert facts["JobState"] == "COMPLETED", output
    assert 'transfer = "halo"' in output and "1 forward" in output
    assert list((cache / "mgg-hpc" / "tuned").glob("*.json"))
    assert not (user.folder / "runs").exists()


REFUSED = {  # script, words, options, variables, message, and whether ranks are started
    "key": ("train", ["job.toml", "--set", "train.epoch=2"], [], {}, "unknown key train.epoch", True),
    "missing": ("train", ["absent.toml"], [], {}, "absent.toml: no such job file in", False),
    "no file": ("train", [], [], {}, "no job file: sbatch", False),
    "no mgg": ("train", ["job.toml"], [], {"MGG_VENV": "/tmp"}, "/tmp has no mgg: run make setup", False),
    "no scripts": ("train", ["job.toml"], [], {"MGG_SLURM": "/no"}, "read slurm/site.env.sh first", False),
    # srun without a plugin that the MPI knows starts two worlds of one rank each.
    "plugin": (
        "train",
        ["job.toml"],
        [],
        {"MGG_SRUN_MPI": "none"},
        "2 ranks (MGG_RANKS), but MPI has 1",
        True,
    ),
    "no array": ("array", ["job.toml"], [], {}, "not an array: sbatch --array=0-0", False),
    "GPUs": (
        "gpu",
        ["job.toml"],
        ["--gpus-per-node=2", "--ntasks=1"],
        {},
        "sbatch --ntasks-per-node=2",
        False,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_fails_with_one_line(user, job, case):
    script, words, options, variables, message, started = REFUSED[case]
    facts, output = user.run(f"{script}.sbatch", *words, options=options, **variables)
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "2:0"), output
    (line,) = [line for line in output.splitlines() if line.startswith("mgg: error: ")]
    assert message in line
    assert ("srun: error" in output) == started
    assert not (user.folder / "runs").exists()


def test_each_index_of_an_array_trains_its_job_file(user, job):
    names = ["first.toml", "the second one.toml"]
    for epochs, name in enumerate(names, 2):
        text = f'graph.file = "g.h5"\nrun.folder = "runs of {name}"\ntrain.epochs = {epochs}\n'
        (user.folder / name).write_text(text)
    number = user.sbatch("array.sbatch", *names, "--", "--set", "train.seed=5", options=["--array=0-2"])
    states = [user.cluster.result(f"{number}_{index}")["JobState"] for index in range(3)]
    output = "\n".join(path.read_text() for path in user.folder.glob("out.*"))
    assert states == ["COMPLETED", "COMPLETED", "FAILED"], output
    assert "mgg: error: no job file for index 2: there are 2, so sbatch --array=0-1" in output
    for epochs, name in enumerate(names, 2):
        summary = summary_in(user.folder / f"runs of {name}")
        assert (summary["epochs"], summary["ranks"], summary["seed"]) == (epochs, 2, 5)


@pytest.mark.parametrize(
    "options", [("--nodes=2", *GPUS), (*GPUS, "--gpus-per-task=1")], ids=["2 nodes", "bound"]
)
def test_every_rank_sees_all_gpus_of_its_node(user, job, stand_in, options):
    """A binding of GPUs to tasks is undone."""
    facts, output = user.run("gpu.sbatch", job, options=options, **stand_in)
    nodes = ["node1", "node1", "node2", "node2"][: 2 * int(facts["NumNodes"])]
    assert sorted(output.splitlines()) == [
        f"rank {rank} of {len(nodes)} on {node} sees 0,1: train --set run.threads=1 -- job.toml"
        for rank, node in enumerate(nodes)
    ]
    assert facts["JobState"] == "COMPLETED"


# ---- mgg submit -----------------------------------------------------------------------------------------

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
    environment = user.environment | variables
    done = user.cluster.user(jobs.MGG, "submit", *arguments, folder=user.folder, **environment)
    assert done.returncode == 0, done.stderr
    return re.match(r"job (\d+); its output will be in \S+\n", done.stdout)[1]


def test_a_submitted_job_trains(user, job):
    number = submit(user, job, "--ranks", "2", "--time", "10", "--requeue", "--set", "train.epochs=2")
    facts = user.cluster.result(number)
    assert facts["JobState"] == "COMPLETED", (user.folder / f"mgg-job-{number}.out").read_text()
    assert (facts["JobName"], facts["TimeLimit"], facts["Requeue"]) == ("mgg-job", "00:10:00", "1")
    assert summary_in(user.folder / "runs").items() >= {"ranks": 2, "epochs": 2}.items()


def test_hostile_names_of_job_files_reach_mgg_unchanged(user, stand_in):
    (user.folder / "g.h5").touch()
    for name in NAMES:
        (user.folder / name).write_text('graph.file = "g.h5"\nrun.folder = "$(touch executed)"\n')
    before = {path.name for path in user.folder.iterdir()}
    value = "run.folder=`touch executed`; $(touch executed)"
    number = submit(user, "--set", value, "--", *NAMES, **stand_in)
    for index, name in enumerate(NAMES):
        assert user.cluster.result(f"{number}_{index}")["JobState"] == "COMPLETED"
        words = (user.folder / f"noted.{index}").read_text().split("\0")[:-1]
        job = f"./{name}" if name.startswith("-") else name
        assert words == ["train", "--set", "run.threads=1", "--set", value, "--", job]
    made = {path.name for path in user.folder.iterdir()} - before
    outputs = {f"mgg-touch_executed-{number}_{index}.out" for index in range(len(NAMES))}
    assert made == outputs | {f"noted.{index}" for index in range(len(NAMES))}
