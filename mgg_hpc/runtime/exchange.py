"""Exchanges between ranks while plans are built: edges, and the rows that each rank needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import symmetry
from ..errors import InputError
from ..plan import halo
from ..plan.adjacency import Weight
from ..plan.row_ranges import owner_of
from ..plan.workload import HaloLists, Plan, SplitEdges, prefix_sum
from . import mpi


@dataclass(frozen=True, eq=False)
class Crossing:
    """The exchange that carries values of in-edges to the ranks that have the same edges as out-edges.

    send: int64, this rank's in-edges in the order in which they are sent. counts: int64 [P], number sent to each rank.
    received: int64, for each of this rank's out-edges its index in the values that arrive. arriving: int64 [P], number
    that arrives from each rank.
    """

    send: NDArray[np.int64]
    counts: NDArray[np.int64]
    received: NDArray[np.int64]
    arriving: NDArray[np.int64]

    def carry(self, comm: Any, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of this rank's out-edges, [out-edges, ...], from values [in-edges, ...]. Collective."""
        return sent(comm, values[self.send], self.counts, self.arriving)[self.received]

    def carry_back(self, comm: Any, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of this rank's in-edges, [in-edges, ...], from values [out-edges, ...]. Collective."""
        going = np.empty_like(values)
        going[self.received] = values
        back = np.empty((len(self.send), *values.shape[1:]), values.dtype)
        back[self.send] = sent(comm, going, self.arriving, self.counts)
        return back


def transpose(
    comm: Any,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    destinations: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.integer], Crossing]:
    """Return the out-edges of this rank's rows, from every rank's in-edges, and the exchange of edge values.

    Collective. indptr int64 [n + 1], indices [E] global: this rank's part of the in-edge CSR. The result has the same
    form: row u lists the v of edges u -> v, ascending. Every edge is sent at most once.

    bounds: int64 [P + 1], rows of the sources. destinations: the same of the destinations, if they are other rows.
    """
    first = int(bounds[comm.rank])
    number = first if destinations is None else int(destinations[comm.rank])
    destination = np.repeat(np.arange(number, number + len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    owner = owner_of(bounds, indices)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=comm.size)
    expected = arriving(comm, counts)
    sources = sent(comm, indices[order], counts, expected)
    destinations = sent(comm, destination[order], counts, expected)
    # Ranks own ascending rows and send theirs in order, so a stable sort by source leaves destinations ascending.
    by_source = np.argsort(sources, kind="stable")
    rows = int(bounds[comm.rank + 1]) - first
    degree = np.bincount(sources - first, minlength=rows)
    return prefix_sum(degree), destinations[by_source], Crossing(order, counts, by_source, expected)


def check_symmetric(
    comm: Any,
    path: Any,
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: Weight,
) -> None:
    """Check that each edge of a graph file marked undirected has an equal one in the other direction. Collective.

    first: number of this rank's first row; indptr, indices, weight: its in-edges. Raises InputError, the same on all
    ranks, that names ``path``.
    """
    mine = symmetry.csr_imbalance(first, indptr, indices, weight)
    total = np.array([mine], dtype=np.uint64).view(np.int64)
    mpi.sum_in_rank_order(comm, total)
    if total[0] != 0:
        raise InputError(
            f"{path}: says directed=false, but some edge has no equal one in the other direction; "
            f"'mgg verify {path}' names it"
        )


def halo_in_rounds(
    comm: Any, edges: SplitEdges, count: int | None = None, *, ordered: bool = False
) -> tuple[Plan, NDArray[np.int64] | None]:
    """Return the plan with a halo in rounds; with ``ordered`` also the index of each of its edges in ``edges``.

    Collective. count: number of rounds, the same on all ranks; GPUs, which cut a round into chunks, take 1. [default:
    by the largest halo]
    """
    from mpi4py import MPI

    count = count or halo.round_count(int(comm.allreduce(len(edges.halo), MPI.MAX)))
    made, order, requests = halo.in_rounds(edges, count, ordered=ordered)
    return replace(made, lists=_answered(comm, requests)), order


def halo_lists(comm: Any, edges: SplitEdges) -> HaloLists:
    """Return the lists of an exchange of the rows of ``edges.halo`` in one round, in that order. Collective."""
    counts = np.diff(edges.halo_bounds)[None]
    places = edges.halo_bounds[:-1][None]
    return _answered(comm, halo.Requests(counts, places, np.split(edges.halo, edges.halo_bounds[1:-1])))


def _answered(comm: Any, requests: halo.Requests) -> HaloLists:
    """Return the lists of an exchange that answers the requests of all ranks. Collective."""
    from mpi4py import MPI

    count = len(requests.counts)
    each = np.full(comm.size, count, dtype=np.int64)
    counts = send(comm, np.ascontiguousarray(requests.counts.T).reshape(-1), each).reshape(-1, count)
    places = send(comm, np.ascontiguousarray(requests.places.T).reshape(-1), each).reshape(-1, count)
    asked = send(comm, np.concatenate(requests.rows), requests.counts.sum(axis=0))
    cuts = np.cumsum(counts.sum(axis=1))[:-1]
    send_rows, send_counts, send_places = halo.answer(np.split(asked, cuts), counts, places)
    capacity = int(comm.allreduce(int(requests.counts.sum()), MPI.MAX))
    most_sent = int(comm.allreduce(len(send_rows), MPI.MAX))
    return HaloLists(requests.counts, send_rows, send_counts, send_places, capacity, most_sent)


def send(comm: Any, values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Send ``values``, cut by ``counts``, to ranks 0, 1, ...; return the values that arrive, in rank order."""
    if comm.size == 1:
        return values
    return sent(comm, values, counts, arriving(comm, counts))


def arriving(comm: Any, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many values arrive from each rank, int64 [P]. counts: how many this rank sends to each."""
    mine = np.ascontiguousarray(counts, dtype=np.int64)
    if comm.size == 1:
        return mine
    found = np.empty_like(mine)
    comm.Alltoall(mine, found)
    return found


def sent(
    comm: Any, values: NDArray[Any], counts: NDArray[np.int64], expected: NDArray[np.int64]
) -> NDArray[Any]:
    """Do as `send` for values [k, ...]. expected: number of values that arrive from each rank."""
    if comm is None or comm.size == 1:
        return values
    from mpi4py.util.dtlib import from_numpy_dtype

    item = from_numpy_dtype(values.dtype).Create_contiguous(math.prod(values.shape[1:])).Commit()
    received = np.empty((int(expected.sum()), *values.shape[1:]), dtype=values.dtype)
    comm.Alltoallv(
        [np.ascontiguousarray(values), (counts, prefix_sum(counts)[:-1]), item],
        [received, (expected, prefix_sum(expected)[:-1]), item],
    )
    item.Free()
    return received
