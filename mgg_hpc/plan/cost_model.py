"""Estimate times from counts and measured costs: of transfers, aggregations, layers and epochs; choose transfers.

One model for all that is estimated, linear in its costs. A running job chooses its transfers by what remote rows take
beyond local ones (`seconds`, `choose_each`); `mgg model` adds what does not depend on the choice: sums, products and
fixed costs (`System`, `aggregation`, `epoch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from .counts import RankCounts, Traffic

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

    def slower(self, times: float) -> RowCost:
        """Return ``times`` the cost."""
        return replace(self, row=times * self.row, byte=times * self.byte)


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


NOTHING = RowCost(0.0, 0.0)


@dataclass(frozen=True)
class System:
    """Costs of the work of each rank of a job, and of moving rows between ranks.

    ranks_a_node: number of ranks that reach each other's rows through pointers. edge: cost of reading and adding a
    source row that a cache holds; miss: what it takes beyond that where no cache does. segment: cost of beginning and
    storing a segment. operation: seconds of a floating-point operation of products. byte: of a byte that passes over
    rows move. layer: fixed seconds of a layer, forward and backward. within, between: cost of a remote row beyond that
    of a local one, by transfer, from ranks of the same node and of others. fixed: seconds of an aggregation that moves
    nothing, with its barrier, by transfer. message: seconds for each message to another node. cache_bytes: size of the
    cache for rows. hides: whether transfers overlap with the sums. halo_rounds: number of rounds of a halo, or None
    where its size decides.
    """

    name: str
    ranks_a_node: Annotated[int, msgspec.Meta(ge=1)]
    edge: RowCost = NOTHING
    miss: RowCost = NOTHING
    segment: RowCost = NOTHING
    operation: float = 0.0
    byte: float = 0.0
    layer: float = 0.0
    within: Mapping[str, RowCost] = field(default_factory=lambda: dict.fromkeys(TRANSFERS, NOTHING))
    between: Mapping[str, RowCost] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(TRANSFERS, 0.0))
    message: float = 0.0
    cache_bytes: int = 0
    hides: bool = False
    halo_rounds: int | None = None

    def slower(self, times: float) -> System:
        """Return the same system, where the work of a rank takes ``times`` as long, and moving rows as long as here."""
        return replace(
            self,
            edge=self.edge.slower(times),
            miss=self.miss.slower(times),
            segment=self.segment.slower(times),
            operation=times * self.operation,
            byte=times * self.byte,
            layer=times * self.layer,
        )


@dataclass(frozen=True)
class Layer:
    """Work of a layer in a training step. forward, backward: bytes of the rows that it exchanges, 0 for none.

    operations: of its products in both directions, for each row. streamed: bytes that passes over rows move, for each.
    """

    forward: int
    backward: int
    operations: float = 0.0
    streamed: float = 0.0


def transfers(system: System, ranks: int) -> list[str]:
    """Return the transfers that a job of so many ranks has there: pointers end at the node."""
    far = ranks > system.ranks_a_node
    return [name for name in TRANSFERS if name in system.within and (not far or name in system.between)]


def sums(system: System, each: RankCounts, row_bytes: int, transfer: str) -> float:
    """Return the seconds of a rank's sums over rows that it can read."""
    uses, rows = np.concatenate([each.local_uses, each.uses], axis=1)
    return (
        system.segment.of(each.segments[transfer], row_bytes)
        + system.edge.of(int(each.edges.sum()), row_bytes)
        + system.miss.of(cold_reads(uses, system.cache_bytes // row_bytes, rows), row_bytes)
    )


def aggregation(system: System, traffic: Traffic, row_bytes: int) -> dict[str, float]:
    """Return the seconds of an aggregation on the slowest rank, by transfer; 0 for rows of no bytes."""
    slowest = dict.fromkeys(transfers(system, len(traffic.ranks)), 0.0)
    if not row_bytes:
        return slowest
    far_edges, far_rows = (each.tolist() for each in traffic.between(system.ranks_a_node))
    messages = traffic.messages("halo", row_bytes).tolist()
    for rank, each in enumerate(traffic.ranks):
        near = seconds(system.within, each.uses[0], system.cache_bytes, [row_bytes], each.uses[1])
        for name in slowest:
            far, total = far_edges[rank], each.remote_edges
            if name == "halo":
                far, total = far_rows[rank], each.halo_rows
            share = far / max(1, total)
            moved = near[name][0] * (1 - share)
            if far:
                moved += system.between[name].of(far, row_bytes)
                moved += system.message * messages[rank] * share if name == "halo" else 0.0
            summed = sums(system, each, row_bytes, name)
            both = max(summed, moved) if system.hides else summed + moved
            slowest[name] = max(slowest[name], both)
    return {name: system.fixed[name] + both for name, both in slowest.items()}


def dense(system: System, rows: int, layer: Layer) -> float:
    """Return the seconds of a layer's other work for so many rows: products, and passes over rows."""
    return rows * (layer.operations * system.operation + layer.streamed * system.byte)


@dataclass(frozen=True)
class Predicted:
    """Seconds of a training step's parts. aggregations: of each layer, both directions, by transfer. dense: of each
    layer. fixed: of each layer. chosen: the transfer of each layer.
    """

    aggregations: Mapping[str, Sequence[float]]
    dense: Sequence[float]
    fixed: float
    chosen: Sequence[str]

    def epoch(self, transfer: str | None = None) -> float:
        """Return the seconds of a step by one transfer, or by the chosen ones."""
        each = [transfer or name for name in self.chosen]
        moved = sum(self.aggregations[name][layer] for layer, name in enumerate(each))
        return moved + sum(self.dense) + self.fixed * len(self.dense)


def epoch(system: System, forward: Traffic, backward: Traffic, layers: Sequence[Layer]) -> Predicted:
    """Estimate a training step of the slowest rank, and choose the transfer of each layer as a job would."""
    found: dict[str, list[float]] = {name: [] for name in transfers(system, len(forward.ranks))}
    for layer in layers:
        ahead = aggregation(system, forward, layer.forward)
        back = aggregation(system, backward, layer.backward)
        for name, each in found.items():
            each.append(ahead[name] + back[name])
    rows = max((each.rows for each in forward.ranks), default=0)
    work = [dense(system, rows, layer) for layer in layers]
    return Predicted(found, work, system.layer, choose_each(found))
