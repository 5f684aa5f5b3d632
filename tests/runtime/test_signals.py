"""A signal that came to any rank, and only that, ends a job before it trains."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mgg_hpc.errors import StoppedBySignal
from mgg_hpc.runtime import mpi, signals


@pytest.mark.parametrize("mine", [[], [signal.SIGUSR1]])
@pytest.mark.parametrize("others", [0, 1])
def test_all_ranks_stop_where_one_was_sent_a_signal(monkeypatch, mine, others):
    monkeypatch.setattr(signals, "_first", mine)
    monkeypatch.setattr(mpi, "_reduced", lambda comm, bits, operation: bits | others)
    if not (mine or others):
        signals.check(SimpleNamespace(), "nothing is saved")
        return
    who = "SIGUSR1" if mine else "a signal"
    with pytest.raises(StoppedBySignal, match=f"^stopped by {who} before training began; nothing is saved$"):
        signals.check(SimpleNamespace(), "nothing is saved")


def test_one_rank_hears_itself_alone(monkeypatch):
    monkeypatch.setattr(signals, "_first", [])
    signals.check(MPI.COMM_SELF, "")
    monkeypatch.setattr(signals, "_first", [signal.SIGTERM])
    with pytest.raises(StoppedBySignal, match="stopped by SIGTERM"):
        signals.check(MPI.COMM_SELF, "")
