"""Jobs that are cancelled, requeued, or lose their node, on a real Slurm: nothing that was finished is lost."""

from __future__ import annotations

import time
from pathlib import Path

import jobs
import pytest
from torture.launched import Launched, assert_same_runs, metrics, saved
from torture.report import record

EPOCHS = 150
FOREVER = 100_000  # epochs; ended by the test


@pytest.fixture
def write_job(tmp_path):
    """Write a graph and a job file that two ranks train on for so many epochs; returns the file's name."""

    def write_job(epochs):
        jobs.write_job(
            tmp_path,
            jobs.blocks(3000, features=16),
            model={"hidden": 16, "dropout": 0.4},
            train={"epochs": epochs, "seed": 7},
            plan={"transfer": "halo", "ps": 256, "wpb": 16},  # "auto" measures, and may choose others
            run={"folder": "runs", "threads": 1},
            checkpoint={"every_epochs": 10},
        )
        return "job.toml"

    return write_job


@pytest.fixture
def impatient(cluster):
    """Slurm notices a lost node within seconds; the nodes are there again afterwards."""
    cluster.configure("SlurmdTimeout=300", "SlurmdTimeout=10")
    yield
    cluster.configure("SlurmdTimeout=10", "SlurmdTimeout=300")
    for node in {"node1", "node2"} - set(cluster.nodes):
        cluster.start_node(node)
    cluster.wait_for_nodes()


def restarted(facts):
    """Whether Slurm has put a job back into the queue."""
    return facts.get("Restarts") == "1"


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "state", "said"),
    [
        ("requeue.sbatch", [], "CANCELLED", "which is saved"),
        ("requeue.sbatch", ["--signal=TERM"], "FAILED", "mgg: stopped by SIGTERM after epoch"),
        (
            "train.sbatch",
            ["--batch", "--signal=USR1"],
            "FAILED",
            "mgg: saved before the time limit; sbatch --requ",
        ),
    ],
    ids=["cancelled", "TERM", "USR1"],
)
def test_a_job_that_is_not_requeued_saves_ends_with_3_and_leaves_nothing(
    user, write_job, script, options, state, said
):
    scratch, run = user.folder / "scratch", user.folder / "runs" / "001"
    scratch.mkdir()
    number = user.sbatch(script, write_job(FOREVER), MGG_SCRATCH=str(scratch))
    user.wait_for_epochs(number, 3)
    user.cluster.user("scancel", *options, str(number))
    facts, output = user.cluster.result(number), user.output(number)
    assert facts["JobState"] == state and said in output, output
    assert state == "CANCELLED" or facts["ExitCode"] == "3:0"
    assert saved(run) == len(metrics(run))
    time.sleep(1)
    facts = user.cluster.facts(number)
    assert (facts["JobState"], facts["Restarts"]) == (state, "0")
    memory = [Path(f"/proc/{slurmd.pid}/root/dev/shm") for slurmd in user.cluster.nodes.values()]
    assert [path for folder in (scratch, *memory) for path in folder.iterdir()] == []


@pytest.mark.parametrize(
    "event",
    [
        pytest.param("a signal", marks=pytest.mark.long),  # SIGUSR1, as before the time limit
        pytest.param("its node", marks=pytest.mark.torture),
        pytest.param("one of two nodes", marks=pytest.mark.torture),
    ],
)
def test_a_job_that_is_requeued_goes_on_with_the_same_bits(request, user, write_job, event):
    """One that may not be requeued ends with its node."""
    began, alone, cluster = time.monotonic(), event == "its node", user.cluster
    options = [] if alone else ["--nodes=2", "--ntasks=2"]
    variables = {} if alone else request.getfixturevalue("shmem")
    if event != "a signal":
        request.getfixturevalue("impatient")
    number = user.sbatch("requeue.sbatch", write_job(EPOCHS), options=options, **variables)
    if alone:
        words = ["--set", "run.folder=others", "--set", f"train.epochs={FOREVER}"]
        other = user.sbatch("train.sbatch", "job.toml", *words, options=["--nodelist=node1"])
    user.wait_for_epochs(number, 5 if event == "a signal" else 25)
    if event == "a signal":
        cluster.user("scancel", "--batch", "--signal=USR1", str(number))
    else:
        assert not alone or cluster.facts(number)["NodeList"] == "node1"
        cluster.lose_node("node1" if alone else "node2")
    cluster.wait_for(number, restarted, 120)
    if event == "one of two nodes":
        cluster.start_node("node2")
    facts, output = cluster.result(number), user.output(number)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), output
    assert facts["NumNodes"] == "2" if not alone else facts["NodeList"] == "node2"
    assert "going on after epoch" in output
    assert event != "a signal" or "mgg: saved before the time limit; back into the queue" in output
    assert not alone or cluster.facts(other)["JobState"] == "NODE_FAIL"
    user.folder.joinpath("runs").rename(user.folder / "resumed")
    whole = Launched(user.folder, "launch", "-n", 2, "train", "job.toml", "--no-progress")
    assert whole.wait() == 0, whole.said()
    assert_same_runs(user.folder / "runs" / "001", user.folder / "resumed" / "001", EPOCHS)
    record(f"Slurm requeues a job after {event}", 1, 0, seconds=time.monotonic() - began)


@pytest.mark.torture
def test_the_time_limit(user, write_job):
    """A job that may be requeued goes on; one that may not ends, and has saved too."""
    began = time.monotonic()
    options = ["--time=1", "--signal=B:USR1@30", "--nodelist=node1"]
    number = user.sbatch("requeue.sbatch", write_job(FOREVER), options=options)
    options = ["--time=1", "--nodelist=node2"]
    other = user.sbatch("train.sbatch", "job.toml", "--set", "run.folder=others", options=options)
    user.cluster.wait_for(number, restarted, 150)
    user.wait_for_epochs(number, 1)
    user.cluster.user("scancel", str(number))
    assert user.cluster.result(number)["JobState"] == "CANCELLED"
    output, run = user.output(number), user.folder / "runs" / "001"
    assert output.count("going on after epoch") == 1
    assert saved(run) == len(metrics(run))
    assert user.cluster.result(other, 150)["JobState"] == "TIMEOUT"
    run = user.folder / "others" / "001"
    assert saved(run) == len(metrics(run)) > 0, user.output(other)
    record("Slurm's time limit, two jobs", 2, 0, seconds=time.monotonic() - began)
