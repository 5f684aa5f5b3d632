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
BY_WIDTH = -1  # Geometry.dist: few wide rows ahead, or many narrow ones, 8 KiB of them


@dataclass(frozen=True)
class Geometry:
    """How a schedule cuts the work (MGG, OSDI '23, sections 4.1 and 5.1).

    On a CPU a block of wpb * ps edges is claimed by one thread, and rows are prefetched ``dist`` edges ahead (or
    BY_WIDTH).

    far_ps: the same as ps for rows that no pointer reaches, where they are got in smaller partitions (section 4.1's
    note on several machines); None: ps.
    """

    ps: int
    dist: int
    wpb: int
    far_ps: int | None = None


@dataclass(frozen=True)
class Epilogue:
    """What happens to a destination's sum before it is stored: scale it, add the bias, apply ReLU.

    scale: [n] or None. bias: [dim] or None. Both of the rows' dtype.
    """

    scale: Any = None
    bias: Any = None
    relu: bool = False


@dataclass(frozen=True)
class Draw:
    """What dropout draws depends on beside node and column: seed, epoch, and a stream for each place in a model.

    epoch_at: int32 [1] on the backend's device that holds the epoch instead; what CUDA graphs read anew at each
    replay. Host backends never get one.
    """

    p: float
    seed: int
    epoch: int
    stream: int
    epoch_at: Any = None


@dataclass
class Rows:
    """Rows of every PE in one format: this rank's are ``local``, the others' are read by kernels.

    addresses: uint64 [P], where each PE's row 0 lies in this process's address space (0: not reachable).
    counts: int64 [P], rows of each PE.
    buffer: uint8, this rank's storage, a NumPy array or, on a GPU, a tensor; it may be larger than the rows.
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
        """The same storage as rows of another width, where that fits. counts: how many, where that changes too.

        Raises ValueError where it does not.
        """
        format, counts = RowFormat(self.format.dtype, dim), self.counts if counts is None else counts
        if int(counts[self.rank]) * format.row_bytes > len(self.buffer):
            raise ValueError(f"rows of width {dim} do not fit storage made for width {self.format.dim}")
        return Rows(format, self.addresses, counts, self.buffer, self.rank, self.symmetric)


@dataclass
class Meter:
    """What aggregations over symmetric rows cost since the last reset.

    Seconds, and bytes of the rows read from this rank and from others (without padding). later: seconds of calls that
    may still run, each known when it has ended.
    """

    seconds: float = 0.0
    local_bytes: int = 0
    remote_bytes: int = 0
    remote_rows: int = 0
    later: list[Callable[[], float]] = field(default_factory=list)

    def taken(self) -> Meter:
        """What was counted so far; counting starts again from nothing."""
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
        """Add up the seconds of calls, all of which have ended."""
        self.seconds += sum(each() for each in self.later)
        self.later = []


@dataclass
class Options:
    """What every backend is built from."""

    geometry: Geometry
    threads: int = 1
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True)
class Request:
    """What a job asks of a backend. ps, dist, wpb: None for what the backend takes where nobody asks for others.

    widest: the widest rows that will be summed.
    """

    ps: int | None = None
    dist: int | None = None
    wpb: int | None = None
    threads: int = 1
    widest: RowFormat = field(default_factory=lambda: RowFormat(np.dtype(np.float32), 1))

    def options(self, default: Geometry) -> Options:
        """With a backend's defaults."""
        geometry = Geometry(
            default.ps if self.ps is None else self.ps,
            default.dist if self.dist is None else self.dist,
            default.wpb if self.wpb is None else self.wpb,
        )
        return Options(geometry, self.threads)


@dataclass(frozen=True)
class Parts:
    """An aggregation in two calls: its transfer without its sums, and its sums without the transfer."""

    move: Callable[[], None]
    add: Callable[[], None]


def check_operation(op: str, reduce: str, edge: Any) -> None:
    """Raises ValueError for what `Backend.aggregate` does not know, or a "mul" without edges."""
    if reduce not in REDUCTIONS or op not in ("copy", "mul") or (op == "mul") != (edge is not None):
        raise ValueError(f"aggregate: no such operation: op={op!r}, reduce={reduce!r}")


class Recording(Protocol):
    """What was launched, to be launched again."""

    def replay(self) -> None:
        """On the current stream."""

    def reset(self) -> None:
        """Let go of it; NCCL does not end before."""


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
        """Where the arrays lie that calls take, as torch names it: "cpu" for NumPy's, else they are tensors."""

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
        """Whether dropout finds its epoch in the device's memory (`Draw.epoch_at`)."""

    @property
    def halo_rounds(self) -> int | None:
        """Number of rounds per halo exchange, or None to choose it from the halo's size."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache that keeps remote rows which are read through pointers."""

    @property
    def probe_rows(self) -> int:
        """Rows of each rank that a measurement of costs takes (`runtime.probe`)."""

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """Storage for ``counts[p]`` rows on each PE p; symmetric rows can be read by every PE, others only here.

        Collective where symmetric. Rows start as zeros.
        """

    def release(self, rows: Rows) -> None:
        """Give symmetric rows back before `close`, where the memory can be used again. Collective.

        Nobody uses them any more, nor arrays over them.
        """

    def reserve(self, nbytes: int, largest: int = 0) -> None:
        """Make room for ``nbytes`` of symmetric memory on each rank, before any of it is allocated. Collective.

        largest: the rank that needs as much, for what is said where there is less. Raises InputError, the same on all
        ranks, where the memory of a node or a GPU cannot hold it.
        """

    def free_bytes(self) -> int | None:
        """Free memory of this rank's GPU, as its part where several ranks share it; None on CPUs."""

    def reserved_bytes(self) -> int:
        """Symmetric memory that is reserved, and not allocated yet; it is not free any more."""

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """Make what aggregations over ``plan`` keep, for rows up to this format. Collective; before `aggregate`.

        Again for wider rows, when all ranks have ended what they summed over it.
        """

    def padded(self, count: int, format: RowFormat) -> Any:
        """Private rows [count, dim] laid out as kernels store them."""

    def finish(self) -> None:
        """Wait for what this rank has launched."""

    def stamp(self) -> Any:
        """This point among what this rank has launched."""

    def since(self, stamp: Any) -> Callable[[], float]:
        """Seconds from there to here, known when what was launched before has ended."""

    def record(self, launch: Callable[[], None]) -> Recording:
        """What ``launch`` launches, without running it. Raises RuntimeError for what cannot be recorded."""

    def sum_over_ranks(self, values: Any) -> None:
        """Replace float values [n] by their sums over all ranks, the same bits on each of them. Collective."""

    def publish(self, rows: Rows) -> None:
        """This rank's written rows become readable by its peers, and theirs here: the layer's one barrier.

        With two Rows used in turn no second barrier is needed: whoever arrives here has finished reading the
        Rows published before, so those may be written again.
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

    def apart(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Parts:
        """What this sum's `aggregate` does, in parts, to be timed. Of a prepared plan; the first ``move`` comes first.

        Both are collective where `aggregate` is. Nobody reads a row on its owner without summing it: what is read
        there, ``move`` sums too. The sums are of other rows where the transfer leaves none here. Takes private memory
        for rows and a copy of the plan, for as long as the parts are kept.
        """

    def dropout(self, x: Any, out: Any, ids: Any, draw: Draw) -> None:
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
        draw: Draw,
    ) -> None:
        """The same for the stored values [nnz] of CSR rows: indptr int64 [n + 1], columns ``indices`` int32 [nnz]."""

    def close(self) -> None:
        """Give back all symmetric storage. Collective."""
