"""The native module for GPUs: plans in device memory, kernels over them, and what the GPU holds (cuda/module_cuda.cpp).

Arrays of rows, edges and ids are addresses in device memory, which `runtime.backends.cuda` has checked; plans come as
NumPy arrays. Launches are asynchronous, on the stream of their Geometry. A failing CUDA call raises RuntimeError.
"""

from typing import Any

class Geometry:
    """Which kernel (lanes of a worker, packs of 16 bytes that a lane holds), and its grid."""

    def __init__(self, lanes: int, packs: int, blocks: int, threads: int, stream: int = 0) -> None: ...

class Rows:
    """Rows of ``dim`` values on every PE. addresses: uint64 [P], row 0 on each; 0 where no pointer reaches it."""

    def __init__(self, addresses: Any, dim: int) -> None: ...

class Plan:
    """A plan in device memory. chunks, segments: the plan's structs as uint8. indices: int32 [E].

    A destination of more than ``part_edges`` edges is shared by several workers. Raises ValueError where they disagree.
    """

    def __init__(
        self, chunks: Any, segments: Any, indices: Any, destinations: int, part_edges: int, rank: int
    ) -> None: ...
    @property
    def tasks(self) -> int:
        """What workers take: destinations, and parts of hubs."""

    @property
    def slots(self) -> int:
        """Parts of hubs."""

    def aggregate_float32(
        self,
        rows: Rows,
        reduce: str,
        weight: int,
        out: int,
        scale: int,
        bias: int,
        relu: bool,
        geometry: Geometry,
    ) -> None:
        """Backend.aggregate. reduce: "sum", "mean" or "max". weight, scale, bias: float32, or 0."""

    aggregate_float16 = aggregate_float32
    aggregate_bfloat16 = aggregate_float32

    def sddmm_float32(self, rows: Rows, destinations: int, out: int, geometry: Geometry) -> None:
        """EdgeKernels.sddmm."""

    sddmm_float16 = sddmm_float32
    sddmm_bfloat16 = sddmm_float32

    def edge_softmax(self, scores: int, out: int, geometry: Geometry) -> None:
        """EdgeKernels.edge_softmax."""

class Gathers:
    """Tables of all PEs' rows, for gathers. bounds: int64 [P + 1]. addresses: uint64 [P]. mine: this PE's row 0."""

    def __init__(self, bounds: Any, addresses: Any, mine: int, row_bytes: int) -> None: ...
    def rows(self, ids: int, count: int, out: int, geometry: Geometry) -> None:
        """EdgeKernels.gather."""

def struct_sizes() -> list[int]:
    """Bytes of the structs shared with Python: Chunk, Segment."""

def compiler() -> str:
    """The version of nvcc that compiled the kernels."""

def devices() -> tuple[int, str]:
    """How many GPUs this process sees; and, where there is none, why."""

def limits() -> dict[str, Any]:
    """What the current GPU holds, and versions of driver and runtime. Sizes in bytes."""

def ring_bytes(threads: int, packs: int) -> int:
    """Shared memory of a block of the direct kernel."""

def occupancy_float32(max: bool, remote: bool, lanes: int, packs: int, threads: int) -> dict[str, int]:
    """Registers, stack bytes, most threads of a block, and blocks that a multiprocessor holds of the direct kernel."""

occupancy_float16 = occupancy_float32
occupancy_bfloat16 = occupancy_float32

def gather_floor(indices: int, edges: int, rows: int, row_bytes: int, seen: int, geometry: Geometry) -> None:
    """Read the rows of int32 ``indices`` [edges] in their order. seen: uint32 of each thread, or 0 to store nothing."""
