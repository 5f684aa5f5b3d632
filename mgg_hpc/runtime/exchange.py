"""Exchanges between ranks while a workload is built: edges, and the rows that each rank needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plan import halo
from ..plan.adjacency import Weight
from ..plan.ranges import owner_of
from ..plan.workload import HaloLists, Plan, SplitEdges, prefix_sum


def transpose(
    comm: Any,
    bounds: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: Weight,
    destinations: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.integer], Weight]:
    """Return the out-edges of this rank's rows, from every rank's in-edges: row u lists the v of edges u -> v.

    indptr int64 [n + 1], indices [E] global, weight float32 [E] or None: this rank's part of the in-edge CSR. The
    result has the same form. Every edge crosses at most once. Collective.

    bounds: int64 [P + 1], of the sources. destinations: the same of the destinations, where they are other rows.
    """
    first = int(bounds[comm.rank])
    number = first if destinations is None else int(destinations[comm.rank])
    destination = np.repeat(np.arange(number, number + len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    owner = owner_of(bounds, indices)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=comm.size)
    sources = send(comm, indices[order], counts)
    destinations = send(comm, destination[order], counts)
    weights = None if weight is None else send(comm, weight[order], counts)
    # Ranks own ascending rows and send theirs in order, so a stable sort by source leaves destinations ascending.
    by_source = np.argsort(sources, kind="stable")
    rows = int(bounds[comm.rank + 1]) - first
    degree = np.bincount(sources - first, minlength=rows)
    return prefix_sum(degree), destinations[by_source], None if weights is None else weights[by_source]


def halo_in_rounds(comm: Any, edges: SplitEdges, count: int | None = None) -> tuple[Plan, NDArray[np.int64]]:
    """Return the plan with a halo in rounds, and the place of each of its edges in ``edges``. Collective.

    count: of rounds, the same on all ranks; GPUs, which cut a round into chunks, take 1. None: by the largest halo.
    """
    from mpi4py import MPI

    count = count or halo.round_count(int(comm.allreduce(len(edges.halo), MPI.MAX)))
    made, order, requests = halo.in_rounds(edges, count)
    each = np.full(comm.size, count, dtype=np.int64)
    counts = send(comm, np.ascontiguousarray(requests.counts.T).reshape(-1), each).reshape(-1, count)
    places = send(comm, np.ascontiguousarray(requests.places.T).reshape(-1), each).reshape(-1, count)
    asked = send(comm, np.concatenate(requests.rows), requests.counts.sum(axis=0))
    cuts = np.cumsum(counts.sum(axis=1))[:-1]
    send_rows, send_counts, send_places = halo.answer(np.split(asked, cuts), counts, places)
    capacity = int(comm.allreduce(int(requests.counts.sum()), MPI.MAX))
    most_sent = int(comm.allreduce(len(send_rows), MPI.MAX))
    lists = HaloLists(requests.counts, send_rows, send_counts, send_places, capacity, most_sent)
    return replace(made, lists=lists), order


def send(comm: Any, values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Send ``values``, cut by ``counts``, to ranks 0, 1, ...; return what arrives, in rank order."""
    if comm.size == 1:
        return values
    from mpi4py.util.dtlib import from_numpy_dtype

    expected = np.empty(comm.size, dtype=np.int64)
    comm.Alltoall(np.ascontiguousarray(counts, dtype=np.int64), expected)
    received = np.empty(int(expected.sum()), dtype=values.dtype)
    kind = from_numpy_dtype(values.dtype)
    comm.Alltoallv(
        [values, (counts, prefix_sum(counts)[:-1]), kind],
        [received, (expected, prefix_sum(expected)[:-1]), kind],
    )
    return received
