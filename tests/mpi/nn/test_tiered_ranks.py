"""Tensors in tiers on several ranks: rows of the host tier are shared by a node, and errors are those of all ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mgg_hpc as mgg
from mgg_hpc.errors import InputError

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("scored", [False, True])
def test_ranks_read_the_same_rows_of_a_shared_tier(comm, rng, folder, scored):
    path, rows, dim = folder / "x.npy", 500, int(rng.integers(1, 40))
    x, score = rng.random((rows, dim)), rng.permutation(rows)
    if comm.rank == 0:
        np.save(path, x)
    comm.Barrier()
    how = {"near": 40 * dim * 8, "host": 200 * dim * 8, "score": score if scored else None}
    with mgg.TieredTensor.from_numpy(np.load(path, mmap_mode="r"), comm=comm, **how) as tensor:
        ids = np.random.default_rng(comm.rank).integers(0, rows, 3000)
        assert torch.equal(tensor[ids], torch.from_numpy(x[ids]))
        best = np.argsort(-score)[:240] if scored else np.arange(240)
        before = tensor.stats()
        tensor[best]
        read = {name: each["rows"] - before[name]["rows"] for name, each in tensor.stats().items()}
        assert read == {"near": 40, "host": 200, "file": 0}
        comm.Barrier()
    with pytest.raises(InputError, match="a finite number for each"):
        wrong = score[1:] if comm.rank == comm.size - 1 else score
        mgg.TieredTensor.from_numpy(x, comm=comm, near=100, score=wrong)
    score = np.arange(rows) * (1 if comm.rank else -1)
    with pytest.raises(InputError, match="differ between ranks"):
        mgg.TieredTensor.from_numpy(x, comm=comm, host=1000, score=score)
    with pytest.raises(InputError):
        mgg.TieredTensor.open(path if comm.rank else folder / "none.h5", comm=comm)
