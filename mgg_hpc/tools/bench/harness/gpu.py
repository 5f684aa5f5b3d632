"""The environment of baselines on a GPU: the native module, memory, a clock, and rows in several sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from ....data.graph import Graph
from ....plan import launch, workload
from ....plan.layout import RowFormat
from ....plan.workload import SplitEdges
from ....runtime.backends.arguments import Geometry, Options
from ....runtime.backends.cuda import module as cuda_module
from ....runtime.backends.cuda.device_arrays import DeviceArrays, PinnedArrays, TorchArrays, nothing_freed
from ....runtime.backends.cuda.kernels import DeviceBackend
from ....runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from ....runtime.backends.simulated import World

COPY_BYTES, COPY_TURNS = 1 << 30, 5
SETS_PER_CACHE = 3  # sets of rows together are so many times the second cache
MOST_SETS = 16
FLOOR_EDGES = 8  # that a worker of the gather floor reads at once (cuda/gpu/rows/gather.cuh)
BUSY_CYCLES = 2_000_000  # about a millisecond

Call = Callable[[], None]


class Clock(Protocol):
    """A clock of calls that launch work without waiting for it."""

    def ms(self, calls: Sequence[Call]) -> float:
        """Return the mean milliseconds of calls made one after another."""


class EventClock:
    """A clock by events of torch's current stream."""

    def ms(self, calls: Sequence[Call]) -> float:
        """See Clock."""
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The GPU waits while the calls are made, so that what Python takes for them is not measured.
        torch.cuda._sleep(BUSY_CYCLES)
        first.record()
        for call in calls:
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / len(calls)


Together = Callable[[World, Sequence[Call]], None]


def on_streams(world: World, calls: Sequence[Call]) -> None:
    """Launch a call of each PE on a stream of its own, ordered after the current stream's work and before its next."""
    import torch

    current = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in calls]
    with nothing_freed():
        for stream, call in zip(streams, calls, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                call()
    for stream in streams:
        current.wait_stream(stream)


@dataclass
class Device:
    """The environment of baselines: the native module, its memory, and a clock."""

    module: Any
    arrays: DeviceArrays
    clock: Clock
    copy_bytes: int = COPY_BYTES
    together: Together = on_streams
    slow: dict[str, DeviceArrays] = field(default_factory=dict)  # for rows far away: "pinned", "managed"

    @classmethod
    def current(cls) -> Device:
        """Return the device of the current GPU. Raises InputError where there is none, or the module is not built."""
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # PEs of one process wait for each other
        module = cuda_module.load()
        cuda_module.need_device(module)
        return cls(module, TorchArrays(), EventClock(), slow={"pinned": PinnedArrays()})

    def backend(self, geometry: Geometry = DEFAULT_GEOMETRY) -> DeviceBackend:
        """Return the backend of a rank that owns all rows."""
        return DeviceBackend(0, World(1), Options(geometry), self.module, self.arrays)

    def tensor(self, array: Any) -> Any:
        """Return an array of the memory as a torch tensor."""
        import torch

        return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)

    def free_bytes(self) -> int:
        """Return the bytes that the device has left; all of the host's where it plays the device."""
        if not isinstance(self.arrays, TorchArrays):
            return int(self.module.limits()["memory_bytes"])
        import torch

        return int(torch.cuda.mem_get_info()[0])

    def copy_gb_per_s(self) -> float:
        """Return the bytes/s, read and written, of the fastest of a few copies of a large block, in 1e9."""
        source, target = (self.arrays.zeros(self.copy_bytes) for _ in range(2))

        def copy() -> None:
            target[:] = source

        copy()
        return 2 * self.copy_bytes / min(self.clock.ms([copy]) for _ in range(COPY_TURNS)) / 1e6


@dataclass
class Problem:
    """A graph and rows: ``sets`` of sources and outputs, alike but in different memory. weight: float32 [E] or None.

    edges: of one rank that owns all rows.
    """

    device: Device
    graph: Graph
    format: RowFormat
    x: np.ndarray
    weight: np.ndarray | None
    backend: DeviceBackend
    edges: SplitEdges
    sources: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def clear_outputs(self) -> None:
        """Fill the outputs with NaN, so that nothing that another run left is taken for sums."""
        for out in self.outputs:
            out[:] = float("nan")

    @property
    def moved_bytes(self) -> int:
        """Bytes that a sum must move: each edge's row and index (and weight), each output and offset."""
        row, graph = self.format.dim * self.format.dtype.itemsize, self.graph
        each = row + 4 + (0 if self.weight is None else 4)
        return graph.edges * each + graph.nodes * (row + 8)


def problem_of(
    device: Device,
    graph: Graph,
    dtype: str,
    width: int,
    weight: np.ndarray | None,
    edges: SplitEdges,
) -> Problem:
    """Return rows of normally distributed values, in as many sets as exceed the second cache.

    edges: of `edges_of`, which problems share.
    """
    format = RowFormat(np.dtype(dtype), width)
    x = drawn_rows(graph, format)
    made = Problem(device, graph, format, x, weight, device.backend(), edges)
    cache = int(device.module.limits()["l2_bytes"])
    sets = -(-SETS_PER_CACHE * cache // max(1, graph.nodes * format.row_bytes))
    uploaded = device.arrays.uploaded(x)
    for _ in range(min(max(2, sets), MOST_SETS)):
        rows = made.backend.rows(np.array([graph.nodes]), format, symmetric=False)
        rows.local[:] = uploaded
        made.sources.append(rows)
        made.outputs.append(made.backend.memory.padded(graph.nodes, format))
    return made


def edges_of(graph: Graph) -> SplitEdges:
    """Return the edges of one rank that owns all rows."""
    return workload.split(0, np.array([0, graph.nodes]), graph.indptr, graph.indices, keep_edges=True)


def drawn_rows(graph: Graph, format: RowFormat) -> np.ndarray:
    """Return normally distributed rows [N, dim] of the format's type."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((graph.nodes, format.dim), dtype=np.float32).astype(format.dtype)


def gather_floor(
    device: Device, indices: int, edges: int, first: int, format: RowFormat, threads: int = 256
) -> Call:
    """Return the call that reads the rows of all edges and stores nothing (cuda/gpu/rows/gather.cuh).

    indices, first: addresses of the edges' sources, int32, and of the first row. threads: of a CUDA block.
    """
    lanes, _ = launch.shape(format)
    workers = -(-edges // FLOOR_EDGES)
    blocks = -(-workers * lanes // threads)
    geometry = device.module.LaunchShape(lanes, 1, blocks, threads, 0, device.arrays.stream())
    return partial(device.module.gather_floor, indices, edges, first, format.row_bytes, 0, geometry)


def release() -> None:
    """Give memory that torch keeps for later back to the GPU, for allocations outside torch."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def matrix(problem: Problem) -> tuple[Any, Any, Any]:
    """Return indptr and indices, int32, and values of the rows' type, as cuSPARSE takes them."""
    graph, upload = problem.graph, problem.device.arrays.uploaded
    values = np.ones(graph.edges) if problem.weight is None else problem.weight
    return (
        upload(graph.indptr.astype(np.int32)),
        upload(graph.indices.astype(np.int32)),
        upload(values.astype(problem.format.dtype)),
    )
