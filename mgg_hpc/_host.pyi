"""The native module: schedules, aggregation and random draws for the cores of one host (cuda/python/module_host.cpp).

Arrays are NumPy's or torch's CPU tensors, read and written in place; a wrong shape, stride or alignment raises
ValueError. "T" below is float32 or float64, the same in all arguments of a call.
"""

from typing import Any

class PointerTransport:
    """The mgg::Transport of ranks that share memory."""

    def __init__(self, rank: int) -> None: ...
    def add(self, addresses: Any, bytes: int) -> None:
        """A symmetric allocation. addresses: uint64 [P], kept, and read when they are needed."""

    @property
    def address(self) -> int:
        """Of the transport, for `HaloExchange` and `Schedule`."""

class HaloExchange:
    """Moves each distinct remote row once a call, in rounds (cuda/runtime/halo_exchange.h).

    send_rows: int32. send_counts, send_places, receive_counts: int64 [rounds * size]. staging: address of symmetric
    memory of 2 * staging_bytes; signals: of signal_count(rounds, size) zeros of 8 bytes. transport: its address.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rounds: int,
        send_rows: Any,
        send_counts: Any,
        send_places: Any,
        receive_counts: Any,
        staging: int,
        staging_bytes: int,
        signals: int,
        transport: int,
    ) -> None: ...
    def move(self, rows: int, row_bytes: int) -> None:
        """A call without sums. rows: address of this rank's row 0. Collective."""

    def take_rows_pushed(self) -> int:
        """Rows that this rank has pushed since it was asked last."""

def signal_count(rounds: int, size: int) -> int:
    """Words of 8 bytes that an exchange needs."""

class Schedule:
    """Who sums what on one host, made once for a plan: stages, blocks of about wpb * ps edges, hubs split.

    chunks, segments: the plan's structs as uint8. indices: int32 [E]. gets: remote rows are fetched by gets. Raises
    ValueError where they disagree.
    """

    def __init__(
        self,
        chunks: Any,
        segments: Any,
        indices: Any,
        destinations: int,
        ps: int,
        dist: int,
        wpb: int,
        gets: bool = False,
    ) -> None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def hubs(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def aggregate_float32(
        self,
        addresses: Any,
        counts: Any,
        rank: int,
        weight: Any | None,
        out: Any,
        scale: Any | None,
        bias: Any | None,
        relu: bool,
        reduce: str,
        threads: int,
        exchange: HaloExchange | None,
        arrived: bool,
        transport: int,
    ) -> None:
        """out[v] = relu(scale[v] * reduce over v's edges of (weight * row) + bias); reduce: "sum", "mean" or "max".

        addresses uint64 [P], counts int64 [P]: row 0 and number of rows of each PE. weight A [E] or None. out
        [destinations, dim], rows padded to 16 bytes. scale A [destinations], bias A [dim], or None; A is float32, for
        rows of float64 float64. exchange: of a plan with rounds; arrived: what it has moved is summed, and nothing is
        exchanged. transport: its address for a schedule with gets, else 0.
        """
    # The same for rows of other types; halves are passed as uint16.
    def aggregate_float64(self, *arguments: Any) -> None: ...
    def aggregate_float16(self, *arguments: Any) -> None: ...
    def aggregate_bfloat16(self, *arguments: Any) -> None: ...

def dropout_rows(
    x: Any, out: Any, node: Any, p: float, seed: int, epoch: int, stream: int, threads: int
) -> None:
    """x, out: T [n, F]; node: int64 [n], original ids."""

def dropout_csr(
    indptr: Any,
    index: Any,
    value: Any,
    out: Any,
    node: Any,
    p: float,
    seed: int,
    epoch: int,
    stream: int,
    threads: int,
) -> None:
    """indptr int64 [n + 1], index int32 [nnz] (columns), value, out: T [nnz]; node: int64 [n], original ids."""

def uniform_rows(out: Any, low: float, high: float, seed: int, stream: int) -> None:
    """out: T [n, F], contiguous, filled with draws in [low, high) of (seed, stream, row, column)."""

def philox(counter: list[int], key: int) -> list[int]:
    """Philox4x32-10: four words for a counter of four words and a 64-bit key."""

def gather_floor(indices: Any, rows: Any, ahead: int, threads: int) -> tuple[float, int]:
    """Seconds to load every cache line of rows[indices[0]], rows[indices[1]] ... in this order, and a sum of them.

    indices int32 [E]. rows: any type [N, dim], padded to 16 bytes; prefetched ``ahead`` edges before they are read.
    The sum, modulo 2**64, is of the first two 8-byte words of each line that a row touches (of a row that begins
    within a line, the row's first two). Raises ValueError for an index outside the rows.
    """

def stream_read(data: Any, threads: int) -> tuple[float, int]:
    """Seconds to read uint8 [n], aligned to 64 bytes, from end to end, and the sum of each line's first two words."""

def instruction_sets() -> list[str]: ...
def instruction_set() -> str:
    """The one in use. Raises ValueError if MGG_ISA names one that this machine does not run."""

def openmp_threads() -> int: ...
def struct_sizes() -> list[int]:
    """Bytes of Chunk and Segment."""

def rabbit_order(indptr: Any, indices: Any, order: Any, inside: Any) -> None:
    """Communities in a row (cuda/cpu/order.cpp).

    indptr int64 [N + 1], indices int32 [E]: a symmetric pattern. order int64 [N] is filled with a permutation,
    new -> old; inside int64 [N] with the number of each row's edges to its own community. Raises ValueError for
    arrays that are no CSR.
    """
