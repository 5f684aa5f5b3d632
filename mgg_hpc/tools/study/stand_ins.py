"""Backends that exchange rows as other systems do, while a job trains on them. They run on CPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from ...plan.workload import Plan
from ...runtime.backends.arguments import Rows
from ...runtime.backends.host.components import aligned_zeros
from ...runtime.backends.host.kernels import HostBackend


class StandIn:
    """A backend that aggregates in another way than the one that it stands in front of, which does all else."""

    def __init__(self, backend: HostBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Bulk(StandIn):
    """All remote rows of a halo arrive, then all are summed (ROC, DGCL)."""

    def aggregate(self, plan: Plan, op: str, reduce: str, src: Rows, out: Any, **more: Any) -> None:
        """See Backend.aggregate."""
        self._backend.transfer_only(plan, src)
        self._backend.aggregate(plan, op, reduce, src, out, arrived=True, **more)


class AllGather(StandIn):
    """Every rank gets the rows of all others by MPI, and sums then (NCCL's whole partitions).

    received_bytes: of other ranks' rows, since the beginning.
    """

    def __init__(self, backend: HostBackend, comm: Any) -> None:
        super().__init__(backend)
        self._comm, self._all = comm, aligned_zeros(0)
        self.received_bytes = 0

    def publish(self, rows: Rows) -> None:
        """See Backend.publish: no rank reads another's rows."""

    def aggregate(self, plan: Plan, op: str, reduce: str, src: Rows, out: Any, **more: Any) -> None:
        """See Backend.aggregate; over a plan that reads rows through pointers, which lead to the copies."""
        sizes = src.counts * src.format.row_bytes
        if len(self._all) < sizes.sum():
            self._all = aligned_zeros(int(sizes.sum()))
        mpi: Any = sys.modules["mpi4py.MPI"]
        mine = mpi.buffer.fromaddress(int(src.addresses[src.rank]), int(sizes[src.rank]))
        self._comm.Allgatherv(mine, [self._all, sizes, mpi.BYTE])
        self.received_bytes += int(sizes.sum() - sizes[src.rank])
        first = np.cumsum(sizes) - sizes
        copies = replace(src, addresses=(self._all.ctypes.data + first).astype(np.uint64))
        self._backend.aggregate(plan, op, reduce, copies, out, **more)
