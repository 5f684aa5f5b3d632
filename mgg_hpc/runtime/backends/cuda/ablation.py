"""What the GPU's schedules are compared with."""

from __future__ import annotations

from dataclasses import dataclass

DEFERRED_BYTES = 256 << 20  # for sums that wait for more rows; with fewer, workers wait themselves


@dataclass(frozen=True)
class Ablation:
    """Schedules that MGG's are compared with (OSDI '23, section 7.2; arXiv, section 2); the defaults are MGG's.

    partition: split destinations of many edges into neighbour partitions. interleave: ask for remote rows `dist` stages
    ahead, or when they are needed. level: who gets a row, a "thread", a "warp" or a "block". bulk: sum nothing before
    all of a halo has arrived. deferred_bytes: memory for sums that wait for rows.
    """

    partition: bool = True
    interleave: bool = True
    level: str = "warp"
    bulk: bool = False
    deferred_bytes: int = DEFERRED_BYTES
