"""Epochs that are recorded and replayed, by a recorder that calls again what was launched."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training.cuda_graph import EAGER_STEPS, Replayed


class Steps:
    """Launches that count, and what they move."""

    def __init__(self):
        self.meter, self.launched, self.replayed, self.held = Meter(), 0, 0, 0

    def launch(self):
        self.launched += 1
        self.meter.remote_bytes += 10
        self.meter.remote_rows += 2
        self.meter.local_bytes += 3
        self.meter.later.append((self, RowFormat(np.dtype(np.float32), 4), lambda: 0.5))

    def record(self, launch):
        launch()
        self.held += 1
        return SimpleNamespace(replay=self.replay, reset=self.reset)

    def reset(self):
        self.held -= 1

    def replay(self):
        self.replayed += 1


def test_what_is_recorded_is_replayed_and_counted_each_time():
    steps = Steps()
    replayed = Replayed(steps.launch, steps, steps.record)
    for number in range(EAGER_STEPS + 3):
        replayed()
        counted = steps.meter.taken()
        assert (counted.remote_bytes, counted.remote_rows, counted.local_bytes) == (10, 2, 3)
        counted.settle()
        assert counted.seconds == (0.5 if number < EAGER_STEPS else 0.0)
        assert replayed.recorded == (number >= EAGER_STEPS)
    assert steps.launched == EAGER_STEPS + 1  # once more to record
    assert steps.replayed == 3
    replayed.close()
    assert steps.held == 0 and not replayed.recorded  # or NCCL would wait for it
    replayed()
    assert steps.launched == EAGER_STEPS + 2


def test_nobody_replays_unless_all_ranks_do():
    steps, asked = Steps(), []

    def everybody(yes):
        asked.append(yes)
        return False

    replayed = Replayed(steps.launch, steps, steps.record, everybody)
    for _ in range(EAGER_STEPS + 2):
        replayed()
        assert steps.meter.taken().remote_bytes == 10
    assert asked == [True] and steps.held == steps.replayed == 0
    assert not replayed.recorded and replayed.failure == "another rank cannot record"


def test_what_cannot_be_recorded_is_launched_each_time():
    steps = Steps()

    def record(launch):
        launch()
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    replayed = Replayed(steps.launch, steps, record)
    for _ in range(EAGER_STEPS + 2):
        replayed()
        assert steps.meter.taken().remote_bytes == 10
    assert not replayed.recorded and replayed.failure == "operation not permitted when stream is capturing"
    assert steps.launched == EAGER_STEPS + 3


@pytest.mark.parametrize("calls", [1, 8])
def test_nothing_is_recorded_where_nothing_can_be(calls):
    steps = Steps()
    replayed = Replayed(steps.launch, steps, None)
    for _ in range(calls):
        replayed()
    assert (steps.launched, replayed.recorded, replayed.failure) == (calls, False, "")
