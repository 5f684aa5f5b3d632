"""Chunks that pass from rank to rank, from stores that all ranks of a node share."""

from __future__ import annotations

from pathlib import Path

import cases
import numpy as np
import pytest
import reference
from chunks.chained import chained
from chunks.gridded import loaded_rows

from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.streaming.buffer import ChunkBuffer, slot_bytes
from mgg_hpc.runtime.streaming.chains import copy_bandwidth, from_tree, measured_tree
from mgg_hpc.runtime.streaming.files import FileStore
from mgg_hpc.runtime.streaming.store import HostStore

pytestmark = pytest.mark.mpi


def shared_store(comm, place, format, count, folder):
    if place == "host":
        return HostStore(format, count, node=comm)
    return FileStore(format, count, folder, direct=place == "direct", node=comm)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("place", ["host", "file", "direct"])
@pytest.mark.parametrize("name", cases.CASES)
def test_sums_over_a_chain(rng, comm, backend, folder, name, place):
    """Each rank writes its rows, and sums its destinations; the store is read once for all, or once for each rank."""
    case = cases.CASES[name](rng, comm.size)
    width = int(rng.choice(cases.WIDTHS))
    x = rng.standard_normal((case.nodes, width)).astype(np.float32)
    store = shared_store(comm, place, RowFormat(x.dtype, width), case.nodes, folder)
    mine = case.rows(comm.rank)
    store.write(mine.start, x[mine])
    comm.Barrier()
    parts, order = chained(case, 13, 16, int(rng.integers(2, 5)))
    edges = reference.edge_list(case.indptr, case.indices)
    wanted = reference.aggregate(*edges, case.nodes, x)[mine]
    bound = reference.error_bound(*edges, case.nodes, x)[mine]
    nbytes, found = loaded_rows(order) * width * 4, set()
    for chains in ([list(range(comm.size))], []):
        buffer = ChunkBuffer(backend, order.slots * slot_bytes(order.capacity, store.format), chains)
        for _ in range(2):
            backend.stream.meter.taken()
            out = parts[comm.rank].sums(backend, store, order, buffer)
            spent = backend.stream.meter.taken()
            comm.Barrier()
        with mpi.agree(comm):
            assert (np.abs(out - wanted) <= bound).all()
            assert spent.remote_bytes == nbytes
            assert spent.stored_bytes == (nbytes if comm.rank == 0 or not chains else 0)
        found.add(out.tobytes())
        buffer.close()
    with mpi.agree(comm):
        assert len(found) == 1
        assert not list(folder.iterdir())
    store.close()


def test_stores_are_refused_on_all_ranks(comm):
    with pytest.raises(InputError, match="scratch folder"):
        FileStore(RowFormat(np.dtype(np.float32), 3), 10, Path("/nowhere"), node=comm)


def test_chains_of_this_machine(comm):
    alone, together = copy_bandwidth(comm)
    tree = measured_tree(alone, together, comm.size)
    with mpi.agree(comm):
        assert 0.1 < alone < 1000
        assert 0.1 < together < 1000 * comm.size
    found = comm.allgather(from_tree(tree, comm.size))
    with mpi.agree(comm):
        assert all(each == found[0] for each in found)
