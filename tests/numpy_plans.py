"""Plans made with NumPy, by sorting: what the native code must agree with, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np

from mgg_hpc.plan.halo import Requests
from mgg_hpc.plan.layout import CHUNK, HALO, OWNED, SEGMENT
from mgg_hpc.plan.ranges import owner_of
from mgg_hpc.plan.workload import Plan, SplitEdges, prefix_sum


def split(rank, bounds, indptr, indices, *, keep_edges=False):
    """See `workload.split`."""
    ranks, degree = len(bounds) - 1, np.diff(indptr)
    destination = np.repeat(np.arange(len(degree)), degree)
    owner = owner_of(bounds, indices)
    offset = (indices - bounds[owner]).astype(np.int32)
    order = np.argsort((rank - owner) % ranks, kind="stable")
    owners = [
        pe for pe in ((rank - step) % ranks for step in range(ranks)) if pe == rank or (owner == pe).any()
    ]
    runs = [np.unique(destination[owner == pe], return_counts=True) for pe in owners]
    halo = [np.unique(offset[owner == pe]) if pe != rank else offset[:0] for pe in range(ranks)]
    return SplitEdges(
        rank=rank,
        destinations=len(degree),
        owners=np.array(owners, np.int32),
        rows=np.diff(bounds)[owners],
        runs=[(there.astype(np.int32), count.astype(np.int32)) for there, count in runs],
        empty=np.flatnonzero(degree == 0),
        indices=offset[order],
        edge=order if keep_edges else None,
        halo=np.concatenate(halo),
        halo_bounds=prefix_sum(np.array([len(part) for part in halo])),
    )


def segments(chunks, runs, empty):
    """See `workload.joined_segments`."""
    found, first_edge = [], 0
    for chunk, (destination, count) in enumerate(runs):
        for there, edges in zip(destination.tolist(), count.tolist(), strict=True):
            found.append((first_edge, there, edges, chunk, 0))
            first_edge += edges
    found = sorted(
        found + [(0, there, 0, 0, 0) for there in empty.tolist()], key=lambda each: (each[3], each[1])
    )
    chunks["segments"] = np.bincount([each[3] for each in found], minlength=len(chunks))
    chunks["first_segment"] = prefix_sum(chunks["segments"])[:-1]
    return np.array(found, SEGMENT)


def remote_edges(edges):
    """The halo's row and the destination of each remote edge."""
    positions, destinations = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    first = edges.local_edges
    for owner, (destination, count) in zip(edges.owners[1:], edges.runs[1:], strict=True):
        last = first + int(count.sum())
        low, high = edges.halo_bounds[owner], edges.halo_bounds[owner + 1]
        positions.append(low + np.searchsorted(edges.halo[low:high], edges.indices[first:last]))
        destinations.append(np.repeat(destination, count))
        first = last
    return np.concatenate(positions), np.concatenate(destinations)


def in_rounds(edges, rounds):
    """See `halo.in_rounds`."""
    ranks = len(edges.halo_bounds) - 1
    pe_of = np.repeat(np.arange(ranks), np.diff(edges.halo_bounds))
    position, destination = remote_edges(edges)
    used = np.bincount(position, minlength=len(edges.halo))
    round_of = np.empty(len(used), np.int64)
    round_of[np.lexsort((np.arange(len(used)), -used))] = np.arange(len(used)) * rounds // max(1, len(used))
    arrival = np.lexsort((edges.halo, pe_of, round_of))
    place = np.argsort(arrival)
    counts = np.zeros((rounds, ranks), np.int64)
    np.add.at(counts, (round_of, pe_of), 1)
    starts = prefix_sum(counts.sum(axis=1))
    local, edge_round = edges.local_edges, round_of[position]
    moved = np.lexsort((destination, edge_round))
    ends = np.searchsorted(edge_round[moved], np.arange(rounds + 1))
    arriving = [
        np.unique(destination[moved[first:last]], return_counts=True)
        for first, last in itertools.pairwise(ends)
    ]
    chunks = np.zeros(1 + rounds, CHUNK)
    chunks["kind"], chunks["pe"] = [OWNED] + [HALO] * rounds, edges.rank
    chunks["first_row"][1:], chunks["rows"] = starts[:-1], [edges.rows[0], *np.diff(starts)]
    order = np.concatenate([np.arange(local), local + moved])
    made = Plan(
        rank=edges.rank,
        destinations=edges.destinations,
        segments=segments(chunks, [edges.runs[0], *arriving], edges.empty),
        chunks=chunks,
        indices=np.append(edges.indices[:local], (place[position] - starts[edge_round])[moved]).astype(
            np.int32
        ),
        edge=None if edges.edge is None else edges.edge[order],
        halo=edges.halo,
        halo_bounds=edges.halo_bounds,
        transfer="halo",
    )
    rows = [edges.halo[arrival][pe_of[arrival] == pe] for pe in range(ranks)]
    return (
        made,
        order,
        used,
        Requests(counts, prefix_sum(counts.reshape(-1))[:-1].reshape(counts.shape), rows),
    )


def with_loops(first_row, indptr, indices, weight, *, replace):
    """See `adjacency.with_self_loops` and, with ``replace``, `adjacency.with_one_self_loop`."""
    degrees, found, weights = [], [], []
    for v in range(len(indptr) - 1):
        row = list(zip(*(a[indptr[v] : indptr[v + 1]].tolist() for a in (indices, weight)), strict=True))
        own = first_row + v
        if replace:
            row = [each for each in row if each[0] != own]
        if own not in [u for u, _ in row]:
            row.append((own, 1.0))
        degrees.append(len(row))
        found += [u for u, _ in row]
        weights += [w for _, w in row]
    return (
        prefix_sum(np.array(degrees, np.int64)),
        np.array(found, indices.dtype),
        np.array(weights, np.float32),
    )
