"""The interface of backends: the code above it runs on any backend, the code below it exists once per backend."""

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
    """Cost of aggregations over symmetric rows since the last reset. Threads may count rows.

    seconds: sum over the calls that have ended. calls: the same for each (plan, bytes of a row). local_bytes,
    remote_bytes: of rows read from this rank and from others, without padding. messages: rows that were fetched one by
    one, and packets of a halo that were pushed. stored_bytes: the part of remote_bytes that came from stores. loading:
    seconds in which chunks of stores were loaded. waited: seconds that the host waited for peers, to publish rows and
    within exchanges. later: unfinished GPU calls, as (plan, row format, elapsed()); see `settle`.
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
        """Add the time of a call over rows of this format."""
        self.seconds += seconds
        call = plan, format.row_bytes
        self.calls[call] = self.calls.get(call, 0.0) + seconds

    def count(self, local_rows: int, remote_rows: int, format: RowFormat, messages: int) -> None:
        """Count rows of this format that a call has read, and the messages that brought them."""
        row_bytes = format.dim * format.dtype.itemsize
        with self._counting:
            self.local_bytes += local_rows * row_bytes
            self.remote_bytes += remote_rows * row_bytes
            self.remote_rows += remote_rows
            self.messages += messages

    def count_stored(self, rows: int, format: RowFormat, loading: float) -> None:
        """Count rows of this format that came from a store, and the seconds in which they were loaded."""
        with self._counting:
            self.stored_bytes += rows * format.dim * format.dtype.itemsize
            self.loading += loading

    def taken(self) -> Meter:
        """Return a copy of the counts, and reset them."""
        with self._counting:
            found = replace(self)
            vars(self).update(vars(Meter()), _counting=self._counting)
        return found

    def add(self, other: Meter) -> None:
        """Add the counts of another meter, without its times."""
        for name in ("local_bytes", "remote_bytes", "remote_rows", "messages", "stored_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def settle(self) -> None:
        """Call each timer in ``later``, whose calls have all ended, and add its seconds to the counts."""
        for plan, format, seconds in self.later:
            self.took(plan, format, seconds())
        self.later = []


@dataclass(frozen=True)
class Capabilities:
    """Properties of a backend, the same on all ranks.

    name: as run.backend and reports have it.
    device: torch's name of the device of the arrays that calls take: "cpu" for NumPy arrays, else they are tensors.
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
    """Recorded launches, which can be replayed."""

    @abstractmethod
    def replay(self) -> None:
        """Launch everything again, on the current stream."""

    @abstractmethod
    def reset(self) -> None:
        """Release the recording. NCCL does not end before that."""


class Memory(ABC):
    """Memory of one rank for rows, private and symmetric.

    grows: symmetric memory can be reserved again after rows were allocated.
    holds_stores: kernels read the host's memory, so that rows of a store there are summed in place, and a call takes
    all chunks of its plan; else a call takes one chunk, which is copied to the device.
    cache_bytes: size of the cache that keeps remote rows which are read through pointers; 0 if there is none.
    """

    grows = True
    holds_stores = True
    cache_bytes = 0

    def reserve(self, nbytes: int, largest: int = 0) -> None:  # noqa: B027
        """Reserve ``nbytes`` of symmetric memory on each rank, before any of it is allocated. Collective.

        largest: the rank that needs most, for the error message. Raises InputError, the same on all ranks, where the
        memory of a node or a GPU cannot hold it.
        """

    def overhead(self, nbytes: int) -> int:
        """Return the bytes of symmetric memory that the backend itself adds to a reservation of ``nbytes``."""
        return 0

    def reserved(self) -> int:
        """Return the bytes of symmetric memory that are reserved and not allocated yet; they are not free."""
        return 0

    def free(self) -> int | None:
        """Return the free bytes of this rank's GPU, or of its part where several ranks share it; None on CPUs."""
        return None

    @abstractmethod
    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Lock pages of the host's memory for copies to the device; return the function that unlocks them.

        It is called before they are freed. Raises InputError where the system does not let them be locked.
        """

    @abstractmethod
    def padded(self, count: int, format: RowFormat) -> Any:
        """Allocate private rows [count, dim] in the layout in which kernels store rows; uninitialised."""

    def release(self, rows: Rows) -> None:  # noqa: B027
        """Free symmetric rows, which may not be used afterwards, before `close`. Collective."""

    def close(self) -> None:  # noqa: B027
        """Free all symmetric memory, and whatever the backend has started. Collective."""


class Stream(ABC):
    """The order in which a rank's launches run, their time and cost.

    meter: cost of the aggregations. records: launches can be recorded in a CUDA graph. probe_rows: number of rows per
    rank that `row_costs.measure` reads: so many that a call takes much longer than its launch.
    """

    meter: Meter
    records = False
    probe_rows = 16384  # more than the caches and the page table's cache of a core hold

    @abstractmethod
    def finish(self) -> None:
        """Wait for everything that this rank has launched."""

    @abstractmethod
    def stamp(self) -> Any:
        """Return a time stamp that is taken once everything that this rank has launched has ended."""

    @abstractmethod
    def since(self, stamp: Any) -> Callable[[], float]:
        """Return a function for the seconds from ``stamp`` to now; call it after earlier launches have ended."""

    def beside(self) -> AbstractContextManager[None]:
        """Send this thread's launches within ``with`` to a second stream; `stamp` and `since` are of that one there.

        Where calls return when they are done, a thread of its own is one.
        """
        return nullcontext()

    def wait(self, stamp: Any, *made: Any) -> None:  # noqa: B027
        """Make later launches wait for a stamp of the other stream, on which the tensors ``made`` were allocated."""

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
        """Kernels of layers beyond weighted sums (edges.py), or None where there are none."""

    @property
    @abstractmethod
    def traversal(self) -> TraversalKernels | None:
        """Traversals of graphs (traversal.py), or None where there are none."""

    @property
    def sampling(self) -> SamplingKernels | None:
        """Neighbour sampling (sampling.py), or None where `runtime.sampler.Sampler` draws on the host."""
        return None

    @property
    @abstractmethod
    def profiling(self) -> Profiling:
        """Times of single exchanges, and aggregations in parts (profiling.py)."""

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
        memory where they lie (`Memory.holds_stores`). ahead: chunks are loaded while others are summed. Raises
        InputError where slots are too small, or there is no streaming.
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
        """out[v] = epilogue(sum over edges u -> v of message(u, v)).

        edge: [E] in the plan's order, by which source rows are multiplied. [default: all 1] reduce: "sum", "mean"
        (divided by the number of edges) or "max"; without edges all give 0. out: [destinations, dim], of the rows'
        dtype, padded rows (`Memory.padded`). Half rows are summed in float32, and ``edge`` and the epilogue's arrays
        are float32 then; else they are of the rows' dtype. Collective with "halo". Raises ValueError for operations and
        arrays that do not go together.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(f"aggregate: no such operation: reduce={reduce!r}")
        self._aggregate(plan, reduce, src, out, edge, epilogue or Epilogue())

    @abstractmethod
    def _aggregate(self, plan: Plan, reduce: str, src: Rows, out: Any, edge: Any, epilogue: Epilogue) -> None:
        """Aggregate rows, times ``edge`` where it is not None."""

    @abstractmethod
    def gather(self, src: TieredRows, ids: Any, out: Any) -> None:
        """out[i] = row ids[i] of a table, whose tiers' rows have been published.

        ids: int64 [n], a NumPy array; on GPUs also a tensor there, for a table without slots and file, whose rows are
        not counted then. out: [n, dim], of the table's dtype, with contiguous values in each row; on GPUs padded rows
        (`Memory.padded`). Adds to ``src.read`` and to the meter. Not collective, except for the first call on GPUs
        where no pointer reaches some rank's rows: it allocates symmetric memory. Where a transport fetches rows, it is
        called from the thread that makes collective calls. Raises IndexError for a number outside the table, before
        anything is written (on GPUs not for a tensor of numbers), and InputError for a row of the file that cannot be
        read.
        """

    @abstractmethod
    def dropout(self, x: Any, out: Any, ids: Any, key: RngKey, csr: tuple[Any, Any] | None = None) -> None:
        """out[i, c] = x[i, c] / (1 - p) where the draw of (ids[i], c) keeps it, else 0; x, out [n, F] of one dtype.

        ids: int64 [n]. csr: indptr int64 [n + 1] and columns int32 [nnz] of a sparse matrix; ``x`` and ``out`` are its
        stored values [nnz] then.
        """
