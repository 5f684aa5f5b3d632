"""slurm/gpu.sbatch on a real Slurm whose GPUs are files: a rank for each, and all GPUs of a node for every rank."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long

# In the place of `mgg`: what a rank is given.
PROGRAM = """\
#!/bin/bash
echo "rank $SLURM_PROCID of $MGG_RANKS on $SLURMD_NODENAME sees $CUDA_VISIBLE_DEVICES: $*"
"""


@pytest.fixture
def shown(user, tmp_path):
    """Run gpu.sbatch with ranks that only print what they are given; returns (facts of the job, its lines)."""
    program = tmp_path / "venv" / "bin" / "mgg"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tmp_path / "job.toml").touch()

    def shown(*options):
        facts, output = user.run("gpu.sbatch", "job.toml", options=options, MGG_VENV=str(tmp_path / "venv"))
        return facts, sorted(output.splitlines())

    return shown


def test_every_rank_sees_all_gpus_of_its_node(shown):
    facts, lines = shown("--nodes=2", "--gpus-per-node=2", "--ntasks-per-node=2")
    words = "train --set run.threads=1 -- job.toml"
    nodes = ["node1", "node1", "node2", "node2"]
    assert lines == [f"rank {rank} of 4 on {node} sees 0,1: {words}" for rank, node in enumerate(nodes)]
    assert facts["JobState"] == "COMPLETED"


def test_binding_of_gpus_to_tasks_is_undone(shown):
    _, lines = shown("--ntasks-per-node=2", "--gpus-per-task=1", "--gpus-per-node=2")
    assert [line.partition(":")[0] for line in lines] == [f"rank {r} of 2 on node1 sees 0,1" for r in (0, 1)]


def test_ranks_that_are_not_as_many_as_gpus_are_refused(shown):
    facts, lines = shown("--gpus-per-node=2", "--ntasks-per-node=1")
    assert facts["ExitCode"] == "2:0"
    assert lines == [
        "mgg: error: 1 tasks for 1 nodes of 2 GPUs; a rank drives one GPU: sbatch --ntasks-per-node=2 "
        "(mgg submit --gpus 2)"
    ]


def test_a_job_trains(user, job, tmp_path):
    """On CPUs, since these GPUs are none."""
    facts, output = user.run("gpu.sbatch", job, options=["--gpus-per-node=2", "--ntasks-per-node=2"])
    assert facts["JobState"] == "COMPLETED", output
    assert json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())["ranks"] == 2
