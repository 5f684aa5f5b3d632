"""The backend shmem on the ranks of one host: the hard cases, traversals, and training (`make test-long`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from exchanged import (  # noqa: F401 - tests
    GEOMETRY,
    by_transfer,
    test_one_barrier_a_layer_is_enough,
    test_rows_of_all_ranks_come_by_number,
    test_sums_over_ranks_are_within_the_error_bound,
    test_the_meter_counts_rows_that_cross,
)
from jobs import blocks, directed_weighted
from mpi.traversal.test_traversals import (  # noqa: F401 - tests, and the fixture that they take
    loaded,
    test_bytes_that_cross_are_counted,
    test_hard_cases,
    test_results_are_those_of_one_rank,
)
from mpi4py import MPI

import mgg_hpc as mgg
from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.nn.autograd.aggregation import aggregate
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.shmem import ShmemBackend
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

pytestmark = [pytest.mark.mpi, pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def heap(comm):
    """One heap for all tests of the process, since it cannot grow."""
    ShmemBackend(comm, Options(GEOMETRY)).memory.reserve(16 << 20)


@pytest.fixture
def backend(comm):
    made = ShmemBackend(comm, Options(GEOMETRY, threads=2))
    yield made
    made.memory.close()


def test_rows_start_as_zeros_and_memory_is_used_again(comm, backend):
    format = RowFormat(np.dtype(np.float32), 8)
    counts = np.full(comm.size, 50_000)
    for _ in range(20):  # 32 MB in all, of a heap of 16
        rows = backend.rows(counts, format, symmetric=True)
        with mpi.agree(comm):
            assert not rows.buffer.any()
        assert int(rows.addresses[comm.rank]) % 64 == 0
        rows.local[:] = comm.rank + 1
        backend.publish(rows)
        backend.memory.close()


def test_a_heap_does_not_grow(comm, backend):
    with pytest.raises(config.InputError, match=r"symmetric heap of \d+ bytes has \d+ left and cannot grow"):
        backend.memory.reserve(1 << 40)
    with pytest.raises(MemoryError, match="of symmetric rows"):
        backend.rows(np.full(comm.size, 1 << 34), RowFormat(np.dtype(np.float32), 8), symmetric=True)


@by_transfer
def test_rows_of_opened_graphs_grow_within_the_heap(rng, comm, transfer):
    matrix = sp.random_array((60, 60), density=0.1, format="csr", rng=rng)
    dense = torch.from_numpy(matrix.toarray() != 0).double()
    options = {"transpose": True, "backend": "shmem", "transfer": transfer, "dtype": "float64", "comm": comm}
    with mgg.from_scipy(matrix, **options) as graph:  # rows beyond the heap's 16 MiB end it
        for width in (3, 33, 5, 129):
            x = torch.from_numpy(rng.standard_normal((60, width)))
            mine = x[graph.ids].requires_grad_()
            out = aggregate(mine, graph, graph.adjacency("edges"))
            (out.sum() + mgg.extend(mine, graph).sum()).backward()
            uses = dense.sum(0) + 1 + torch.from_numpy(needed_elsewhere(comm, graph, dense))
            with mpi.agree(comm):
                torch.testing.assert_close(out.detach(), (dense @ x)[graph.ids], rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(mine.grad, uses[graph.ids][:, None].expand_as(mine).double())
        if transfer == "halo" and comm.size == 1:
            return  # nothing is on the heap
        with pytest.raises(
            config.InputError, match=r"cannot grow, .* open the graph with widest= of the widest"
        ):
            graph.exchange(1 << 17)
            aggregate(torch.zeros(graph.rows, 1 << 17, dtype=torch.float64), graph, graph.adjacency("edges"))


def needed_elsewhere(comm, graph, dense) -> np.ndarray:
    """[N]: how many ranks need a row that they do not own."""
    needed = dense[graph.ids].any(0).numpy()
    needed[graph.ids] = False
    return np.sum(comm.allgather(needed), axis=0)


def losses(path: Path, comm: MPI.Intracomm, backend: str, transfer: str) -> np.ndarray:
    tree = {
        "graph": {"file": str(path)},
        "model": {"hidden": 8, "dropout": 0.5},
        "train": {"seed": 20},
        "run": {"threads": 1, "backend": backend},
        "plan": {"transfer": transfer},
    }
    job = build(config.from_tree(tree, "test"), comm)
    trainer = Trainer(job, job.graph())
    values = [trainer.step(epoch) or trainer.loss() for epoch in range(1, 21)]
    job.backend.memory.close()
    return np.array(values)


@by_transfer
@pytest.mark.parametrize("make", [blocks, directed_weighted])
def test_losses_equal_those_of_one_rank(comm, folder, make, transfer):
    if comm.rank == 0:
        writer.write(folder / "g.h5", make())
    comm.Barrier()
    alone = losses(folder / "g.h5", MPI.COMM_SELF, "serial", "direct")
    assert len(set(alone)) == len(alone)
    np.testing.assert_allclose(losses(folder / "g.h5", comm, "shmem", transfer), alone, rtol=1e-5, atol=0)


def trained(graph) -> list[float]:
    """Losses of sampled batches, and at last the accuracy on the whole graph."""
    mgg.manual_seed(3)
    net = torch.nn.ModuleList([mgg.nn.SAGEConv(12, 40), mgg.nn.SAGEConv(40, 4)]).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    loader = mgg.NeighborLoader(graph, [4, 3], batch_size=30, shuffle=True, seed=5)
    found = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            h = net[0](batch.x, batch.blocks[0]).relu()
            loss = batch.loss(net[1](h, batch.blocks[1]))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    with torch.no_grad():
        found.append(graph.accuracy(net[1](net[0](graph.x, graph).relu(), graph), "train"))
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_batches_train_as_on_one_rank(rng, comm, sparse):
    matrix = sp.random_array((150, 150), density=0.06, format="csr", rng=rng)
    x = rng.standard_normal((150, 12)) * (rng.random((150, 12)) < 0.5)
    given = {"x": sp.csr_array(x) if sparse else x, "y": rng.integers(0, 4, 150), "train": np.ones(150, bool)}
    with mgg.from_scipy(matrix, **given, dtype="float64", backend="serial", comm=MPI.COMM_SELF) as graph:
        alone = trained(graph)
    with mgg.from_scipy(matrix, **given, dtype="float64", backend="shmem", comm=comm) as graph:
        together = trained(graph)
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-10)
