"""Tensors in tiers on several ranks: rows of the host tier are shared by a node, and errors are those of all ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mgg_hpc as mgg
from mgg_hpc.errors import InputError

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f2", "i8"])
def test_ranks_read_the_same_rows_of_their_tiers(comm, rng, folder, scored, kind):
    """Rows near, dealt to all ranks, shared by a node, and of the file."""
    path, rows, dim = folder / "x.npy", 500, int(rng.integers(1, 40))
    x, score = (rng.random((rows, dim)) * 99).astype(kind), rng.permutation(rows)
    if comm.rank == 0:
        np.save(path, x)
    comm.Barrier()
    row = -(-x[0].nbytes // 16) * 16
    sizes = {"near": 40 * row, "peers": 20 * row + 1, "host": 200 * row}
    score = score if scored else None
    with mgg.TieredTensor.from_numpy(np.load(path, mmap_mode="r"), comm=comm, score=score, **sizes) as tensor:
        ids = np.random.default_rng(comm.rank).integers(0, rows, 3000)
        assert torch.equal(tensor[ids], torch.from_numpy(x[ids]))
        expected = {"near": 40, "peers": 20 * comm.size, "host": 200, "file": rows - 240 - 20 * comm.size}
        order, before = np.argsort(-score) if scored else np.arange(rows), tensor.stats()
        end = np.cumsum(list(expected.values()))
        for tier, first, last in zip(expected, end - list(expected.values()), end, strict=True):
            tensor[order[first:last]]
            read = {name: each["rows"] - before[name]["rows"] for name, each in tensor.stats().items()}
            assert read == {name: expected[name] * (name == tier) for name in expected}
            before = tensor.stats()
        comm.Barrier()


@pytest.mark.parametrize("scored", [False, True])
def test_ranks_write_the_rows_that_they_own(comm, rng, folder, scored):
    """Rows dealt to all ranks, shared by a node, and of a scratch file; no rank keeps another value of one."""
    rows, dim = 500, int(rng.integers(1, 40))
    x, score = rng.random((rows, dim)), rng.permutation(rows) if scored else None
    sizes = {"peers": 20 * (8 * dim + 8), "host": 200 * (8 * dim + 8)}
    how = {"comm": comm, "score": score, "writable": True, "folder": folder} | sizes
    with mgg.TieredTensor.from_numpy(x, **how) as tensor:
        owned = comm.allgather(tensor.owned)
        assert [each for part in owned for each in part] == list(range(rows))
        for _ in range(5):
            new, ids = rng.random((rows, dim)), rng.permutation(rows)[:300]  # the same on all ranks
            mine = ids[np.isin(ids, tensor.owned)]
            tensor.update(mine, new[mine])
            x[ids] = new[ids]
            comm.Barrier()
            assert torch.equal(tensor[:], torch.from_numpy(x))
            comm.Barrier()
        assert tensor.stats()["file"]["rows"]
        if comm.size > 1:
            other = owned[(comm.rank + 1) % comm.size][0]
            with pytest.raises(ValueError, match=f"row {other} is another rank's; rank {comm.rank} owns"):
                tensor.update([tensor.owned[0], other], x[:2])
            assert torch.equal(tensor[:], torch.from_numpy(x))
            with pytest.raises(InputError, match="near holds copies of rows on each rank"):
                mgg.TieredTensor.from_numpy(x, comm=comm, near=1000, writable=True)
        comm.Barrier()


def test_near_is_divided_by_reads_and_measured_costs(comm, rng):
    x, reads = rng.random((2000, 8)), rng.random(2000) ** 9
    with mgg.TieredTensor.from_numpy(x, comm=comm, near="40K", peers="auto", score=reads) as tensor:
        held = {each.name: each.slots for each in tensor._table.tiers}
        near, peers = held.get("near", 0), held.get("peers", 0)
        assert near + -(-peers // comm.size) <= 640 and near + peers > 600
        assert torch.equal(tensor[np.arange(2000)], torch.from_numpy(x))
        assert comm.allgather(held) == [held] * comm.size
        comm.Barrier()


def test_what_differs_between_ranks_is_refused(comm, rng, folder):
    path, rows, x, score = folder / "x.npy", 500, rng.random((500, 3)), rng.permutation(500)
    with pytest.raises(InputError, match="a finite number for each"):
        wrong = score[1:] if comm.rank == comm.size - 1 else score
        mgg.TieredTensor.from_numpy(x, comm=comm, near=100, score=wrong)
    score = np.arange(rows) * (1 if comm.rank else -1)
    with pytest.raises(InputError, match="differ between ranks"):
        mgg.TieredTensor.from_numpy(x, comm=comm, host=1000, score=score)
    with pytest.raises(InputError):
        mgg.TieredTensor.open(path if comm.rank else folder / "none.h5", comm=comm)


def test_an_error_of_one_rank_leaves_without_the_others(comm, folder):
    path = folder / "x"
    if comm.rank == 0:
        np.ones((100, 4)).tofile(path)
    comm.Barrier()
    mapped = np.memmap(path, "f8", "r", shape=(100, 4))
    tensor = mgg.TieredTensor.from_numpy(mapped, comm=comm, host=320)
    if comm.rank == 0:
        tensor._file._state = (0, 0)
        with pytest.raises(InputError, match="has changed since it was opened"), tensor:
            tensor[[50]]
    assert tensor._closed == (comm.rank == 0 and comm.size == 1)  # closing would wait for the others
    tensor.close()
