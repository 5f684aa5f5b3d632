"""The seam: everything above it runs on any backend, everything below it exists once per backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...plan.layout import RowFormat
from ...plan.workload import Plan

REDUCTIONS = ("sum", "mean", "max")
BY_WIDTH = -1  # Geometry.dist: as many rows ahead as take 8 KiB


@dataclass(frozen=True)
class Geometry:
    """How a schedule cuts the work (MGG, OSDI '23, sections 4.1 and 5.1).

    On a CPU a block of wpb * ps edges is claimed by one thread, and rows are prefetched ``dist`` edges ahead (or
    BY_WIDTH).

    far_ps: ps of rows that no pointer reaches, which are fetched in smaller partitions (section 4.1's note on several
    machines), or None for ps.
    """

    ps: int
    dist: int
    wpb: int
    far_ps: int | None = None


@dataclass(frozen=True)
class Epilogue:
    """Operations on a destination's sum before it is stored: scale it, add the bias, apply ReLU.

    scale: [n] or None. bias: [dim] or None. Both of the rows' dtype.
    """

    scale: Any = None
    bias: Any = None
    relu: bool = False


@dataclass(frozen=True)
class RngKey:
    """Key of dropout's random draws beside node and column: seed, epoch, and a stream for each place in a model.

    epoch_at: int32 [1] on the backend's device that holds the epoch instead, which CUDA graphs read at each replay, or
    None. Host backends never get one.
    """

    p: float
    seed: int
    epoch: int
    stream: int
    epoch_at: Any = None


@dataclass
class Rows:
    """Rows of all PEs in one format. This rank's are ``local``; kernels read the others'.

    addresses: uint64 [P], address of each PE's row 0 in this process's address space, 0 where it is not reachable.
    counts: int64 [P], number of rows of each PE.
    buffer: uint8, this rank's storage: a NumPy array, or a tensor on a GPU. It may be larger than the rows.
    symmetric: whether peers can read them.
    """

    format: RowFormat
    addresses: NDArray[np.uint64]
    counts: NDArray[np.int64]
    buffer: Any
    rank: int
    symmetric: bool

    @property
    def local(self) -> Any:
        """This rank's rows, [count, dim], in place: row i starts ``stride`` values after row i - 1."""
        count, format = int(self.counts[self.rank]), self.format
        dtype: Any = format.dtype
        if not isinstance(self.buffer, np.ndarray):
            import torch

            dtype = getattr(torch, dtype.name)
        flat = self.buffer[: count * format.row_bytes].view(dtype)
        return flat.reshape(count, format.stride)[:, : format.dim]

    def shaped(self, dim: int, counts: NDArray[np.int64] | None = None) -> Rows:
        """Return the same storage as rows of another width.

        counts: int64 [P], other numbers of rows. [default: the same] Raises ValueError where such rows do not fit.
        """
        format, counts = RowFormat(self.format.dtype, dim), self.counts if counts is None else counts
        if int(counts[self.rank]) * format.row_bytes > len(self.buffer):
            raise ValueError(f"rows of width {dim} do not fit storage made for width {self.format.dim}")
        return Rows(format, self.addresses, counts, self.buffer, self.rank, self.symmetric)


@dataclass
class Meter:
    """Cost of aggregations over symmetric rows since the last reset.

    seconds: of calls that have ended. local_bytes, remote_bytes: of rows read from this rank and from others, without
    padding. later: functions that return the seconds of calls that may still run, once those have ended.
    """

    seconds: float = 0.0
    local_bytes: int = 0
    remote_bytes: int = 0
    remote_rows: int = 0
    later: list[Callable[[], float]] = field(default_factory=list)

    def taken(self) -> Meter:
        """Return a copy of the counts, and reset them."""
        found = replace(self)
        self.seconds, self.local_bytes, self.remote_bytes, self.remote_rows = 0.0, 0, 0, 0
        self.later = []
        return found

    def add(self, other: Meter) -> None:
        """Add the other meter's byte and row counts, but not its time."""
        self.local_bytes += other.local_bytes
        self.remote_bytes += other.remote_bytes
        self.remote_rows += other.remote_rows

    def settle(self) -> None:
        """Add the seconds of the calls in ``later``, all of which have ended."""
        self.seconds += sum(each() for each in self.later)
        self.later = []


@dataclass
class Options:
    """Arguments of every backend."""

    geometry: Geometry
    threads: int = 1
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True)
class Request:
    """Options that a job gives a backend. ps, dist, wpb: None for the backend's default.

    widest: format of the widest rows that will be summed.
    """

    ps: int | None = None
    dist: int | None = None
    wpb: int | None = None
    threads: int = 1
    widest: RowFormat = field(default_factory=lambda: RowFormat(np.dtype(np.float32), 1))

    def options(self, default: Geometry) -> Options:
        """Return the options of a backend with these defaults."""
        geometry = Geometry(
            default.ps if self.ps is None else self.ps,
            default.dist if self.dist is None else self.dist,
            default.wpb if self.wpb is None else self.wpb,
        )
        return Options(geometry, self.threads)


@dataclass(frozen=True)
class Phases:
    """An aggregation in two calls: its transfer without its sums, and its sums without the transfer."""

    transfer_only: Callable[[], None]
    compute_only: Callable[[], None]


def check_operation(op: str, reduce: str, edge: Any) -> None:
    """Raise ValueError for an operation that `Backend.aggregate` does not have, or a "mul" without edge values."""
    if reduce not in REDUCTIONS or op not in ("copy", "mul") or (op == "mul") != (edge is not None):
        raise ValueError(f"aggregate: no such operation: op={op!r}, reduce={reduce!r}")


class Recording(Protocol):
    """Recorded launches, which can be replayed."""

    def replay(self) -> None:
        """Launch everything again, on the current stream."""

    def reset(self) -> None:
        """Release the recording. NCCL does not end before that."""


class Backend(Protocol):
    """Storage and kernels of one rank."""

    name: str
    rank: int
    size: int
    meter: Meter
    geometry: Geometry
    threads: int

    @property
    def device(self) -> str:
        """torch's name of the device of the arrays that calls take: "cpu" for NumPy arrays, else they are tensors."""

    @property
    def reaches_peers(self) -> bool:
        """Whether every rank reads every other's symmetric rows through pointers. The same on all ranks."""

    @property
    def edge_gets(self) -> bool:
        """Whether EdgeKernels take the transfer "get" for rows that no pointer reaches."""

    @property
    def records(self) -> bool:
        """Whether what this rank launches can be recorded in a CUDA graph. The same on all ranks."""

    @property
    def reads_epoch(self) -> bool:
        """Whether dropout finds its epoch in the device's memory (`RngKey.epoch_at`)."""

    @property
    def halo_rounds(self) -> int | None:
        """Number of rounds per halo exchange, or None to choose it from the halo's size."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache that keeps remote rows which are read through pointers."""

    @property
    def probe_rows(self) -> int:
        """Number of rows per rank in a measurement of costs (`runtime.probe`)."""

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """Allocate storage for ``counts[p]`` rows on each PE p, zero at first.

        Symmetric rows can be read by every PE, others only here. Collective where symmetric.
        """

    def release(self, rows: Rows) -> None:
        """Free symmetric rows before `close`, where the memory can be used again. Collective.

        Neither the rows nor arrays over them may be used afterwards.
        """

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """Reserve ``nbytes`` of symmetric memory on each rank, before any of it is allocated. Collective.

        largest: the rank that needs that much, which an error names. Raises InputError, the same on all
        ranks, where the memory of a node or a GPU cannot hold it.
        """

    def free_bytes(self) -> int | None:
        """Return the free bytes of this rank's GPU, or of its part where several ranks share it; None on CPUs."""

    def reserved_bytes(self) -> int:
        """Return the bytes of symmetric memory that are reserved and not allocated yet; they are not free."""

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """Allocate what aggregations over ``plan`` keep, for rows up to this format. Collective; before `aggregate`.

        It is called again for wider rows, after all ranks have finished their sums over the plan.
        """

    def padded(self, count: int, format: RowFormat) -> Any:
        """Allocate private rows [count, dim] in the layout in which kernels store rows."""

    def finish(self) -> None:
        """Wait for everything that this rank has launched."""

    def stamp(self) -> Any:
        """Return a time stamp behind everything that this rank has launched."""

    def since(self, stamp: Any) -> Callable[[], float]:
        """Return a function for the seconds from ``stamp`` to now, to be called when earlier launches have ended."""

    def record(self, launch: Callable[[], None]) -> Recording:
        """Record what ``launch`` launches, without running it. Raises RuntimeError for what cannot be recorded."""

    def sum_over_ranks(self, values: Any) -> None:
        """Replace float values [n] by their sums over all ranks, the same bits on each of them. Collective."""

    def publish(self, rows: Rows) -> None:
        """Make this rank's written rows readable by its peers, and theirs here: the layer's one barrier.

        With two Rows used in turn no second barrier is needed: a rank that arrives here has finished reading the Rows
        published before, so those may be written again.
        """

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
    ) -> None:
        """out[v] = epilogue(sum over edges u -> v of message(u, v)).

        op: "copy" takes the source rows, "mul" the source rows times ``edge``, an [E] array in the plan's order.
        reduce: "sum", "mean" (divided by the number of edges) or "max"; without edges all give 0. out:
        [destinations, dim], of the rows' dtype, padded rows (``padded``). Half rows are summed in float32, and
        ``edge`` and the epilogue's arrays are float32 then; else they are of the rows' dtype. Collective with
        "halo".
        """

    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        """Return the transfer and the sums of an `aggregate` as calls of their own, to be timed. The plan is prepared.

        ``transfer_only`` is called first. Both are collective where `aggregate` is. Rows that are read on their owners
        cannot be fetched without being summed, so ``transfer_only`` sums those. ``compute_only`` sums other rows where
        the transfer leaves none here. Takes private memory for rows and a copy of the plan while they are kept.
        """

    def dropout(self, x: Any, out: Any, ids: Any, draw: RngKey) -> None:
        """out[i, c] = x[i, c] / (1 - p) where the draw of (ids[i], c) keeps it, else 0; x, out [n, F] of one dtype.

        ids: int64 [n].
        """

    def dropout_csr(
        self,
        indptr: Any,
        indices: Any,
        values: Any,
        out: Any,
        ids: Any,
        draw: RngKey,
    ) -> None:
        """The same for the stored values [nnz] of CSR rows: indptr int64 [n + 1], columns ``indices`` int32 [nnz]."""

    def close(self) -> None:
        """Give back all symmetric storage. Collective."""
