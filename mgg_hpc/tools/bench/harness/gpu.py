"""The environment of baselines on a GPU: the native module, memory, a clock, and rows in several sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ....data.graph import Graph
from ....plan import workload
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ....runtime.backends.base import Options
from ....runtime.backends.cuda import module as cuda_module
from ....runtime.backends.cuda.kernels import DEFAULT_GEOMETRY, DeviceBackend
from ....runtime.backends.cuda.memory import Memory, PinnedMemory, TorchMemory, nothing_freed
from ....runtime.backends.simulated import World

COPY_BYTES, COPY_TURNS = 1 << 30, 5
SETS_PER_CACHE = 3  # sets of rows together are so many times the second cache
MOST_SETS = 16
BUSY_CYCLES = 2_000_000  # about a millisecond

Call = Callable[[], None]


class Clock(Protocol):
    """Measures work that is launched and not waited for."""

    def ms(self, calls: Sequence[Call]) -> float:
        """The mean of calls made one after another."""


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


class HostClock:
    """For what runs at once, as the tests' stand-in for a GPU does."""

    def ms(self, calls: Sequence[Call]) -> float:
        """See Clock."""
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) * 1e3 / len(calls)


Together = Callable[[World, Sequence[Call]], None]


def on_streams(world: World, calls: Sequence[Call]) -> None:
    """A call of each PE, on streams of their own: after the current one's work, and before what comes on it next."""
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
class Stage:
    """The environment of baselines: the native module, its memory, and a clock."""

    module: Any
    memory: Memory
    clock: Clock
    copy_bytes: int = COPY_BYTES
    together: Together = on_streams
    slow: dict[str, Memory] = field(default_factory=dict)  # for rows far away: "pinned", "managed"

    @classmethod
    def gpu(cls) -> Stage:
        """The current GPU. Raises InputError where there is none, or the module is not built."""
        module = cuda_module.load()
        cuda_module.need_device(module)
        return cls(module, TorchMemory(), EventClock(), slow={"pinned": PinnedMemory()})

    def tensor(self, array: Any) -> Any:
        """An array of the memory as torch sees it."""
        import torch

        return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)

    def copy_gb_per_s(self) -> float:
        """Read and written bytes a second of the fastest of a few copies of a large block, in 1e9."""
        source, target = (self.memory.zeros(self.copy_bytes) for _ in range(2))

        def copy() -> None:
            target[:] = source

        copy()
        return 2 * self.copy_bytes / min(self.clock.ms([copy]) for _ in range(COPY_TURNS)) / 1e6


@dataclass
class Problem:
    """A graph and rows: ``sets`` of sources and outputs, alike but in different memory. weight: float32 [E] or None.

    plans: those made so far, by their ps.
    """

    stage: Stage
    graph: Graph
    format: RowFormat
    x: np.ndarray
    weight: np.ndarray | None
    backend: DeviceBackend
    sources: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    plans: dict[int, Plan] = field(default_factory=dict)

    def plan(self, ps: int) -> Plan:
        """Return the plan of one rank that owns all rows."""
        if ps not in self.plans:
            bounds, graph = np.array([0, self.graph.nodes]), self.graph
            self.plans[ps] = workload.build(0, bounds, graph.indptr, graph.indices, ps, keep_edges=True)
        return self.plans[ps]

    @property
    def moved_bytes(self) -> int:
        """Each edge's row and index (and weight), each output and offset."""
        row, graph = self.format.dim * self.format.dtype.itemsize, self.graph
        each = row + 4 + (0 if self.weight is None else 4)
        return graph.edges * each + graph.nodes * (row + 8)


def problem_of(
    stage: Stage,
    graph: Graph,
    dtype: str,
    width: int,
    weight: np.ndarray | None,
    plans: dict[int, Plan] | None = None,
) -> Problem:
    """Rows of normally distributed values, in as many sets as it takes to be more than the second cache.

    plans: of the same graph, for problems to share.
    """
    format = RowFormat(np.dtype(dtype), width)
    x = np.random.default_rng(0).standard_normal((graph.nodes, width), dtype=np.float32).astype(format.dtype)
    backend = DeviceBackend(0, World(1), Options(DEFAULT_GEOMETRY), stage.module, stage.memory)
    made = Problem(stage, graph, format, x, weight, backend, plans={} if plans is None else plans)
    cache = int(stage.module.limits()["l2_bytes"])
    sets = -(-SETS_PER_CACHE * cache // max(1, graph.nodes * format.row_bytes))
    uploaded = stage.memory.uploaded(x)
    for _ in range(min(max(2, sets), MOST_SETS)):
        rows = backend.rows(np.array([graph.nodes]), format, symmetric=False)
        rows.local[:] = uploaded
        made.sources.append(rows)
        made.outputs.append(backend.padded(graph.nodes, format))
    return made


def release() -> None:
    """Give memory back to the GPU that torch has kept for later: others allocate beside it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def matrix(problem: Problem) -> tuple[Any, Any, Any]:
    """indptr and indices int32, and values of the rows' type, as cuSPARSE takes them."""
    graph, upload = problem.graph, problem.stage.memory.uploaded
    values = np.ones(graph.edges) if problem.weight is None else problem.weight
    return (
        upload(graph.indptr.astype(np.int32)),
        upload(graph.indices.astype(np.int32)),
        upload(values.astype(problem.format.dtype)),
    )
