"""What each transfer costs, from counts and measured costs: the choice between direct, get and halo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRANSFERS = ("direct", "get", "halo")


@dataclass(frozen=True)
class RowCost:
    """Seconds that a row takes beyond one of this rank's own: ``row`` each, and ``byte`` for each of its bytes."""

    row: float
    byte: float

    def of(self, rows: int, row_bytes: int) -> float:
        """Seconds of ``rows`` rows of ``row_bytes`` bytes."""
        return rows * (self.row + self.byte * row_bytes)


def seconds(
    costs: Mapping[str, RowCost], remote_edges: int, halo_rows: int, row_bytes: Sequence[int]
) -> dict[str, float]:
    """Seconds for each transfer in ``costs`` to bring the rows of one aggregation of each of these sizes.

    direct and get move a row for each remote edge, a halo each distinct remote row once.
    """
    moved = {"direct": remote_edges, "get": remote_edges, "halo": halo_rows}
    return {name: sum(cost.of(moved[name], size) for size in row_bytes) for name, cost in costs.items()}


def choose(estimates: Mapping[str, float]) -> str:
    """The cheapest; between equals the one that needs least: direct, then get."""
    return min(TRANSFERS, key=lambda name: estimates.get(name, float("inf")))
