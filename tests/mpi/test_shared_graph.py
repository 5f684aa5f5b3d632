"""A whole graph in memory that several ranks share, on one node and on two that are played."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import exit_code, mpi, shared_graph

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["one node", "two nodes"])
def node(comm, request):
    """The communicator of this rank's node: all ranks, or every other one."""
    made = comm.Split(comm.rank % 2 if request.param == "two nodes" else 0, comm.rank)
    yield made
    made.Free()


def mappings():
    """Address ranges of shared memory that this process has mapped: MPI removes its files at once."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return {tuple(int(end, 16) for end in line[0].split("-")) for line in lines if line[1].endswith("s")}


def is_shared(array):
    """Whether an array lies in shared memory."""
    return any(begin <= array.ctypes.data < end for begin, end in mappings())


class Whole:
    """A graph of 50 rows, the same on all ranks, of which the last rank owns nothing."""

    def __init__(self, rng, ranks):
        self.matrix = sp.random_array((50, 50), density=0.1, format="csr", rng=rng, dtype=np.float32)
        self.bounds = np.array([50 * rank // max(1, ranks - 1) for rank in range(ranks)] + [50])
        self.ids = rng.permutation(50)
        self.labels, self.half = rng.integers(0, 9, 50), rng.random((50, 3)).astype(np.float16)
        self.kind = rng.integers(0, 200, (self.matrix.nnz, 2)).astype(np.uint8)

    def shared(self, comm, node, *, index=np.int32, **others):
        """What `share` makes of the parts of all ranks."""
        low, high = self.bounds[comm.rank : comm.rank + 2]
        part, edges = self.matrix[low:high], slice(*self.matrix.indptr[[low, high]])
        return shared_graph.share(
            comm,
            self.bounds,
            part.indptr.astype(np.int64),
            part.indices.astype(index),
            weight=part.data,
            ids=self.ids[low:high],
            nodes={"label": self.labels[low:high], "half": self.half[low:high]} | others,
            edges={"kind": self.kind[edges]},
            node=node,
        )

    def check(self, found):
        """Every array is the whole graph's, and is read only."""
        nodes, edges = {"label": self.labels, "half": self.half}, {"kind": self.kind}
        assert (found.nodes.keys(), found.edges.keys()) == (nodes.keys(), edges.keys())
        pairs = [
            (found.indptr, self.matrix.indptr.astype(np.int64)),
            (found.indices, self.matrix.indices),
            (found.weight, self.matrix.data),
            (found.ids, self.ids),
            *((found.nodes[name], each) for name, each in nodes.items()),
            *((found.edges[name], each) for name, each in edges.items()),
        ]
        for each, wanted in pairs:
            assert each.dtype == wanted.dtype and not each.flags.writeable and each.flags.c_contiguous
            np.testing.assert_array_equal(each, wanted)
            # Pages of its own, so that a GPU's driver can lock them.
            assert found.window is None or each.ctypes.data % mmap.PAGESIZE == 0
        assert found.nbytes == sum(wanted.nbytes for _, wanted in pairs)
        np.testing.assert_array_equal(found.bounds, self.bounds)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("message", [shared_graph.MESSAGE_BYTES, 100])
def test_every_rank_has_the_whole_graph(rng, comm, node, monkeypatch, message, index, no_segments_left):
    monkeypatch.setattr(shared_graph, "MESSAGE_BYTES", message)
    whole = Whole(rng, comm.size)
    found = whole.shared(comm, node, index=index)
    with mpi.agree(comm):
        whole.check(found)
    with mpi.agree(comm):
        assert is_shared(found.indices) == (node.size > 1)
    found.close()
    found.close()
    comm.Barrier()
    with mpi.agree(comm):
        assert not is_shared(found.indices)


def test_one_rank_copies_nothing(rng, no_segments_left):
    whole, alone = Whole(rng, 1), MPI.COMM_SELF
    indptr, indices = whole.matrix.indptr.astype(np.int64), whole.matrix.indices
    found = shared_graph.share(alone, whole.bounds, indptr, indices, nodes={"half": whole.half})
    assert np.shares_memory(found.indptr, indptr) and np.shares_memory(found.indices, indices)
    assert np.shares_memory(found.nodes["half"], whole.half) and not found.nodes["half"].flags.writeable
    assert indptr.flags.writeable and whole.half.flags.writeable
    found.close()


def test_graphs_without_edges_or_weights_are_shared(comm, node):
    bounds = np.arange(comm.size + 1, dtype=np.int64) * 2
    found = shared_graph.share(comm, bounds, np.zeros(3, np.int64), np.empty(0, np.int32), node=node)
    with mpi.agree(comm):
        assert found.indptr.tolist() == [0] * (2 * comm.size + 1) and found.indices.size == 0
        assert found.weight is None and found.ids is None and not found.nodes and not found.edges
    found.close()


def test_a_node_without_room_is_one_line_on_all_ranks(rng, comm, monkeypatch):
    """The second of two nodes has none; the first, which has, keeps nothing."""
    if comm.size == 1:
        return  # one rank shares nothing
    node, whole = comm.Split(comm.rank % 2, comm.rank), Whole(rng, comm.size)
    whole.shared(comm, node).close()  # MPI keeps a few mappings of its own from now on
    before = len(mappings())
    if comm.rank % 2:
        monkeypatch.setattr(mpi, "free_shared", lambda: 3 << 10)
    with pytest.raises(InputError, match=r"need .* KiB of shared memory \(together\), but .* 3\.0 KiB"):
        whole.shared(comm, node)
    with mpi.agree(comm):
        assert len(mappings()) == before
    node.Free()


def test_what_does_not_fit_is_refused_on_all_ranks(rng, comm):
    whole = Whole(rng, comm.size)
    with pytest.raises(
        (ValueError, exit_code.FailedElsewhere), match=r"extra: 7 values, and there are|rank 0 failed"
    ):
        whole.shared(comm, None, extra=np.zeros(7 if comm.rank == 0 else np.diff(whole.bounds)[comm.rank]))
    if comm.size > 1:
        own = np.zeros(np.diff(whole.bounds)[comm.rank], np.float32 if comm.rank else np.float64)
        with pytest.raises(ValueError, match="ranks 0 and 1 share different arrays"):
            whole.shared(comm, None, extra=own)
