"""Steps of training: Adam's are those of torch's optimiser, and recorded ones are replayed and counted."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.base import Meter
from mgg_hpc.training.adam import Adam, Group
from mgg_hpc.training.cuda_graph import EAGER_STEPS, Replayed

ALONE = SimpleNamespace(allgather=lambda mine: [mine])


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
    replayed = Replayed(steps.launch, steps, ALONE, records=True)
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


class Failing(Steps):
    """Launches that cannot be recorded."""

    def record(self, launch):
        launch()
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


@pytest.mark.parametrize(
    ("kind", "others", "records", "launched", "failure"),
    [  # in as many epochs as are launched first, and two more
        (Steps, [False], True, EAGER_STEPS + 3, "another rank cannot record"),
        (Failing, [], True, EAGER_STEPS + 3, "operation not permitted when stream is capturing"),
        (Steps, [], False, EAGER_STEPS + 2, ""),
    ],
    ids=["not all ranks", "fails", "nothing can be"],
)
def test_what_cannot_be_recorded_by_all_ranks_is_launched_each_time(kind, others, records, launched, failure):
    steps, comm = kind(), SimpleNamespace(allgather=lambda mine: [mine, *others])
    replayed = Replayed(steps.launch, steps, comm, records=records)
    for _ in range(EAGER_STEPS + 2):
        replayed()
        assert steps.meter.taken().remote_bytes == 10
    assert (steps.launched, steps.held, steps.replayed) == (launched, 0, 0)
    assert (replayed.recorded, replayed.failure) == (False, failure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_steps_are_those_of_torchs_optimiser(rng, dtype):
    shapes, decays, rate = [[(3, 4), (4,)], [(5, 2)]], [0.1, 0.0], float(rng.uniform(0.01, 0.5))
    starts = [[torch.from_numpy(rng.standard_normal(shape)).to(dtype) for shape in of] for of in shapes]
    ours, theirs = ([[one.clone().requires_grad_() for one in of] for of in starts] for _ in range(2))
    adam = Adam([Group(of, decay) for of, decay in zip(ours, decays, strict=True)], rate, capturable=False)
    groups = [{"params": of, "weight_decay": decay} for of, decay in zip(theirs, decays, strict=True)]
    wanted = torch.optim.Adam(groups, lr=rate)
    for _ in range(7):
        for a, b in zip(chain(*ours), chain(*theirs), strict=True):
            a.grad = torch.from_numpy(rng.standard_normal(a.shape)).to(dtype)
            b.grad = a.grad.clone()
        adam.step()
        wanted.step()
        assert all(torch.equal(a, b) for a, b in zip(chain(*ours), chain(*theirs), strict=True))
    assert not np.array_equal(ours[0][0].detach(), starts[0][0])
