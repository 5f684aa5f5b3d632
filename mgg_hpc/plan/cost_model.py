"""Estimate times from counts and measured costs: of transfers, aggregations, layers and epochs; choose transfers.

One model for all that is estimated. A running job chooses its transfers by what remote rows take beyond local ones
(`seconds`, `choose_each`); `mgg model` adds what does not depend on the choice: sums, products and fixed costs
(`System`, `aggregation`, `epoch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .counts import Reuse, Traffic

TRANSFERS = ("direct", "get", "halo")
WORTH = 0.1  # of the time for remote rows: what a choice for each layer must save


@dataclass(frozen=True)
class RowCost:
    """Seconds of a row: ``row`` each, and ``byte`` for each of its bytes.

    together: whether both go on at the same time, as rows that wait for each other's answers and for the link do.
    """

    row: float
    byte: float
    together: bool = False

    def of(self, rows: int, row_bytes: int) -> float:
        """Return the seconds of ``rows`` rows of ``row_bytes`` bytes."""
        moved = self.byte * row_bytes
        return rows * (max(self.row, moved) if self.together else self.row + moved)


def cold_reads(uses: NDArray[np.integer], held: int, rows: NDArray[np.integer] | None = None) -> int:
    """Return the number of reads that miss a cache of the ``held`` most used rows: one of each, all of the others.

    uses: [H], how many edges take each remote row. rows: [H], how many rows have each of these numbers. [default: one]
    """
    falling = np.argsort(-uses)
    each = np.ones_like(uses) if rows is None else rows[falling]
    missed = np.clip(np.cumsum(each) - held, 0, each)
    present = int(each[uses[falling] > 0].sum())
    return min(held, present) + int((missed * uses[falling]).sum())


def seconds(
    costs: Mapping[str, RowCost],
    uses: NDArray[np.integer],
    cache_bytes: int,
    row_bytes: Sequence[int],
    rows: NDArray[np.integer] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds in which each transfer of ``costs`` brings an aggregation's rows, for each size (0: none).

    get moves a row for each remote edge; direct too, but costs are those of rows that no cache holds, and graphs
    have rows that many edges take. A halo moves each distinct remote row once. uses, rows: as `cold_reads` has them.
    """
    total = int((uses if rows is None else uses * rows).sum())
    distinct = len(uses) if rows is None else int(rows.sum())

    def moved(name: str, size: int) -> int:
        if name == "direct":
            return cold_reads(uses, cache_bytes // size, rows)
        return total if name == "get" else distinct

    return {
        name: [cost.of(moved(name, size), size) if size else 0.0 for size in row_bytes]
        for name, cost in costs.items()
    }


def choose(estimates: Mapping[str, float]) -> str:
    """Return the cheapest transfer; among equals the one that needs least: direct, then get."""
    return min(TRANSFERS, key=lambda name: estimates.get(name, float("inf")))


def choose_each(estimates: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the transfer of each layer, from the seconds that each layer takes by each transfer.

    One for all, unless a choice for each saves more than a tenth: two ways take two kinds of memory, and costs are
    measured in milliseconds.
    """
    whole = {name: sum(seconds) for name, seconds in estimates.items()}
    one = choose(whole)
    each = [
        choose({name: seconds[layer] for name, seconds in estimates.items()})
        for layer in range(len(estimates[one]))
    ]
    least = sum(estimates[name][layer] for layer, name in enumerate(each))
    return each if least < (1 - WORTH) * whole[one] else [one] * len(each)


@dataclass(frozen=True)
class Gather:
    """Seconds of an edge's row that this rank can read, by its bytes and by how long ago it was read before.

    reach: bytes [K - 1], ascending: the row was last read at most so many bytes of other rows ago; the last of the K
    classes has no limit. row_bytes: [J], ascending. seconds: [J, K].
    """

    reach: tuple[float, ...]
    row_bytes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def of(self, reuse: Reuse, row_bytes: int) -> float:
        """Return the mean seconds of an edge with rows of ``row_bytes`` bytes: between sizes linear, and beyond."""
        beyond = [reuse.beyond(reach / row_bytes) for reach in self.reach]
        share = -np.diff([1.0, *np.minimum.accumulate(beyond), 0.0]) if beyond else np.ones(1)
        table = np.array(self.seconds) @ share
        if len(table) == 1:
            return float(table[0] * row_bytes / self.row_bytes[0])
        at = int(np.clip(np.searchsorted(self.row_bytes, row_bytes), 1, len(table) - 1))
        low, high = self.row_bytes[at - 1], self.row_bytes[at]
        slope = (table[at] - table[at - 1]) / (high - low)
        return max(0.0, float(table[at - 1] + slope * (row_bytes - low)))


@dataclass(frozen=True)
class System:
    """Costs of the work of each rank of a job, and of moving rows between ranks.

    ranks_a_node: number of ranks that reach each other's rows through pointers. gather: cost of an edge whose row is
    the rank's own; mixed: of the mean edge by a transfer whose edges read the rows of all ranks alike, where that is
    not the same. destination: cost of storing a row. segment: cost of beginning a segment. dense: pairs of (smaller
    dimension of a product, floating-point operations a second), ascending. stream: cost of a row of a layer in what
    runs over rows in order. cold: seconds for each byte of rows and indices that an aggregation reads from memory,
    where it was not read just before. draw: seconds for each value that dropout draws. layer: fixed seconds of a
    layer, forward and backward; step: of an epoch. within, between: cost of a remote row beyond that of a local one, by
    transfer, from ranks of the same node and of others. fixed: seconds of an aggregation that moves nothing, with its
    barrier, by transfer. message: seconds for each message to another node. cache_bytes: size of the cache for remote
    rows that are read through pointers. hides: whether transfers overlap with the sums. halo_rounds: number of rounds
    of a halo, or None where its size decides.
    """

    name: str
    ranks_a_node: int
    gather: Gather
    destination: RowCost
    segment: RowCost
    dense: tuple[tuple[int, float], ...]
    stream: RowCost
    draw: float
    layer: float
    step: float
    within: Mapping[str, RowCost]
    between: Mapping[str, RowCost]
    fixed: Mapping[str, float]
    mixed: Mapping[str, Gather] = field(default_factory=dict)
    cold: float = 0.0
    message: float = 0.0
    cache_bytes: int = 0
    hides: bool = False
    halo_rounds: int | None = None

    def flops(self, smaller: int) -> float:
        """Return the operations a second of a product whose smallest dimension is ``smaller``."""
        widths, rates = zip(*self.dense, strict=True)
        return float(np.interp(np.log(max(1, smaller)), np.log(widths), rates))


@dataclass(frozen=True)
class Layer:
    """Work of a layer in a training step. forward, backward: bytes of the rows that it exchanges, 0 for none.

    products: (smaller dimension, operations for each row) of its products in both directions. streamed: bytes for each
    row of what runs over rows in order. draws: values for each row that dropout decides.
    """

    forward: int
    backward: int
    products: tuple[tuple[int, float], ...] = ()
    streamed: float = 0.0
    draws: float = 0.0


def transfers(system: System, ranks: int) -> list[str]:
    """Return the transfers that a job of so many ranks has there: pointers end at the node."""
    far = ranks > system.ranks_a_node
    return [name for name in TRANSFERS if name in system.within and (not far or name in system.between)]


def sums(system: System, traffic: Traffic, row_bytes: int, transfer: str) -> NDArray[np.float64]:
    """Return the seconds of each rank's sums over rows that it can read, float64 [P].

    With a halo a destination is stored once for each segment.
    """
    ranks, found = len(traffic.ranks), []
    for each in traffic.ranks:
        segments = each.segments[transfer]
        edges = each.local_edges + each.remote_edges
        cost = system.gather.of(each.reuse, row_bytes)
        if transfer in system.mixed and edges:
            evenly = (ranks - 1) / ranks  # the share of remote edges for which the mixed cost was measured
            mixed = system.mixed[transfer].of(each.reuse, row_bytes)
            cost += (mixed - cost) * min(1.0, each.remote_edges / edges / evenly)
        stored = segments if transfer == "halo" else each.rows
        found.append(
            system.destination.of(stored, row_bytes) + system.segment.of(segments, row_bytes) + edges * cost
        )
    return np.array(found)


def moves(system: System, traffic: Traffic, row_bytes: int) -> dict[str, NDArray[np.float64]]:
    """Return the seconds in which each rank has its remote rows, beyond those of local ones, by transfer: [P] each."""
    ranks = len(traffic.ranks)
    names = transfers(system, ranks)
    far_edges, far_rows = traffic.between(system.ranks_a_node)
    messages = traffic.messages("halo", row_bytes)
    found = {name: np.zeros(ranks) for name in names}
    for rank, each in enumerate(traffic.ranks):
        near = seconds(system.within, each.uses[0], system.cache_bytes, [row_bytes], each.uses[1])
        far = {"direct": 0, "get": int(far_edges[rank]), "halo": int(far_rows[rank])}
        total = {"direct": 1, "get": max(1, each.remote_edges), "halo": max(1, each.halo_rows)}
        for name in names:
            found[name][rank] = near[name][0] * (1 - far[name] / total[name])
            if far[name]:
                sent = messages[rank] * far[name] / total[name] if name == "halo" else 0
                found[name][rank] += system.between[name].of(far[name], row_bytes) + sent * system.message
    return found


def aggregation(system: System, traffic: Traffic, row_bytes: int) -> dict[str, float]:
    """Return the seconds of an aggregation on the slowest rank, by transfer."""
    if not row_bytes:
        return dict.fromkeys(transfers(system, len(traffic.ranks)), 0.0)
    found = {}
    for name, moved in moves(system, traffic, row_bytes).items():
        summed = sums(system, traffic, row_bytes, name)
        both = np.maximum(summed, moved) if system.hides else summed + moved
        found[name] = system.fixed[name] + float(both.max(initial=0.0))
    return found


def cold(system: System, traffic: Traffic, row_bytes: int) -> float:
    """Return what an aggregation takes more on the slowest rank if none of its rows and indices are in a cache."""
    read = (
        float(each.reuse.distinct[-1]) * row_bytes + 4 * (each.local_edges + each.remote_edges)
        for each in traffic.ranks
    )
    return system.cold * max(read, default=0.0) if row_bytes else 0.0


def dense(system: System, rows: int, layer: Layer) -> float:
    """Return the seconds of a layer's other work for so many rows: products, passes over rows, and drawing."""
    products = sum(work / system.flops(smaller) for smaller, work in layer.products)
    streamed = system.stream.row + system.stream.byte * layer.streamed
    return rows * (products + streamed + layer.draws * system.draw)


@dataclass(frozen=True)
class Predicted:
    """Seconds of a training step's parts. aggregations: of each layer, both directions, by transfer. dense: of each
    layer. fixed: of each layer. step: of the epoch, once. chosen: the transfer of each layer.
    """

    aggregations: Mapping[str, Sequence[float]]
    dense: Sequence[float]
    fixed: float
    step: float
    chosen: Sequence[str]

    def epoch(self, transfer: str | None = None) -> float:
        """Return the seconds of a step by one transfer, or by the chosen ones."""
        each = [transfer or name for name in self.chosen]
        moved = sum(self.aggregations[name][layer] for layer, name in enumerate(each))
        return moved + sum(self.dense) + self.fixed * len(self.dense) + self.step


def epoch(system: System, forward: Traffic, backward: Traffic, layers: Sequence[Layer]) -> Predicted:
    """Estimate a training step of the slowest rank, and choose the transfer of each layer as a job would."""
    names = transfers(system, len(forward.ranks))
    found: dict[str, list[float]] = {name: [] for name in names}
    for layer in layers:
        ahead = aggregation(system, forward, layer.forward)
        back = aggregation(system, backward, layer.backward)
        anew = cold(system, forward, layer.forward) + cold(system, backward, layer.backward)
        for name in names:
            found[name].append(ahead[name] + back[name] + anew)
    rows = max((each.rows for each in forward.ranks), default=0)
    return Predicted(
        aggregations=found,
        dense=[dense(system, rows, layer) for layer in layers],
        fixed=system.layer,
        step=system.step,
        chosen=choose_each(found),
    )
