"""Kernels of one GPU over rows that this process holds or reads through pointers: the transfer `direct`.

The native module works on addresses; what arrays those are of is a Memory's business, so that the same code runs over
a GPU's tensors and over the host memory of the tests' shim.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan import launch
from ...plan.launch import Launch, Limits
from ...plan.layout import CHUNK, ROW_ALIGNMENT, SEGMENT, RowFormat
from ...plan.workload import Plan
from .base import Epilogue, Geometry, Options, Rows, check_operation
from .world import World

DTYPES = ("float32", "float16", "bfloat16")
# Not tuned on a GPU yet: workers of 128 edges, and blocks of 256 threads.
DEFAULT_GEOMETRY = Geometry(ps=16, dist=4, wpb=8)
THREADS = 256  # of a block, of kernels that have no wpb
MOST_TABLES = 64  # of gathers


def load() -> Any:
    """The native module, checked to agree with this package.

    Raises InputError if it is not built, does not load, or was built from other sources.
    """
    # Where the package is installed beside NVSHMEM's wheel, the module finds it by itself.
    wheel = util.find_spec("nvidia.nvshmem") if util.find_spec("nvidia") else None
    try:
        for folder in (wheel.submodule_search_locations or []) if wheel else []:
            for library in sorted(Path(folder).glob("lib/libnvshmem_host.so.*")):
                ctypes.CDLL(str(library))
        from ... import _cuda
    except (ImportError, OSError) as error:
        raise InputError(
            f"the native module mgg_hpc._cuda does not load ({error}); it is built where nvcc and NVSHMEM are: "
            "pip install nvidia-nvshmem-cu13, then install this package again"
        ) from error
    return checked(_cuda)


def checked(module: Any) -> Any:
    """A native module that agrees with this package. Raises InputError for one of another version."""
    same_ring = module.ring_bytes(256, 2) == launch.ring_bytes(256, 2)
    if module.struct_sizes() != [CHUNK.itemsize, SEGMENT.itemsize] or not same_ring:
        raise InputError("the native module mgg_hpc._cuda is of another version; install this package again")
    return module


def need_device(module: Any) -> int:
    """How many GPUs this process sees. Raises InputError where there is none."""
    count, why = module.devices()
    if not count:
        raise InputError(f"no CUDA device ({why or 'none is visible'})")
    return count


class Memory(Protocol):
    """Arrays of the memory that kernels run over."""

    def zeros(self, nbytes: int) -> Any:
        """uint8 [nbytes], aligned to 256 bytes."""

    def uploaded(self, array: NDArray[Any]) -> Any:
        """A copy of a NumPy array."""

    def address(self, array: Any) -> int:
        """Of the first item."""

    def kind(self, array: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """The name of the type, the shape, and the strides in items."""

    def stream(self) -> int:
        """The stream that launches go to."""


class TorchMemory:
    """Tensors on the current GPU, and torch's current stream."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def zeros(self, nbytes: int) -> Any:
        """See Memory; torch's allocations are aligned to 512 bytes."""
        return self._torch.zeros(nbytes, dtype=self._torch.uint8, device="cuda")

    def uploaded(self, array: NDArray[Any]) -> Any:
        """See Memory; bfloat16 has no name in torch's NumPy, and travels as bits."""
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.uint16)).cuda().view(self._torch.bfloat16)
        return self._torch.from_numpy(np.ascontiguousarray(array)).cuda()

    def address(self, array: Any) -> int:
        """See Memory."""
        return int(array.data_ptr())

    def kind(self, array: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """See Memory."""
        if not array.is_cuda:
            raise ValueError("expected a tensor on the GPU")
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), tuple(array.stride())

    def stream(self) -> int:
        """See Memory."""
        return int(self._torch.cuda.current_stream().cuda_stream)


class DeviceBackend:
    """One rank of a World that this process plays on one GPU. See Backend and EdgeKernels for what calls do.

    Rows of other ranks are read through their pointers, as if they were on other GPUs. Launches go to the memory's
    current stream and are not waited for; calls over one plan share scratch memory, and so belong on one stream.
    """

    name = "cuda"
    reaches_peers = True
    has_gets = False  # whether NVSHMEM runs, and fetches what no pointer reaches

    def __init__(self, rank: int, world: World, options: Options, module: Any, memory: Memory) -> None:
        self.rank, self.size, self.geometry, self.meter = rank, world.size, options.geometry, options.meter
        self.memory = memory
        self._native, self._world, self._made = module, world, 0
        found = module.limits()
        self.limits = Limits(**{name: found[name] for name in Limits.__dataclass_fields__})
        self._plans: WeakKeyDictionary[Plan, Any] = WeakKeyDictionary()
        self._gathers: dict[tuple[bytes, bytes, int], Any] = {}
        self._occupancy: dict[tuple[Any, ...], dict[str, int]] = {}

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        """See Backend.rows."""
        size = int(counts.max(initial=0) if symmetric else counts[self.rank]) * format.row_bytes
        buffer = self.memory.zeros(size)
        if symmetric:
            addresses = self._world.allocation(self._made)
            self._made += 1
        else:
            addresses = np.zeros(self.size, dtype=np.uint64)
        addresses[self.rank] = self.memory.address(buffer)
        return Rows(format, addresses, counts, buffer, self.rank, symmetric)

    def padded(self, count: int, format: RowFormat) -> Any:
        """Private rows [count, dim] laid out as kernels store them."""
        counts = np.zeros(self.size, dtype=np.int64)
        counts[self.rank] = count
        return self.rows(counts, format, symmetric=False).local

    def publish(self, rows: Rows) -> None:
        """See Backend.publish; the ranks of a World take turns."""

    def launch(self, plan: Plan, format: RowFormat, reduce: str = "sum") -> Launch:
        """How `aggregate` is launched for rows of this format.

        Raises InputError where the GPU cannot hold a block.
        """
        geometry = self.geometry
        local = int(plan.chunks[0]["segments"])  # the owned rows come first
        remote = len(plan.segments) - local
        knobs = {"ps": geometry.ps, "dist": geometry.dist, "wpb": geometry.wpb}
        made = launch.direct(local, remote, format, **knobs, limits=self.limits)
        kernel = (reduce == "max", remote > 0, made.lanes, made.packs, made.threads)
        key = (_name(format), *kernel)
        if key not in self._occupancy:
            self._occupancy[key] = getattr(self._native, f"occupancy_{key[0]}")(*kernel)
        most = self._occupancy[key]["threads_per_block"]
        if made.threads > most:
            raise InputError(
                f"plan.wpb = {geometry.wpb}: a block of {made.threads} threads, but {self.limits.name}'s registers "
                f"hold {most} of this kernel's; at most {most // launch.LANES}"
            )
        return replace(made, resident=self._occupancy[key]["blocks_per_multiprocessor"])

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
        """See Backend.aggregate; ``edge`` and the epilogue's arrays are float32."""
        check_operation(op, reduce, edge)
        epilogue = epilogue or Epilogue()
        getattr(self._plan(plan), f"aggregate_{_name(src.format)}")(
            self._rows(src),
            reduce,
            self._flat("edge", edge, plan.edges),
            self._table("out", out, plan.destinations, src.format),
            self._flat("scale", epilogue.scale, plan.destinations),
            self._flat("bias", epilogue.bias, src.format.dim),
            epilogue.relu,
            self._geometry(self.launch(plan, src.format, reduce)),
        )

    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        """See EdgeKernels.sddmm."""
        made, (lanes, _) = self._plan(plan), launch.shape(src.format)
        getattr(made, f"sddmm_{_name(src.format)}")(
            self._rows(src),
            self._table("dst", dst, plan.destinations, src.format),
            self._flat("out_edge", out_edge, plan.edges),
            self._spread(lanes, made.tasks),
        )

    def edge_softmax(self, plan: Plan, scores: Any, out: Any) -> None:
        """See EdgeKernels.edge_softmax."""
        made = self._plan(plan)
        scores_at, out_at = (self._flat(*named, plan.edges) for named in (("scores", scores), ("out", out)))
        made.edge_softmax(scores_at, out_at, self._spread(8, made.tasks))

    def gather(self, table: Rows, bounds: NDArray[np.int64], ids: Any, out: Any) -> None:
        """See EdgeKernels.gather."""
        count = self.memory.kind(ids)[1][0] if len(self.memory.kind(ids)[1]) else 0
        ids_at = self._flat("ids", ids, count, "int64")
        unreached = np.flatnonzero((table.addresses == 0) & (table.counts > 0))
        if len(unreached) and not self.has_gets:
            raise ValueError(
                f"gather: rows of PE {unreached[0]} are not reachable by pointer from PE {self.rank}, "
                "and NVSHMEM does not run"
            )
        if count and not (int(ids.min()) >= 0 and int(ids.max()) < int(bounds[-1])):
            raise ValueError(
                f"gather: ids of {int(ids.min())} .. {int(ids.max())}, of {int(bounds[-1])} rows"
            )
        lanes, _ = launch.shape(table.format)
        at = self._table("out", out, count, table.format)
        self._gathers_of(table, bounds).rows(ids_at, count, at, self._spread(lanes, count))

    def _gathers_of(self, table: Rows, bounds: NDArray[np.int64]) -> Any:
        """The tables of a gather in device memory, kept from call to call."""
        row_bytes, mine = table.format.row_bytes, int(table.addresses[self.rank])
        key = (bounds.tobytes(), table.addresses.tobytes(), row_bytes)
        if key not in self._gathers:
            if len(self._gathers) >= MOST_TABLES:
                self._gathers.clear()
            self._gathers[key] = self._native.Gathers(bounds, table.addresses, mine, row_bytes)
        return self._gathers[key]

    def _plan(self, plan: Plan) -> Any:
        made = self._plans.get(plan)
        if made is None:
            part_edges = launch.part_edges(self.geometry.ps, self.geometry.dist)
            arrays = (plan.chunks.view(np.uint8), plan.segments.view(np.uint8), plan.indices)
            made = self._native.Plan(*arrays, plan.destinations, part_edges, plan.rank)
            self._plans[plan] = made
        return made

    def _rows(self, rows: Rows) -> Any:
        return self._native.Rows(rows.addresses, rows.format.dim)

    def _geometry(self, launch: Launch) -> Any:
        stream = self.memory.stream()
        return self._native.Geometry(launch.lanes, launch.packs, launch.blocks, launch.threads, stream)

    def _spread(self, lanes: int, workers: int) -> Any:
        """Blocks for as many workers of ``lanes`` lanes as there is work for."""
        blocks = min(max(1, -(-workers * lanes // THREADS)), launch.MOST_BLOCKS)
        return self._native.Geometry(lanes, 1, blocks, THREADS, self.memory.stream())

    def _flat(self, name: str, array: Any, count: int, dtype: str = "float32") -> int:
        """The address of contiguous values [count], or 0 for None. Raises ValueError for anything else."""
        if array is None:
            return 0
        kind, shape, strides = self.memory.kind(array)
        if kind != dtype or shape != (count,) or (count > 1 and strides != (1,)):
            raise ValueError(f"{name}: {kind} {list(shape)}; expected contiguous {dtype} [{count}]")
        return self.memory.address(array)

    def _table(self, name: str, array: Any, count: int, format: RowFormat) -> int:
        """The address of padded rows. Raises ValueError for anything else."""
        kind, shape, strides = self.memory.kind(array)
        if kind != format.dtype.name or shape != (count, format.dim):
            raise ValueError(f"{name}: {kind} {list(shape)}; expected {format.dtype} [{count}, {format.dim}]")
        address = self.memory.address(array)
        inside = format.dim == 1 or strides[1] == 1
        if count and not (strides[0] == format.stride and inside and address % ROW_ALIGNMENT == 0):
            raise ValueError(
                f"{name}: rows {strides[0]} values apart, at address {address:#x}; expected {format.stride} apart, "
                f"from a multiple of {ROW_ALIGNMENT} bytes on"
            )
        return address


def _name(format: RowFormat) -> str:
    if format.dtype.name not in DTYPES:
        raise ValueError(f"GPU kernels take rows of {', '.join(DTYPES)}, and these are {format.dtype}")
    return format.dtype.name
