"""A signal that came to any rank, and only that, ends a job before it trains."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mgg_hpc.errors import StoppedBySignal
from mgg_hpc.runtime import mpi, signals


@pytest.mark.parametrize(
    ("mine", "others", "who"),
    [
        ([], 0, None),
        ([], 1, "a signal"),
        *(([signal.SIGUSR1], others, "SIGUSR1") for others in (0, 1)),
        ([], None, None),  # alone
        ([signal.SIGTERM], None, "SIGTERM"),
    ],
)
def test_all_ranks_stop_where_one_was_sent_a_signal(monkeypatch, mine, others, who):
    comm = MPI.COMM_SELF
    monkeypatch.setattr(signals, "_first", mine)
    if others is not None:
        comm = SimpleNamespace()
        monkeypatch.setattr(mpi, "_reduced", lambda comm, bits, operation: bits | others)
    if who is None:
        signals.check(comm, "nothing is saved")
        return
    with pytest.raises(StoppedBySignal, match=f"^stopped by {who} before training began; nothing is saved$"):
        signals.check(comm, "nothing is saved")
