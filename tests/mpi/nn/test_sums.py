"""Sums over all ranks through a process group of torch, as NCCL's is; by gloo, which needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mgg_hpc.runtime.backends.cuda.collectives import NcclSums

pytestmark = pytest.mark.mpi


def test_a_process_group_sums_over_all_ranks(comm, rng):
    """Twice, and again in a group that is made after the first has ended."""
    values = rng.standard_normal((3, comm.size, 1001)).astype(np.float32)
    for turn in range(2):
        sums = NcclSums(comm, "gloo")
        for part in values[turn : turn + 2]:
            mine = torch.from_numpy(part[comm.rank].copy())
            sums.add_up(mine)
            np.testing.assert_allclose(mine, part.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
            every = comm.allgather(mine.numpy().tobytes())
            assert len(set(every)) == 1
        sums.close()
