"""Several processes of an MPI job on one GPU: the table of cases over NVSHMEM, and whole trainings (ranks/)."""

from __future__ import annotations

import re

import pytest

from .conftest import RANKS

pytestmark = pytest.mark.gpu

FIGURE = re.compile(r"^figure (.+): (\S+)$", re.MULTILINE)  # as tests of ranks print them


@pytest.mark.gpu(160)
@pytest.mark.parametrize(
    ("ranks", "how"), [(1, ""), (2, ""), (4, ""), (2, "unreached"), (4, "unreached"), (2, "mps"), (4, "mps")]
)
def test_processes(on_device, device, ranks, how):
    """By pointers, or NVSHMEM's gets and puts (unreached); by a daemon, so that kernels run side by side (mps)."""
    if how == "mps" and device == "shim":
        pytest.skip("the shim needs no daemon")
    on_device(RANKS / "test_processes.py", ranks=ranks, how=how)


@pytest.mark.gpu(240)
@pytest.mark.parametrize(("ranks", "how"), [(1, ""), (2, ""), (2, "mps")])
def test_training(on_device, device, record_property, ranks, how):
    if how == "mps" and device == "shim":
        pytest.skip("the shim needs no daemon")
    for name, value in FIGURE.findall(on_device(RANKS / "test_training.py", ranks=ranks, how=how)):
        record_property(name, value)
