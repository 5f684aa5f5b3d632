"""Adam takes the steps of torch's own optimiser, without what that one imports."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest
import torch
from jobs import blocks, python, write_job

from mgg_hpc.training.adam import Adam, Group


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


TRAIN = """
import json, sys
from mgg_hpc.__main__ import main
code = main(["train", "job.toml"])
print(json.dumps([code, [name for name in sys.modules if name in ("torch._dynamo", "sympy")]]))
"""


@pytest.mark.slow
def test_training_imports_neither_torchs_compiler_nor_its_symbols(tmp_path):
    write_job(tmp_path, blocks(), train={"epochs": 2})
    done = python("-c", TRAIN, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
