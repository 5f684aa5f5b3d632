"""Jobs that are cancelled, requeued, or lose their node, on a real Slurm: nothing that was finished is lost."""

from __future__ import annotations

import time
from pathlib import Path

import jobs
import programs
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


def assert_whole(user, epochs):
    """Check that the run has the bits of one that was never stopped."""
    user.folder.joinpath("runs").rename(user.folder / "resumed")
    alone = Launched(user.folder, "launch", "-n", 2, "train", "job.toml", "--no-progress")
    assert alone.wait() == 0, alone.said()
    assert_same_runs(user.folder / "runs" / "001", user.folder / "resumed" / "001", epochs)


def wait_for(user, number, seconds, condition):
    """Wait until what scontrol says of a job meets a condition."""

    def met():
        time.sleep(0.1)
        return condition(user.cluster.facts(number))

    programs.wait_until(
        met, seconds, lambda: f"{user.cluster.facts(number)}\n{user.output(number)}\n{user.cluster.logs()}"
    )


def wait_for_restart(user, number, seconds):
    """Wait until Slurm has started a job again."""
    wait_for(
        user,
        number,
        seconds,
        lambda facts: facts.get("Restarts") == "1" and facts.get("JobState") not in ("PENDING", "REQUEUED"),
    )


def shared_memory(cluster):
    """Return what lies in the shared memory of the nodes."""
    folders = [Path(f"/proc/{slurmd.pid}/root/dev/shm") for slurmd in cluster.nodes.values()]
    return [path for folder in folders for path in folder.iterdir()]


@pytest.mark.long
def test_a_cancelled_job_saves_and_is_not_requeued(user, write_job):
    scratch = user.folder / "scratch"
    scratch.mkdir()
    number = user.sbatch("requeue.sbatch", write_job(FOREVER), MGG_SCRATCH=str(scratch))
    user.wait_for_epochs(number, 3)
    user.cluster.user("scancel", str(number))
    facts = user.cluster.result(number)
    output, run = user.output(number), user.folder / "runs" / "001"
    assert facts["JobState"] == "CANCELLED", output
    assert "which is saved" in output
    assert saved(run) == len(metrics(run))
    time.sleep(1)
    facts = user.cluster.facts(number)
    assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
    assert shared_memory(user.cluster) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_a_requeued_job_goes_on_with_the_same_bits(user, write_job, shmem):
    """SIGUSR1 comes to the script as it does before the time limit."""
    options = ["--nodes=2", "--ntasks=2"]
    number = user.sbatch("requeue.sbatch", write_job(EPOCHS), options=options, **shmem)
    user.wait_for_epochs(number, 5)
    user.cluster.user("scancel", "--batch", "--signal=USR1", str(number))
    wait_for_restart(user, number, 60)
    facts, output = user.cluster.result(number), user.output(number)
    assert (facts["JobState"], facts["NumNodes"]) == ("COMPLETED", "2"), output
    assert "mgg: saved before the time limit; back into the queue" in output
    assert "going on after epoch" in output
    assert_whole(user, EPOCHS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (
            "train.sbatch",
            ["--batch", "--signal=USR1"],
            "mgg: saved before the time limit; sbatch --requeue would",
        ),
        ("requeue.sbatch", ["--signal=TERM"], "mgg: stopped by SIGTERM after epoch"),
    ],
    ids=["USR1", "TERM"],
)
def test_a_job_that_is_not_requeued_saves_and_ends_with_3(user, write_job, script, options, said):
    number = user.sbatch(script, write_job(FOREVER))
    user.wait_for_epochs(number, 1)
    user.cluster.user("scancel", *options, str(number))
    facts, output = user.cluster.result(number), user.output(number)
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "3:0", "0"), output
    assert said in output
    run = user.folder / "runs" / "001"
    assert saved(run) == len(metrics(run))


@pytest.mark.torture
@pytest.mark.trials(1, torture=1)
def test_the_time_limit(user, write_job):
    """A job that may be requeued goes on; one that may not ends, and has saved too."""
    began = time.monotonic()
    options = ["--time=1", "--signal=B:USR1@30", "--nodelist=node1"]
    number = user.sbatch("requeue.sbatch", write_job(FOREVER), options=options)
    options = ["--time=1", "--nodelist=node2"]
    other = user.sbatch("train.sbatch", "job.toml", "--set", "run.folder=others", options=options)
    wait_for_restart(user, number, 150)
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


@pytest.fixture
def impatient(cluster):
    """Slurm notices a lost node within seconds; the nodes are there again afterwards."""
    cluster.configure("SlurmdTimeout=300", "SlurmdTimeout=10")
    yield
    cluster.configure("SlurmdTimeout=10", "SlurmdTimeout=300")
    for node in {"node1", "node2"} - set(cluster.nodes):
        cluster.start_node(node)
    cluster.wait_for_nodes()


@pytest.mark.torture
@pytest.mark.trials(1, torture=1)
def test_a_job_that_loses_its_node_goes_on_elsewhere(user, write_job, impatient):
    """One that may not be requeued ends."""
    began = time.monotonic()
    number = user.sbatch("requeue.sbatch", write_job(EPOCHS))
    words = ["--set", "run.folder=others", "--set", f"train.epochs={FOREVER}"]
    other = user.sbatch("train.sbatch", "job.toml", *words, options=["--nodelist=node1"])
    user.wait_for_epochs(number, 25)
    assert user.cluster.facts(number)["NodeList"] == "node1"
    user.cluster.lose_node("node1")
    facts, output = user.cluster.result(number, 120), user.output(number)
    assert (facts["JobState"], facts["Restarts"], facts["NodeList"]) == ("COMPLETED", "1", "node2"), output
    assert "going on after epoch" in output
    assert user.cluster.facts(other)["JobState"] == "NODE_FAIL"
    assert_whole(user, EPOCHS)
    record("Slurm loses a node, one job on it goes on", 1, 0, seconds=time.monotonic() - began)


@pytest.mark.torture
@pytest.mark.trials(1, torture=1)
def test_a_job_that_loses_one_of_its_nodes_goes_on_when_it_is_back(user, write_job, impatient, shmem):
    began = time.monotonic()
    options = ["--nodes=2", "--ntasks=2"]
    number = user.sbatch("requeue.sbatch", write_job(EPOCHS), options=options, **shmem)
    user.wait_for_epochs(number, 25)
    user.cluster.lose_node("node2")
    wait_for(user, number, 120, lambda facts: facts.get("Restarts") == "1")
    user.cluster.start_node("node2")
    facts, output = user.cluster.result(number), user.output(number)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), output
    assert "going on after epoch" in output
    assert_whole(user, EPOCHS)
    record("Slurm loses one of two nodes", 1, 0, seconds=time.monotonic() - began)
