"""Whether features stay in the host's memory because a GPU cannot hold them."""

from __future__ import annotations

from types import SimpleNamespace

import jobs
import pytest

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.errors import InputError
from mgg_hpc.nn.graph.loading import load_part
from mgg_hpc.runtime import cores, mpi
from mgg_hpc.training import job as of_job
from mgg_hpc.training.start import features


@pytest.fixture
def decide(tmp_path):
    """What is decided for 150 rows of 1,000 features with so much memory left."""
    writer.write(tmp_path / "g.h5", jobs.blocks(features=1000))
    mpi.world()
    from mpi4py import MPI

    def decide(free: int | None, dropout: float = 0.5, **run: str) -> bool:
        tree = {"graph": {"file": str(tmp_path / "g.h5")}, "model": {"dropout": dropout}, "run": run}
        settings = config.from_tree(tree, "test")
        part = load_part(tmp_path / "g.h5", MPI.COMM_SELF)
        model = of_job._model(settings, part, of_job.torch.float32, 0)
        backend = SimpleNamespace(memory=SimpleNamespace(free=lambda: free))
        return features.stay_on_host(settings, MPI.COMM_SELF, part, backend, model, PLANS)

    return decide


X = 150 * 4000  # bytes
PLANS = 777
# Six times both layers' outputs (16 and 4 columns of float32), and two buffers of the widest rows in evaluation.
BESIDE = PLANS + 150 * (6 * (64 + 16) + 2 * 64)


@pytest.mark.parametrize(
    ("free", "dropout", "stays"),
    [
        (2 * X + BESIDE, 0.5, False),
        (2 * X + BESIDE - 1, 0.5, True),
        (X + BESIDE, 0.0, False),
        (X + BESIDE - 1, 0.0, True),
        (None, 0.5, False),  # CPUs
    ],
)
def test_what_does_not_fit_stays(decide, free, dropout, stays):
    assert decide(free, dropout) is stays


def test_who_asks_decides(decide):
    assert decide(1 << 40, features="host") is True
    assert decide(1, features="device") is False
    assert decide(None, features="host") is False


def test_what_the_node_cannot_hold_either_is_refused(decide, monkeypatch):
    monkeypatch.setattr(cores, "memory_available", lambda: X - 1)
    with pytest.raises(InputError, match=r"g\.h5: 0\.0 GiB of features do not fit on this node's GPUs, and"):
        decide(1)
