"""What says most in the first minutes on a GPU: each kernel once or twice, ranks that meet, a recorded training."""

from __future__ import annotations

import pytest

from .conftest import RANKS
from .pes import table

pytestmark = pytest.mark.gpu


def test_the_machine(engine, record_property):
    """What all other results were found on."""
    record_property("gpu", engine.module.limits()["name"])
    record_property("limits", engine.module.limits())
    assert engine.answers()


@pytest.mark.parametrize("entry", list(table.entries(whole=False, small=True)), ids=str)
def test_each_operation(rng, engine, entry, record_property):
    record_property("worst", table.check(engine, entry, rng))


@pytest.mark.gpu(60)
def test_two_ranks_start_nvshmem(on_device):
    on_device(f"{RANKS}/test_processes.py::test_an_operation[sum-ordinary]", ranks=2)


@pytest.mark.gpu(60)
def test_a_training_is_recorded_as_a_cuda_graph(on_device):
    on_device(f"{RANKS}/test_training.py::test_losses_are_the_cpus[sbm-auto-float32-2x16-gcn]", ranks=1)
