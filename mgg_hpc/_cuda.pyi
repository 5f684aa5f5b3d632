"""The native module for GPUs: plans in device memory, kernels over them, and what the GPU holds (module_cuda.cpp).

Arrays of rows, edges and ids are addresses in device memory, which `runtime.backends.cuda` has checked; plans come as
NumPy arrays. Launches are asynchronous, on the stream of their Geometry. A failing CUDA call raises RuntimeError.
"""

from typing import Any

Array = tuple[int, int]  # an address, and values between rows

class Managed:
    """Memory whose pages move to the processor that touches them; zeros."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def address(self) -> int:
        """Of its first byte, on host and GPU."""

    def to_host(self, nbytes: int) -> None:
        """Moves its first bytes to the host, and waits."""

class Geometry:
    """Which kernel (lanes of a worker, packs of 16 bytes that a lane holds), and its grid."""

    def __init__(
        self, lanes: int, packs: int, blocks: int, threads: int, shared_bytes: int = 0, stream: int = 0
    ) -> None: ...

class Rows:
    """Rows of ``dim`` values on every PE. addresses: uint64 [P], row 0 on each; 0 where no pointer reaches it."""

    def __init__(self, addresses: Any, dim: int) -> None: ...

class EdgeRows:
    """Rows of ``dim`` values on every PE, read by heads: their first ``values``, and behind them floats, ``tail`` of
    them before an id. addresses: as Rows'. arrived: whose last call holds the remote ones, or None.
    """

    def __init__(
        self,
        addresses: Any,
        arrived: Exchange | None,
        dim: int,
        values: int,
        tail: int,
        heads: int,
        channels: int,
        stream: int,
    ) -> None: ...

class Sum:
    """What is done with rows. reduce: "sum", "mean" or "max". Addresses; weight, scale, bias: float32, or 0."""

    def __init__(self, reduce: str, weight: int, out: int, scale: int, bias: int, relu: bool) -> None: ...

class Get:
    """Stages of the get kernel. mine, staging: symmetric addresses, for rows that no pointer reaches. channels: int32.

    Raises ValueError for a ps or dist out of range.
    """

    def __init__(
        self,
        near_ps: int,
        far_ps: int,
        dist: int,
        interleaved: bool,
        mine: int,
        staging: int,
        channels: int,
        channel_count: int,
    ) -> None: ...

class Halo:
    """How a halo is run: blocks that push, work claimed at once, tasks that a worker can defer; addresses of stamps.

    alone: its blocks must all fit at once, or the launch fails; else whoever launches sees to it. holds: what arrives
    stays until `Exchange.let_go`.
    """

    def __init__(
        self,
        pushers: int,
        claim: int,
        slots: int,
        bulk: bool = False,
        alone: bool = True,
        stamp_blocks: int = 0,
        stamp_pushes: int = 0,
        stamp_arrivals: int = 0,
        holds: bool = False,
    ) -> None: ...

class Exchange:
    """What a plan's halo keeps from call to call. stagings, signals: of each PE; 0 where no pointer reaches it."""

    def __init__(
        self,
        rank: int,
        stagings: list[int],
        signals: list[int],
        staging: int,
        staging_bytes: int,
        signal: int,
        outbox: int,
    ) -> None: ...
    @property
    def far(self) -> bool:
        """Whether some PEs are reached by the transport only."""

    def ready_float32(self, halo: Halo, geometry: Geometry) -> None:
        """Makes room for what a call puts off."""

    ready_float16 = ready_float32
    ready_bfloat16 = ready_float32

    def let_go(self, schedule: HaloSchedule, geometry: Geometry) -> None:
        """After a call that holds what has arrived, and all that has read it."""

    def calls(self) -> int:
        """That have ended; waits for them."""

    def rows_pushed(self) -> int:
        """In all calls; waits for them."""

class HaloSchedule:
    """What crosses for rows of one size. pushes, arrivals: structs as uint8. indices: the plan's.

    Raises ValueError for a plan or arrivals that do not fit.
    """

    def __init__(
        self,
        plan: Plan,
        indices: Any,
        pushes: Any,
        arrivals: Any,
        send_rows: Any,
        owners: Any,
        credits: int,
    ) -> None: ...
    @property
    def pushes(self) -> int:
        """Chunks that leave."""

    @property
    def arrivals(self) -> int:
        """Chunks that come."""

class Plan:
    """A plan in device memory. chunks, segments: the plan's structs as uint8. indices: int32 [E].

    A destination of more than ``part_edges`` edges is shared by several workers. Raises ValueError where they disagree.
    """

    def __init__(
        self, chunks: Any, segments: Any, indices: Any, destinations: int, part_edges: int, rank: int
    ) -> None: ...
    @staticmethod
    def of_csr(indptr: Any, indices: int, columns: int, part_edges: int) -> Plan:
        """Of a CSR over this rank's own rows. indptr: int64 [n + 1]. indices: the address of int32 in device memory.

        They stay there as long as the plan, and are 0 .. columns - 1, which is not checked. Raises ValueError for
        offsets that descend.
        """

    @property
    def tasks(self) -> int:
        """What workers take: destinations, and parts of hubs."""

    @property
    def slots(self) -> int:
        """Parts of hubs."""

    def ready_float32(self, rows: Rows, read: bool, geometry: Geometry) -> None:
        """Allocates what a call over these rows takes. read: through pointers or by gets, and not pushed."""

    ready_float16 = ready_float32
    ready_bfloat16 = ready_float32

    def aggregate_float32(self, rows: Rows, sum: Sum, geometry: Geometry) -> None:
        """Backend.aggregate, rows read through pointers."""

    aggregate_float16 = aggregate_float32
    aggregate_bfloat16 = aggregate_float32

    def get_float32(self, rows: Rows, sum: Sum, get: Get, geometry: Geometry) -> None:
        """Backend.aggregate, remote rows in stages."""

    get_float16 = get_float32
    get_bfloat16 = get_float32

    def halo_float32(
        self,
        rows: int,
        dim: int,
        sum: Sum,
        exchange: Exchange,
        schedule: HaloSchedule,
        halo: Halo,
        geometry: Geometry,
    ) -> None:
        """Backend.aggregate, remote rows once each. Collective; all blocks must be resident at once."""

    halo_float16 = halo_float32
    halo_bfloat16 = halo_float32

    def ready_edges_float32(self, rows: EdgeRows) -> None:
        """Makes what calls over such rows keep."""

    ready_edges_float16 = ready_edges_float32
    ready_edges_bfloat16 = ready_edges_float32

    def attend_float32(
        self,
        rows: EdgeRows,
        out: Array,
        score: Array = (0, 0),
        h: Array = (0, 0),
        bias: int = 0,
        log_sum: Array = (0, 0),
        above: Array = (0, 0),
        above_weight: Array = (0, 0),
        *,
        slope: float,
        scale: float,
        ids: int,
        drawn: RngKey,
    ) -> None:
        """EdgeKernels.attend; ids: 0 where nothing is dropped."""

    attend_float16 = attend_float32
    attend_bfloat16 = attend_float32

    def attend_back_float32(
        self,
        rows: EdgeRows,
        out: Array,
        score: Array = (0, 0),
        *,
        h: Array,
        gradient: Array = (0, 0),
        log_sum: Array = (0, 0),
        dot: Array = (0, 0),
        score_gradient: Array = (0, 0),
        slope: float,
        scale: float,
        ids: int,
        drawn: RngKey,
    ) -> None:
        """EdgeKernels.attend_back; of targets where there is a gradient."""

    attend_back_float16 = attend_back_float32
    attend_back_bfloat16 = attend_back_float32

    def max_ties_float32(self, rows: EdgeRows, out: Array, ties: Array) -> None:
        """EdgeKernels.max_ties."""

    max_ties_float16 = max_ties_float32
    max_ties_bfloat16 = max_ties_float32

    def max_back_float32(self, rows: EdgeRows, x: Array, out: Array) -> None:
        """EdgeKernels.max_back."""

    max_back_float16 = max_back_float32
    max_back_bfloat16 = max_back_float32

    def weighted_float32(self, rows: EdgeRows, weight: int, out: Array) -> None:
        """EdgeKernels.weighted."""

    weighted_float16 = weighted_float32
    weighted_bfloat16 = weighted_float32

    def sddmm_float32(self, rows: EdgeRows, y: Array, out: int) -> None:
        """EdgeKernels.sddmm."""

    sddmm_float16 = sddmm_float32
    sddmm_bfloat16 = sddmm_float32

    def edge_softmax(self, scores: int, out: int, geometry: Geometry) -> None:
        """DeviceKernels.edge_softmax."""

class Gathers:
    """Tables of all PEs' rows, for gathers. bounds: int64 [P + 1]. addresses: uint64 [P]. mine: this PE's row 0."""

    def __init__(self, bounds: Any, addresses: Any, mine: int, row_bytes: int) -> None: ...
    def rows(self, ids: int, count: int, out: int, geometry: Geometry) -> None:
        """DeviceKernels.gather."""

class RngKey:
    """What dropout draws (base.Draw). epoch_at: the address of an int32 that holds the epoch instead, or 0."""

    def __init__(self, p: float, seed: int, epoch: int, stream: int, epoch_at: int = 0) -> None: ...

def dropout_float32(
    x: int,
    x_stride: int,
    out: int,
    out_stride: int,
    ids: int,
    rows: int,
    columns: int,
    drawn: RngKey,
    geometry: Geometry,
) -> None:
    """Backend.dropout. Strides: values from row to row."""

dropout_float16 = dropout_float32
dropout_bfloat16 = dropout_float32

def dropout_csr(
    indptr: int, indices: int, values: int, out: int, ids: int, rows: int, drawn: RngKey, geometry: Geometry
) -> None:
    """Backend.dropout_csr, of float32."""

def struct_sizes() -> list[int]:
    """Bytes of the structs shared with Python: Chunk, Segment, Push, Arrival."""

def compiler() -> str:
    """The version of nvcc that compiled the kernels."""

def devices() -> tuple[int, str]:
    """How many GPUs this process sees; and, where there is none, why."""

def device_places() -> list[str]:
    """Where each of them is on the bus: "0000:3b:00.0"."""

def use_device(device: int) -> None:
    """Makes one of them this process's current GPU."""

def limits() -> dict[str, Any]:
    """What the current GPU holds, and versions of driver and runtime. Sizes in bytes."""

def memory() -> tuple[int, int]:
    """Bytes of the current GPU's memory: those that are free, and all. Makes a context there: use_device first."""

def ring_bytes(threads: int, packs: int) -> int:
    """Shared memory of a block of the direct kernel."""

def stage_bytes(threads: int, lanes: int, packs: int, rows: int, dist: int) -> int:
    """Shared memory of a block of the get kernel."""

def occupancy_float32(
    transfer: str, max: bool, far: bool, lanes: int, packs: int, threads: int, shared_bytes: int
) -> dict[str, int]:
    """Registers, stack bytes, most threads of a block, and blocks that a multiprocessor holds of an aggregation.

    transfer: "none", "direct", "get" or "halo".
    """

occupancy_float16 = occupancy_float32
occupancy_bfloat16 = occupancy_float32

def gather_floor(indices: int, edges: int, rows: int, row_bytes: int, seen: int, geometry: Geometry) -> None:
    """Read the rows of int32 ``indices`` [edges] in their order. seen: uint32 of each thread, or 0 to store nothing."""

def nvshmem_unique_id() -> bytes:
    """What one PE makes, and all start a job with."""

def nvshmem_start(unique_id: bytes, rank: int, size: int) -> int:
    """This process becomes one of ``size`` PEs, on its current GPU. Collective. nvshmemx_init_status_t, 2 or more.

    Raises RuntimeError where NVSHMEM does not start, or finds its peers but no GPU.
    """

def nvshmem_allocate(nbytes: int) -> int:
    """Zeros on the symmetric heap, as many on every PE; their address here. Collective."""

def nvshmem_release(address: int) -> None:
    """Gives them back. Collective."""

def nvshmem_pointer(address: int, pe: int) -> int:
    """Where this process sees the same place of another PE; 0 where no pointer reaches it."""

def nvshmem_barrier(stream: int) -> None:
    """On a stream: ends once all PEs have got there; then what they wrote before can be read."""

def nvshmem_finish() -> None:
    """Ends the job. Collective."""
