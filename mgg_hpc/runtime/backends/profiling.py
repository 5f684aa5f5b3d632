"""Measurements for profiles: the times of single exchanges, and an aggregation in parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plan.overlap import held_here, transfer_only
from ...plan.workload import Plan
from .arguments import Rows


@dataclass(frozen=True)
class KernelStamps:
    """Times of one halo kernel, int64, in nanoseconds of its GPU's clock, whose zero is arbitrary.

    began, ended: of the first and the last CUDA block. to: int32 [K], the rank that each chunk was pushed to. pushed:
    [K, 2], when packing began and when the chunk's signal was sent. owners: int32 [A], the rank that each chunk came
    from. seen: [A], when the first worker saw that the chunk was there.
    """

    began: int
    ended: int
    to: NDArray[np.int32]
    pushed: NDArray[np.int64]
    owners: NDArray[np.int32]
    seen: NDArray[np.int64]


@dataclass(frozen=True)
class Phases:
    """An aggregation in two calls: its transfer without its sums, and its sums without the transfer."""

    transfer_only: Callable[[], None]
    compute_only: Callable[[], None]


class Profiling:
    """Times of a backend's exchanges, kept between `begin` and `taken`, and aggregations in parts.

    exchanges: exchanges that the host drives, as (plan, `HaloExchange.stamps`), or None while none are kept. kernels:
    exchanges that kernels drive, each a function that waits for the kernel and returns its times, or None.
    """

    exchanges: list[tuple[Plan, list[float]]] | None = None
    kernels: list[Callable[[], KernelStamps]] | None = None

    def __init__(self, backend: Any) -> None:
        self._backend = weakref.proxy(backend)

    def begin(self) -> None:
        """Keep the times of exchanges from now on."""
        self.exchanges, self.kernels = [], []

    def taken(self) -> tuple[list[tuple[Plan, list[float]]], list[KernelStamps]]:
        """Return the times kept since `begin`, exchanges and kernels, and keep none from now on."""
        exchanges, kernels = self.exchanges or [], self.kernels or []
        self.exchanges = self.kernels = None
        return exchanges, [read() for read in kernels]

    def phases(self, plan: Plan, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        """Return the transfer and the sums of an `aggregate` over a prepared plan as separate calls, to be timed.

        ``transfer_only`` is called first. Both are collective where `aggregate` is. Rows that are read on their owners
        cannot be fetched without being summed, so ``transfer_only`` sums those. ``compute_only`` sums other rows where
        the transfer leaves none here. Takes private memory for rows and a copy of the plan while they are kept.
        """
        backend = self._backend
        transfer_plan = transfer_only(plan, edges=plan.transfer != "halo")
        here, count = held_here(plan)
        counts = np.zeros(backend.collectives.size, dtype=np.int64)
        counts[backend.collectives.rank] = count
        rows = backend.rows(counts, src.format, symmetric=False)
        rows.local[:] = 1  # pages that were never written are all the same page
        moved = backend.memory.padded(transfer_plan.destinations, src.format)
        self._prepare(plan, transfer_plan, src, here, rows)
        return Phases(
            lambda: backend.aggregate(transfer_plan, "sum", src, moved),
            lambda: backend.aggregate(here, "sum", rows, out, edge=edge),
        )

    def _prepare(self, plan: Plan, transfer_plan: Plan, src: Rows, here: Plan, rows: Rows) -> None:
        """Allocate for calls over ``transfer_plan``, which moves the same rows as ``plan``, and over ``here``."""
