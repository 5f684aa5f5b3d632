"""The interface of backends: code that uses it runs on any backend; each backend implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plan.grid import Pass
from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ..streaming.buffer import ChunkBuffer
from ..streaming.store import Store
from .arguments import REDUCTIONS, ChunkRows, Epilogue, Geometry, Options, RngKey, Rows, TieredRows
from .edges import EdgeKernels
from .profiling import Profiling
from .sampling import SamplingKernels
from .traversal import TraversalKernels


@dataclass
class Meter:
    """Time and traffic of aggregations over symmetric rows since the last reset.

    seconds: total time of the calls that have ended. calls: the same by (plan, bytes of a row). local_bytes,
    remote_bytes: bytes of rows read from this rank and from others, without padding. remote_rows: number of the
    latter. messages: number of rows that were fetched one by one, and of packets of a halo that were pushed.
    stored_bytes: the part of remote_bytes that came from stores. loading: seconds in which chunks of stores
    were loaded. waited: seconds that the host waited for peers, in `Backend.publish` and within halo exchanges.
    later: unfinished GPU calls, as (plan, row format, elapsed()); see `settle`.
    """

    seconds: float = 0.0
    waited: float = 0.0
    calls: dict[tuple[Plan, int], float] = field(default_factory=dict)
    local_bytes: int = 0
    remote_bytes: int = 0
    remote_rows: int = 0
    messages: int = 0
    stored_bytes: int = 0
    loading: float = 0.0
    later: list[tuple[Plan, RowFormat, Callable[[], float]]] = field(default_factory=list)
    _counting: Any = field(default_factory=Lock, init=False, repr=False, compare=False)

    def took(self, plan: Plan, format: RowFormat, seconds: float) -> None:
        """Add the time of an aggregation over ``plan`` with rows of this format."""
        self.seconds += seconds
        call = plan, format.row_bytes
        self.calls[call] = self.calls.get(call, 0.0) + seconds

    def count(self, local_rows: int, remote_rows: int, format: RowFormat, messages: int) -> None:
        """Add what an aggregation has read to the counts. May be called by any thread.

        local_rows, remote_rows: number of rows, of ``format``, read from this rank and from other ranks.
        messages: number of messages that brought the remote rows.
        """
        row_bytes = format.dim * format.dtype.itemsize
        with self._counting:
            self.local_bytes += local_rows * row_bytes
            self.remote_bytes += remote_rows * row_bytes
            self.remote_rows += remote_rows
            self.messages += messages

    def count_stored(self, rows: int, format: RowFormat, loading: float) -> None:
        """Add rows of this format that were read from a store. loading: seconds that loading them took."""
        with self._counting:
            self.stored_bytes += rows * format.dim * format.dtype.itemsize
            self.loading += loading

    def taken(self) -> Meter:
        """Return a copy of this meter, and reset all counts and times to 0."""
        with self._counting:
            found = replace(self)
            vars(self).update(vars(Meter()), _counting=self._counting)
        return found

    def add(self, other: Meter) -> None:
        """Add the counts of another meter, without its times."""
        for name in ("local_bytes", "remote_bytes", "remote_rows", "messages", "stored_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def settle(self) -> None:
        """Add the times of the calls in ``later``, which must all have ended, and empty the list."""
        for plan, format, seconds in self.later:
            self.took(plan, format, seconds())
        self.later = []


@dataclass(frozen=True)
class Capabilities:
    """Properties of a backend, the same on all ranks.

    name: name in the setting run.backend and in reports.
    device: torch's name of the device whose arrays calls take. On "cpu" these are NumPy arrays, else tensors.
    reaches_peers: True if every rank reads every other's symmetric rows through pointers; final after `Memory.reserve`.
    keeps_bits: True if `Backend.retune` changes no bit of a sum.
    halo_rounds: number of rounds per halo exchange, or None to choose it from the halo's size.
    """

    name: str
    device: str = "cpu"
    reaches_peers: bool = True
    keeps_bits: bool = True
    halo_rounds: int | None = None


class Recording(ABC):
    """Recorded launches, as a CUDA graph, which can be replayed."""

    @abstractmethod
    def replay(self) -> None:
        """Launch everything again, on the current stream."""

    @abstractmethod
    def reset(self) -> None:
        """Release the recording. This must come before NCCL is shut down, which waits for it."""


class Memory(ABC):
    """Memory of one rank for rows: private, or symmetric, that is readable by all ranks.

    grows: True if symmetric memory can be reserved again after rows were allocated.
    holds_stores: True if kernels read the host's memory. Rows of a store in the host's memory are then summed
    in place, and a call takes all chunks of its plan; else a call takes one chunk, which is copied to the
    device.
    cache_bytes: size of the cache that keeps remote rows which are read through pointers; 0 if there is none.
    """

    grows = True
    holds_stores = True
    cache_bytes = 0

    def reserve(self, nbytes: int, largest: int = 0) -> None:  # noqa: B027
        """Reserve ``nbytes`` of symmetric memory on each rank, before any of it is allocated. Collective.

        largest: the rank that needs the most memory, for the error message. Raises InputError, the same on all
        ranks, if it does not fit into the memory of a host or of a GPU.
        """

    def overhead(self, nbytes: int) -> int:
        """Return the bytes of symmetric memory that the backend itself adds to a reservation of ``nbytes``."""
        return 0

    def reserved(self) -> int:
        """Return the bytes of symmetric memory that are reserved but not allocated; `free` excludes them."""
        return 0

    def free(self) -> int | None:
        """Return the free bytes of this rank's GPU, or of its share if several ranks use it; None on CPUs."""
        return None

    @abstractmethod
    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Page-lock a range of the host's memory for copies to the device; return the function that unlocks it.

        The caller must call that function before it frees the memory. Raises InputError if the system refuses.
        """

    @abstractmethod
    def padded(self, count: int, format: RowFormat) -> Any:
        """Allocate ``count`` uninitialised rows that only this rank can read, padded as kernels need them.

        Returns an array [count, dim]; its stride is that of ``format``.
        """

    def release(self, rows: Rows) -> None:  # noqa: B027
        """Free symmetric rows. They must not be used afterwards. `close` frees all that remain. Collective."""

    def close(self) -> None:  # noqa: B027
        """Free all symmetric memory, and end what the backend has started, such as threads. Collective."""


class Stream(ABC):
    """A rank's queue of kernel launches: waiting for them, timing and recording them.

    On CPUs calls run at once. meter: times and traffic of the aggregations. records: True if launches can be
    recorded in a CUDA graph. probe_rows: number of rows per rank that `row_costs.measure` reads, large enough
    that a call takes much longer than its launch.
    """

    meter: Meter
    records = False
    probe_rows = 16384  # more than the caches and the page table's cache of a core hold

    @abstractmethod
    def finish(self) -> None:
        """Wait for everything that this rank has launched."""

    @abstractmethod
    def stamp(self) -> Any:
        """Return a time stamp at this point of the queue: of the time when all earlier launches have ended."""

    @abstractmethod
    def since(self, stamp: Any) -> Callable[[], float]:
        """Return a function that returns the seconds between ``stamp`` and this point of the queue.

        Call it only after all earlier launches have ended.
        """

    def beside(self) -> AbstractContextManager[None]:
        """Return a context within which this thread's launches, and `stamp` and `since`, use a second stream.

        Where calls run at once, it does nothing: a thread of its own serves as a second stream.
        """
        return nullcontext()

    def wait(self, stamp: Any, *made: Any) -> None:  # noqa: B027
        """Make later launches on this stream wait for a stamp of the other stream.

        made: tensors that were allocated on the other stream, and are used on this one from now on.
        """

    @abstractmethod
    def record(self, launch: Callable[[], None]) -> Recording:
        """Call ``launch`` and record its launches without running them.

        Raises RuntimeError if one cannot be recorded.
        """


class Collectives(ABC):
    """This rank's number among all ranks, and sums over them."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, values: Any) -> None:
        """Replace floating-point values [n] by their sums over all ranks; bitwise equal on all ranks.

        Collective.
        """


class Backend(ABC):
    """Storage and kernels of one rank."""

    options: Options

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Properties of this backend. ``reaches_peers`` may change at the first `Memory.reserve`."""

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """This rank's memory for rows."""

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """This rank's queue of kernel launches."""

    @property
    @abstractmethod
    def collectives(self) -> Collectives:
        """This rank's number, the number of ranks, and sums over them."""

    @property
    @abstractmethod
    def edges(self) -> EdgeKernels | None:
        """Kernels over edges, for layers beyond weighted sums (edges.py), or None if there are none."""

    @property
    @abstractmethod
    def traversal(self) -> TraversalKernels | None:
        """Traversals of graphs (traversal.py), or None if there are none."""

    @property
    def sampling(self) -> SamplingKernels | None:
        """Neighbour sampling on the device (sampling.py), or None if `runtime.sampler` draws on the host."""
        return None

    @property
    @abstractmethod
    def profiling(self) -> Profiling:
        """Times of single exchanges, and aggregations in parts (profiling.py)."""

    @abstractmethod
    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """Allocate ``counts[p]`` rows on each rank p, initialised to 0.

        symmetric: True for rows that every rank can read, for which the call is collective; False for rows that
        only this rank can read.
        """

    @abstractmethod
    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """Allocate the buffers of aggregations over ``plan``, for rows up to the format ``widest``. Collective.

        Call it before `aggregate`, and again for wider rows after all ranks have finished their sums over the
        plan.
        """

    @abstractmethod
    def retune(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        """Use ``geometry`` (ps, dist, wpb) for aggregations over ``plan`` with rows of this format. Collective.

        Buffers that depend on the former geometry are freed, so no aggregation over the plan may be running.
        Raises InputError if the new one does not fit the device; the former geometry then stays in use.
        """

    @abstractmethod
    def publish(self, rows: Rows) -> None:
        """Make the rows that this rank has written readable by its peers, and theirs by this rank.

        It is a barrier, the only one of a layer. If layers alternate between two Rows, no second barrier is
        needed: a rank that arrives here has finished reading the Rows published before, so those may be written
        again.
        """

    @abstractmethod
    def stream_rows(
        self, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool = True
    ) -> ChunkRows:
        """Return the rows of a store for one pass over its chunks, for `aggregate` and `EdgeKernels.propagate`.

        These are called once for each plan of the pass, in order; they raise OSError if a chunk cannot be read.
        order: the chunks of each call. buffer: its slots receive the chunks, one after another; it serves one
        pass at a time. None reads rows in the host's memory in place (`Memory.holds_stores`). ahead: True to
        load chunks while others are summed. Raises InputError if slots are too small, or the backend does not
        stream.
        """

    def aggregate(
        self,
        plan: Plan,
        reduce: str,
        src: Rows,
        out: Any,
        *,
        edge: Any = None,
        epilogue: Epilogue | None = None,
    ) -> None:
        """Compute out[v] = epilogue(sum over edges u -> v of message(u, v)).

        edge: [E] in the plan's order, the factors of the source rows. [default: all 1] reduce: "sum", "mean" (divided
        by the number of edges) or "max"; without edges all give 0. src: published rows. out: [destinations, dim],
        padded rows (`Memory.padded`) of the dtype of ``src``. Half-precision rows are summed in float32, and ``edge``
        and the epilogue's arrays are float32 then; else these have the dtype of ``src``. Collective with transfer
        "halo". Raises ValueError for operations and arrays that do not go together.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(f"aggregate: no such operation: reduce={reduce!r}")
        self._aggregate(plan, reduce, src, out, edge, epilogue or Epilogue())

    @abstractmethod
    def _aggregate(self, plan: Plan, reduce: str, src: Rows, out: Any, edge: Any, epilogue: Epilogue) -> None:
        """Implement `aggregate`. Rows are multiplied by ``edge`` unless it is None."""

    @abstractmethod
    def gather(self, src: TieredRows, ids: Any, out: Any) -> None:
        """Copy rows of a tiered table: out[i] = row ids[i]. The rows of its tiers must have been published.

        ids: int64 [n], a NumPy array. On GPUs it may be a tensor on the device for a table without slots and
        file; ids are not checked, and rows not counted then. out: [n, dim], of the table's dtype, with
        contiguous values in each row; on GPUs padded rows (`Memory.padded`). Adds to ``src.read`` and to the
        meter. Not collective, except for the first call on GPUs if no pointer reaches some rank's rows, as it
        allocates symmetric memory. If a transport fetches rows, call it from the thread that makes collective
        calls. Raises IndexError for a number outside the table, before anything is written, and InputError if a
        row of the file cannot be read.
        """

    @abstractmethod
    def dropout(self, x: Any, out: Any, ids: Any, key: RngKey, csr: tuple[Any, Any] | None = None) -> None:
        """Apply dropout: out[i, c] = x[i, c] / (1 - p) if the draw of (ids[i], c) keeps it, else 0.

        x, out: [n, F], of the same dtype. ids: int64 [n], original ids of the rows, so that the draws do not
        depend on the partition. key: random key, with p. csr: for a sparse matrix, its indptr, int64 [n + 1],
        and columns, int32 [nnz]; ``x`` and ``out`` are its stored values, [nnz], then.
        """
