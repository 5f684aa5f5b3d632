"""What the CPU backends share: schedules over the native module, storage, and the meter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.layout import CHUNK, SEGMENT, RowFormat
from ....plan.overlap import moving_only
from ....plan.workload import Plan
from ... import cores, mpi
from ..base import Epilogue, Options, Phases, Recording, RngKey, Rows, check_operation
from ..phases import separate
from .edges import HostEdges


@dataclass(frozen=True)
class _Exchange:
    """The native halo exchange of a plan, and the symmetric memory that it uses."""

    native: Any
    staging: Rows
    signals: Rows


def load() -> Any:
    """The native module, checked to agree with this package about struct sizes.

    Raises InputError if it is not built, or was built from other sources.
    """
    try:
        from .... import _host
    except ImportError as error:
        raise InputError(
            f"the native module mgg_hpc._host does not load ({error}); install with `pip install .`"
        ) from error
    if _host.struct_sizes() != [CHUNK.itemsize, SEGMENT.itemsize]:
        raise InputError(
            "the native module mgg_hpc._host is of another version; install again with `pip install .`"
        )
    try:
        _host.instruction_set()
    except ValueError as error:
        raise InputError(str(error)) from error
    return _host


def aligned_zeros(size: int) -> NDArray[np.uint8]:
    """``size`` zero bytes that start on a multiple of 64."""
    whole = np.zeros(size + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def padded(rows: int, format: RowFormat) -> NDArray[Any]:
    """Uninitialised private rows [rows, dim] laid out as kernels store them."""
    return (
        aligned_zeros(rows * format.row_bytes)
        .view(format.dtype)
        .reshape(rows, format.stride)[:, : format.dim]
    )


class HostBackend(HostEdges):
    """Kernels over rows that this process holds, reads through pointers, fetches, or is sent.

    Subclasses say where symmetric rows live, and by which transport they move.
    """

    name = "host"
    device = "cpu"
    reaches_peers = edge_gets = True
    records = reads_epoch = False
    halo_rounds: int | None = None
    probe_rows = 16384  # more than a core's caches and its page table's hold

    def __init__(self, rank: int, size: int, options: Options, comm: Any = None) -> None:
        """comm: of all ranks; None where one process plays them."""
        self.rank, self.size, self._comm = rank, size, comm
        self.meter, self.geometry, self.threads = options.meter, options.geometry, options.threads
        self._host: Any = load()
        self._transport: Any = None  # subclasses make it
        self._schedules: WeakKeyDictionary[Plan, Any] = WeakKeyDictionary()
        self._exchanges: WeakKeyDictionary[Plan, Any] = WeakKeyDictionary()

    @property
    def cache_bytes(self) -> int:
        """See Backend.cache_bytes: beside this rank's own rows, as many again, and indices and sums."""
        return cores.cache_bytes() // 4

    def padded(self, count: int, format: RowFormat) -> NDArray[Any]:
        """See Backend.padded."""
        return padded(count, format)

    def finish(self) -> None:
        """See Backend.finish; calls return when they are done."""

    def free_bytes(self) -> None:
        """See Backend.free_bytes."""

    def reserved_bytes(self) -> int:
        """See Backend.reserved_bytes."""
        return 0

    def stamp(self) -> float:
        """See Backend.stamp."""
        return time.perf_counter()

    def since(self, stamp: float) -> Callable[[], float]:
        """See Backend.since; calls return when they are done."""
        taken = time.perf_counter() - stamp
        return lambda: taken

    def record(self, launch: Callable[[], None]) -> Recording:
        """See Backend.record."""
        raise RuntimeError("CPUs record nothing")

    def sum_over_ranks(self, values: NDArray[Any]) -> None:
        """See Backend.sum_over_ranks; in rank order."""
        if self._comm is not None:
            mpi.sum_in_rank_order(self._comm, values)

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """See Backend.reserve; nothing to do where memory is found as it is asked for."""

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """See Backend.rows; private rows here, symmetric ones in subclasses."""
        if symmetric:
            return self._symmetric(counts, format)
        buffer = aligned_zeros(int(counts[self.rank]) * format.row_bytes)
        addresses = np.zeros(self.size, dtype=np.uint64)
        addresses[self.rank] = buffer.ctypes.data
        own = np.zeros(self.size, dtype=np.int64)
        own[self.rank] = counts[self.rank]
        return Rows(format, addresses, own, buffer, self.rank, False)

    def _symmetric(self, counts: NDArray[np.int64], format: RowFormat) -> Rows:
        raise TypeError(f"{self.name} has no symmetric storage")

    def release(self, rows: Rows) -> None:
        """See Backend.release; subclasses give the memory back."""
        rows.addresses[:] = 0  # transports look rows up there

    def close(self) -> None:
        """See Backend.close; subclasses give the memory back.

        Lets go of everything native: torch keeps what tensors of a program's end were made by, and so this backend.
        """
        self._schedules.clear()
        self._exchanges.clear()
        self._host = self._transport = None

    @property
    def transport_address(self) -> int:
        """Where this backend's mgg::Transport lies (cuda/runtime/transport_host.h)."""
        raise TypeError(f"{self.name} has no transport")

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """See Backend.prepare."""
        lists = plan.lists
        if plan.transfer != "halo" or lists is None:
            return
        narrower = self._exchanges.get(plan)
        if narrower is not None:
            if widest.row_bytes <= narrower.staging.format.row_bytes:
                return
            del self._exchanges[plan]
            self.release(narrower.staging)
            self.release(narrower.signals)
        everywhere = np.full(self.size, lists.capacity, dtype=np.int64)
        # Two stagings, used in turn; signals are rows of 16 bytes, two to a row.
        staging = self.rows(2 * everywhere, widest, symmetric=True)
        words = self._host.signal_count(lists.rounds, self.size)
        signals = self.rows(
            np.full(self.size, -(-words // 2)), RowFormat(np.dtype(np.uint64), 2), symmetric=True
        )
        exchange = self._host.HaloExchange(
            self.rank,
            self.size,
            lists.rounds,
            lists.send_rows,
            lists.send_counts.reshape(-1),
            lists.send_places.reshape(-1),
            lists.receive_counts.reshape(-1),
            int(staging.addresses[self.rank]),
            lists.capacity * widest.row_bytes,
            int(signals.addresses[self.rank]),
            self.transport_address,
        )
        self._exchanges[plan] = _Exchange(exchange, staging, signals)

    def schedule(self, plan: Plan) -> Any:
        """The native schedule of a plan, made once."""
        made = self._schedules.get(plan)
        if made is None:
            made = self._host.Schedule(
                plan.chunks.view(np.uint8),
                plan.segments.view(np.uint8),
                plan.indices,
                plan.destinations,
                self.geometry.ps,
                self.geometry.dist,
                self.geometry.wpb,
                gets=plan.transfer == "get",
            )
            self._schedules[plan] = made
        return made

    def aggregate(
        self,
        plan: Plan,
        op: str,
        reduce: str,
        src: Rows,
        out: Any,
        *,
        edge: Any = None,
        epilogue: Epilogue | None = None,
        arrived: bool = False,
    ) -> None:
        """See Backend.aggregate. arrived: sum what `transfer_only` brought, and exchange nothing."""
        check_operation(op, reduce, edge)
        if tuple(out.shape) != (plan.destinations, src.format.dim) or out.dtype != src.format.dtype:
            raise ValueError(
                f"aggregate: rows of {src.format.dim} x {src.format.dtype} into {list(out.shape)} of {out.dtype}, "
                f"for {plan.destinations} destinations"
            )
        epilogue = epilogue or Epilogue()
        kernel = getattr(self.schedule(plan), f"aggregate_{src.format.dtype.name}")
        with self._over(plan, src, arrived) as (addresses, counts, rank, threads, *moves):
            kernel(
                addresses,
                counts,
                rank,
                edge,
                out if out.dtype.itemsize > 2 else out.view(np.uint16),
                epilogue.scale,
                epilogue.bias,
                epilogue.relu,
                reduce,
                threads,
                *moves,
            )

    @contextmanager
    def _over(self, plan: Plan, src: Rows, arrived: bool = False) -> Iterator[tuple[Any, ...]]:
        """Where rows lie and how they move, as native calls take it; the call is metered. Raises ValueError for a plan
        with rounds that is not prepared.
        """
        exchange = self._exchanges.get(plan)
        if plan.transfer == "halo" and exchange is None:
            raise ValueError("aggregate: a plan with rounds must be prepared first (Backend.prepare)")
        began = time.perf_counter()
        transport = self.transport_address if plan.transfer == "get" else 0
        native = exchange and exchange.native
        yield src.addresses, src.counts, self.rank, self.threads, native, arrived, transport
        if plan.transfer == "none":
            return
        self.meter.seconds += time.perf_counter() - began
        rows = exchange.native.take_rows_pushed() if exchange else plan.remote_edges
        row_bytes = src.format.dim * src.format.dtype.itemsize
        self.meter.local_bytes += plan.local_edges * row_bytes
        self.meter.remote_bytes += rows * row_bytes
        self.meter.remote_rows += rows

    def transfer_only(self, plan: Plan, src: Rows) -> None:
        """Exchange the halo of a prepared plan and sum nothing; `aggregate` with ``arrived`` sums it. Collective."""
        self._exchanges[plan].native.move(int(src.addresses[self.rank]), src.format.row_bytes)

    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        """See Backend.phases."""
        if plan.transfer == "halo":
            return Phases(
                lambda: self.transfer_only(plan, src),
                lambda: self.aggregate(plan, op, "sum", src, out, edge=edge, arrived=True),
            )
        return separate(self, plan, moving_only(plan, edges=True), op, src, out, edge)

    def dropout(self, x: Any, out: Any, ids: NDArray[np.int64], draw: RngKey) -> None:
        """See Backend.dropout."""
        kernel = self._host.dropout_rows
        if x.dtype.itemsize == 2:  # NumPy's exchange of arrays knows no bfloat16
            kernel = getattr(self._host, f"dropout_rows_{x.dtype.name}")
            x, out = x.view(np.uint16), out.view(np.uint16)
        kernel(x, out, ids, draw.p, draw.seed, draw.epoch, draw.stream, self.threads)

    def dropout_csr(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: Any,
        out: Any,
        ids: Any,
        draw: RngKey,
    ) -> None:
        """See Backend.dropout_csr."""
        call = (draw.p, draw.seed, draw.epoch, draw.stream, self.threads)
        self._host.dropout_csr(indptr, indices, values, out, ids, *call)


def uniform(out: NDArray[Any], low: float, high: float, seed: int, stream: int) -> None:
    """Fill ``out`` [n, F] with draws in [low, high) that depend on (seed, stream, row, column) alone.

    Initial weights are drawn here whatever the backend, so that they are the same on all of them.
    """
    load().uniform_rows(out, low, high, seed, stream)
