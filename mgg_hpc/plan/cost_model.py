"""Estimate the time of each transfer from counts and measured costs, and choose among direct, get and halo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRANSFERS = ("direct", "get", "halo")
WORTH = 0.1  # of the time for remote rows: what a choice for each layer must save


@dataclass(frozen=True)
class RowCost:
    """Seconds that a remote row takes beyond a local one: ``row`` each, and ``byte`` for each of its bytes."""

    row: float
    byte: float

    def of(self, rows: int, row_bytes: int) -> float:
        """Return the seconds of ``rows`` rows of ``row_bytes`` bytes."""
        return rows * (self.row + self.byte * row_bytes)


def cold_reads(uses: NDArray[np.integer], held: int) -> int:
    """Return the number of reads that miss a cache of the ``held`` most used rows: one of each, all of the others.

    uses: [H], how many edges take each remote row.
    """
    if held <= 0:
        return int(uses.sum())
    if held >= len(uses):
        return int(np.count_nonzero(uses))
    return held + int(np.partition(uses, len(uses) - held)[: len(uses) - held].sum())


def seconds(
    costs: Mapping[str, RowCost], uses: NDArray[np.integer], cache_bytes: int, row_bytes: Sequence[int]
) -> dict[str, list[float]]:
    """Return the seconds in which each transfer of ``costs`` brings an aggregation's rows, for each size (0: none).

    get moves a row for each remote edge; direct too, but costs are those of rows that no cache holds, and graphs
    have rows that many edges take. A halo moves each distinct remote row once. uses: [H], edges of each of those.
    """
    total = int(uses.sum())

    def moved(name: str, size: int) -> int:
        if name == "direct":
            return cold_reads(uses, cache_bytes // size)
        return total if name == "get" else len(uses)

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
