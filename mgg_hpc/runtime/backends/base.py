"""The seam: everything above it runs on any backend, everything below it exists once per backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plan.grid import Pass
from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ..streaming.buffer import ChunkBuffer
from ..streaming.store import Store
from .arguments import ChunkRows, Epilogue, Geometry, Options, RngKey, Rows
from .edges import EdgeKernels
from .traversal import TraversalKernels


@dataclass(frozen=True)
class KernelStamps:
    """Times of one kernel of a halo, int64 in nanoseconds of its GPU's clock, which begins anywhere.

    began: of its first CUDA block. ended: of its last. to: int32 [K], the rank that each chunk was pushed to. pushed:
    [K, 2], when its packing began, and when it was done and signalled. owners: int32 [A], the rank that each chunk came
    from. seen: [A], when the first worker saw that it was there.
    """

    began: int
    ended: int
    to: NDArray[np.int32]
    pushed: NDArray[np.int64]
    owners: NDArray[np.int32]
    seen: NDArray[np.int64]


@dataclass
class Meter:
    """Cost of aggregations over symmetric rows since the last reset.

    seconds: of calls that have ended. calls: the same for each plan and number of bytes of a row. local_bytes,
    remote_bytes: of rows read from this rank and from others, without padding. messages: a row that is got, or a packet
    of a halo that is pushed, each. stored_bytes: those of remote_bytes that came from stores. loading: seconds in which
    chunks of stores were loaded. later: plan, format, and a function that
    returns the seconds, of calls that may still run; it is called once those have ended. waited: seconds that the host
    waited for peers, to publish rows and within exchanges. exchanges: None, or a list to which calls with rounds add
    their plan and the times of `HaloExchange.stamps`, where the host drives them. kernels: None, or a list to which
    calls of a halo that a kernel drives add a function that waits for the kernel and returns its times.
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
    exchanges: list[tuple[Plan, list[float]]] | None = None
    kernels: list[Callable[[], KernelStamps]] | None = None

    def took(self, plan: Plan, format: RowFormat, seconds: float) -> None:
        """Add the time of a call over rows of this format."""
        self.seconds += seconds
        call = plan, format.row_bytes
        self.calls[call] = self.calls.get(call, 0.0) + seconds

    def count(self, local_rows: int, remote_rows: int, format: RowFormat, messages: int) -> None:
        """Count rows of this format that a call has read, and the messages that brought them."""
        row_bytes = format.dim * format.dtype.itemsize
        self.local_bytes += local_rows * row_bytes
        self.remote_bytes += remote_rows * row_bytes
        self.remote_rows += remote_rows
        self.messages += messages

    def count_stored(self, rows: int, format: RowFormat, loading: float) -> None:
        """Count rows of this format that came from a store, and the seconds in which they were loaded."""
        self.stored_bytes += rows * format.dim * format.dtype.itemsize
        self.loading += loading

    def taken(self) -> Meter:
        """Return a copy of the counts, and reset them."""
        found = replace(self)
        self.seconds, self.waited, self.loading = 0.0, 0.0, 0.0
        self.local_bytes, self.remote_bytes, self.remote_rows, self.messages = 0, 0, 0, 0
        self.stored_bytes = 0
        self.calls, self.later = {}, []
        return found

    def add(self, other: Meter) -> None:
        """Add the other meter's counts, but not its time."""
        self.local_bytes += other.local_bytes
        self.remote_bytes += other.remote_bytes
        self.remote_rows += other.remote_rows
        self.messages += other.messages
        self.stored_bytes += other.stored_bytes

    def settle(self) -> None:
        """Add the seconds of the calls in ``later``, all of which have ended."""
        for plan, format, seconds in self.later:
            self.took(plan, format, seconds())
        self.later = []


@dataclass(frozen=True)
class Phases:
    """An aggregation in two calls: its transfer without its sums, and its sums without the transfer."""

    transfer_only: Callable[[], None]
    compute_only: Callable[[], None]


@dataclass(frozen=True)
class Capabilities:
    """Properties of a backend, the same on all ranks.

    name: of run.backend and of reports.
    device: torch's name of the device of the arrays that calls take: "cpu" for NumPy arrays, else they are tensors.
    reaches_peers: every rank reads every other's symmetric rows through pointers; final after `Memory.reserve`.
    edge_gets: `EdgeKernels` take the transfer "get" for rows that no pointer reaches.
    keeps_bits: `Backend.retune` changes no bit of a sum.
    records: what a rank launches can be recorded in a CUDA graph.
    reads_epoch: dropout finds its epoch in the device's memory (`RngKey.epoch_at`).
    heap_grows: symmetric memory can be reserved again after rows were allocated.
    reads_host: rows of a store are read where they lie in the host's memory, and calls take all chunks of a plan; else
    a call takes one, which is copied to the device.
    halo_rounds: number of rounds per halo exchange, or None to choose it from the halo's size.
    cache_bytes: of the cache that keeps remote rows which are read through pointers.
    probe_rows: number of rows per rank in a measurement of costs (`runtime.probe`).
    """

    name: str
    device: str = "cpu"
    reaches_peers: bool = True
    edge_gets: bool = True
    keeps_bits: bool = True
    records: bool = False
    reads_epoch: bool = False
    heap_grows: bool = True
    reads_host: bool = True
    halo_rounds: int | None = None
    cache_bytes: int = 0
    probe_rows: int = 16384  # more than the caches and the page table's cache of a core hold


class Recording(ABC):
    """Recorded launches, which can be replayed."""

    @abstractmethod
    def replay(self) -> None:
        """Launch everything again, on the current stream."""

    @abstractmethod
    def reset(self) -> None:
        """Release the recording. NCCL does not end before that."""


class Memory(ABC):
    """Memory of one rank for rows, private and symmetric."""

    def reserve(self, nbytes: int, largest: int = 0) -> None:  # noqa: B027
        """Reserve ``nbytes`` of symmetric memory on each rank, before any of it is allocated. Collective.

        largest: the rank that needs that much, which an error names. Raises InputError, the same on all
        ranks, where the memory of a node or a GPU cannot hold it.
        """

    def beside(self, nbytes: int) -> int:
        """Return the bytes of symmetric memory that this backend reserves itself beside ``nbytes`` of its users'."""
        return 0

    def reserved(self) -> int:
        """Return the bytes of symmetric memory that are reserved and not allocated yet; they are not free."""
        return 0

    def free(self) -> int | None:
        """Return the free bytes of this rank's GPU, or of its part where several ranks share it; None on CPUs."""
        return None

    @abstractmethod
    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Lock pages of the host's memory for copies to the device; return what unlocks them, before they are freed.

        Raises InputError where the system does not let them be locked.
        """

    @abstractmethod
    def padded(self, count: int, format: RowFormat) -> Any:
        """Allocate private rows [count, dim] in the layout in which kernels store rows; uninitialised."""

    def release(self, rows: Rows) -> None:  # noqa: B027
        """Free symmetric rows before `close`, where the memory can be used again. Collective.

        Neither the rows nor arrays over them may be used afterwards.
        """

    def close(self) -> None:  # noqa: B027
        """Free all symmetric memory, and whatever the backend has started. Collective."""


class Stream(ABC):
    """The order in which a rank's launches run, their time and cost. meter: of the aggregations."""

    meter: Meter

    @abstractmethod
    def finish(self) -> None:
        """Wait for everything that this rank has launched."""

    @abstractmethod
    def stamp(self) -> Any:
        """Return a time stamp behind everything that this rank has launched."""

    @abstractmethod
    def since(self, stamp: Any) -> Callable[[], float]:
        """Return a function for the seconds from ``stamp`` to now, to be called when earlier launches have ended."""

    @abstractmethod
    def record(self, launch: Callable[[], None]) -> Recording:
        """Record what ``launch`` launches, without running it. Raises RuntimeError for what cannot be recorded."""


class Collectives(ABC):
    """This rank's number among all ranks, and sums over them."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, values: Any) -> None:
        """Replace float values [n] by their sums over all ranks, the same bits on each of them. Collective."""


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
        """Order, time and recording of this rank's launches."""

    @property
    @abstractmethod
    def collectives(self) -> Collectives:
        """This rank's number, the number of ranks, and sums over them."""

    @property
    @abstractmethod
    def edges(self) -> EdgeKernels | None:
        """Kernels of layers beyond weighted sums (`edges.py`), or None where there are none."""

    @property
    @abstractmethod
    def traversal(self) -> TraversalKernels | None:
        """Traversals of graphs (`traversal.py`), or None where there are none."""

    @abstractmethod
    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """Allocate storage for ``counts[p]`` rows on each PE p, zero at first.

        Symmetric rows can be read by every PE, others only here. Collective where symmetric.
        """

    @abstractmethod
    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        """Allocate what aggregations over ``plan`` keep, for rows up to this format. Collective; before `aggregate`.

        It is called again for wider rows, after all ranks have finished their sums over the plan.
        """

    @abstractmethod
    def retune(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        """Cut aggregations over ``plan`` of rows of this format by ``geometry`` from now on. Collective.

        Whatever depends on the former geometry is dropped, and nothing may run that uses it. Raises InputError where
        the device cannot hold it, with the former geometry in place.
        """

    @abstractmethod
    def publish(self, rows: Rows) -> None:
        """Make this rank's written rows readable by its peers, and theirs here: the layer's one barrier.

        With two Rows used in turn no second barrier is needed: a rank that arrives here has finished reading the Rows
        published before, so those may be written again.
        """

    @abstractmethod
    def stream_rows(
        self, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool = True
    ) -> ChunkRows:
        """Return the rows of a store for one pass, whose chunks are brought into the buffer's slots one after another.

        `aggregate` and `EdgeKernels.propagate` take them with the plans of the pass, one call for each, in order; all
        raise OSError where a chunk cannot be read. A buffer serves one pass at a time; None reads rows in the host's
        memory where they lie (`Capabilities.reads_host`). ahead: chunks are loaded while others are summed. Raises
        InputError where slots are too small, or there is no streaming.
        """

    @abstractmethod
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
        [destinations, dim], of the rows' dtype, padded rows (`Memory.padded`). Half rows are summed in float32, and
        ``edge`` and the epilogue's arrays are float32 then; else they are of the rows' dtype. Collective with
        "halo".
        """

    @abstractmethod
    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        """Return the transfer and the sums of an `aggregate` as calls of their own, to be timed. The plan is prepared.

        ``transfer_only`` is called first. Both are collective where `aggregate` is. Rows that are read on their owners
        cannot be fetched without being summed, so ``transfer_only`` sums those. ``compute_only`` sums other rows where
        the transfer leaves none here. Takes private memory for rows and a copy of the plan while they are kept.
        """

    @abstractmethod
    def gather(
        self, src: Rows, bounds: NDArray[np.int64], ids: Any, out: Any, *, own: int | None = None
    ) -> None:
        """out[i] = row ids[i] of all ranks' published rows, where rank p's are numbered bounds[p] .. bounds[p + 1] - 1.

        bounds: int64 [P + 1]. ids: int64 [n]. out: [n, dim], of the rows' dtype, padded rows (`Memory.padded`). Not
        collective, except for the first call on GPUs where no pointer reaches some rank's rows: it allocates symmetric
        memory. Called from the thread that makes collective calls, since it may fetch rows by the same runtime. Raises
        ValueError for a number outside the bounds. A GPU would have to be waited for: it checks no numbers, and meters
        rows if it is told how many are this rank's ``own``.
        """

    @abstractmethod
    def dropout(self, x: Any, out: Any, ids: Any, key: RngKey, csr: tuple[Any, Any] | None = None) -> None:
        """out[i, c] = x[i, c] / (1 - p) where the draw of (ids[i], c) keeps it, else 0; x, out [n, F] of one dtype.

        ids: int64 [n]. csr: indptr int64 [n + 1] and columns int32 [nnz] of a sparse matrix, whose stored values [nnz]
        ``x`` and ``out`` then are.
        """
