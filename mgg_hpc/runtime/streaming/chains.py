r"""Chains of ranks that pass chunks on, from a bandwidth tree (NGra, section 4.2).

Leaves of the tree are ranks, its root is the memory or device that chunks are loaded from, and each link has a
bandwidth. Ranks that share a link would slow each other down, so only as many of them load as the link can serve at
their speed (the paper's maximal fat tree). Each other rank follows one that loads, in a chain, and copies each chunk
from the rank before it.

              host, 40 GB/s                      loads: 0, 2
             /             \
     switch, 16 GB/s   switch, 16 GB/s           chains: 0 -> 1 and 2 -> 3
       /    \             /    \
      0      1           2      3                16 GB/s each

A tree is a table as TOML has them: ``{"gb_per_s": 40, "below": [...]}`` for a switch, or the root, and ``{"gb_per_s":
16, "rank": 0}`` for a rank; gb_per_s is the bandwidth of the link above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import InputError

COPY_BYTES = 64 << 20  # of a timed copy: more than caches hold
REPEATS = 3


def from_tree(tree: Mapping[str, Any], ranks: int) -> list[list[int]]:
    """Return the chains of a bandwidth tree of ranks 0 .. ``ranks`` - 1, each a list whose first rank loads.

    Raises InputError for a malformed tree, or one of other ranks.
    """
    found = _below(tree)
    named = sorted(rank for chain, _ in found for rank in chain)
    if named != list(range(ranks)):
        raise InputError(f"the bandwidth tree: its ranks are {named}, and there are {ranks}, from 0 on")
    return [chain for chain, _ in found]


def measured_tree(alone: float, together: float, ranks: int) -> dict[str, Any]:
    """Return the tree of ranks that share one link.

    alone: GB/s of one rank that loads alone. together: GB/s of all ranks that load at once.
    """
    leaves = [{"gb_per_s": alone, "rank": rank} for rank in range(ranks)]
    return {"gb_per_s": max(alone, together), "below": leaves}


def copy_bandwidth(comm: Any) -> tuple[float, float]:
    """Return the GB/s of a copy of host memory by one rank alone, and by all ranks at once in sum. Collective."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)

    def copied() -> float:
        fastest = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            target[:] = source
            fastest = min(fastest, time.perf_counter() - began)
        return COPY_BYTES / fastest / 1e9

    comm.Barrier()
    alone = comm.bcast(copied() if comm.rank == 0 else None)
    comm.Barrier()
    return alone, sum(comm.allgather(copied()))


def _below(node: Mapping[str, Any]) -> list[tuple[list[int], float]]:
    """Return the chains of a subtree, each with the GB/s at which its first rank loads alone."""
    if not isinstance(node, Mapping):
        raise InputError(f"the bandwidth tree: {node!r} is no table")
    speed = node.get("gb_per_s")
    if not isinstance(speed, int | float) or not 0 < speed < math.inf:
        raise InputError(f"the bandwidth tree: gb_per_s = {speed!r} is no number above 0")
    if ("rank" in node) == ("below" in node) or set(node) - {"gb_per_s", "rank", "below"}:
        raise InputError(f"the bandwidth tree: {sorted(node)}: a link has gb_per_s and either rank or below")
    if "rank" in node:
        return [([int(node["rank"])], float(speed))]
    found = [(chain, min(each, float(speed))) for child in node["below"] for chain, each in _below(child)]
    while len(found) > 1 and sum(each for _, each in found) > speed:
        # Join the two neighbours with the fewest ranks.
        sizes = [len(one) + len(other) for (one, _), (other, _) in pairwise(found)]
        at = sizes.index(min(sizes))
        (one, alone), (other, _) = found[at : at + 2]
        found[at : at + 2] = [(one + other, alone)]
    return found
