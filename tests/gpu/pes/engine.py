"""What the table of cases runs on: a GPU, the host that plays one (tests/shim), or the kernels of CPUs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from memory import heap_zeros

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import device
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.device_arrays import DeviceArrays, nothing_freed
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.nvshmem import SIDE_BY_SIDE, NvshmemPeers
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World, all_reachable

# Hubs of more than eight edges, so that every case has some; several warps a block.
SMALL = Geometry(ps=2, dist=2, wpb=2)
DTYPES = ("float32", "float16", "bfloat16")  # of rows on GPUs
CHANNELS = 5  # of the shim's transport
Call = Callable[[], None]


class HostCopies:
    """Copies for the shim: at once, or as late as marks allow."""

    def __init__(self, *, late):
        self._late, self._begun, self._ended, self._waiting = late, 0, 0, []

    def upload(self, rows, to):
        assert len(rows) == len(to)
        self._begun += 1
        self._waiting.append((rows, to))
        if not self._late:
            self.finish(self._begun)

    def mark(self):
        return self._begun

    def launched(self):
        """Launches are done when they return."""
        return "launched"

    def after(self, mark):
        assert mark == "launched"

    def before(self, mark):
        self.finish(mark)

    def finish(self, mark):
        while self._ended < mark:
            rows, to = self._waiting.pop(0)
            to[:] = rows
            self._ended += 1


class HostArrays:
    """NumPy arrays, for the shim; rows end where their memory ends.

    late: copies of a stream of their own are made when something waits for them. locked: bytes by address. What is
    allocated on the second stream is used on the other one after that has waited for it.
    """

    def __init__(self, *, late=True):
        self.late, self.locked, self._tape_kernels = late, {}, {}
        self._thread, self._unwaited = threading.local(), set()

    def begin(self, device):
        pass

    def _is_beside(self):
        return getattr(self._thread, "beside", False)

    def zeros(self, nbytes):
        made = heap_zeros(nbytes, 256)
        if self._is_beside():  # until it is freed: others, of any kind, may have its address then
            self._unwaited.add(made.ctypes.data)
            weakref.finalize(made, self._unwaited.discard, made.ctypes.data).atexit = False
        return made

    def empty(self, nbytes):
        made = self.zeros(nbytes)
        made[:] = 0xA5
        return made

    def uploaded(self, array):
        return array.copy()

    def sent(self, array):
        return array.copy()

    def downloaded(self, array):
        return array.copy()

    def view(self, address, nbytes):
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def pinned(self, nbytes):
        return np.full(nbytes, 0xA5, np.uint8)

    def lock(self, address, nbytes):
        assert address not in self.locked, "CUDA refuses pages that are locked already"
        self.locked[address] = nbytes
        return lambda: self.locked.pop(address)

    def copies(self, *, own=False):
        return HostCopies(late=self.late)

    def aside(self):
        return contextlib.nullcontext()

    def address(self, array):
        at = array.ctypes.data
        assert at not in self._unwaited or self._is_beside(), "nothing has waited for the second stream"
        return at

    def kind(self, array):
        return (
            array.dtype.name,
            array.shape,
            tuple(step // array.itemsize for step in array.strides),
        )

    def stream(self):
        return int(self._is_beside())

    def finish(self):
        """Launches are done when they return, unless they are held."""

    def stamp(self):
        return time.perf_counter(), self._is_beside()

    def since(self, stamp):
        taken = time.perf_counter() - stamp[0]
        return lambda: taken

    @contextlib.contextmanager
    def beside(self):
        self._thread.beside = True
        yield
        self._thread.beside = False

    def wait(self, stamp, made):
        assert stamp[1] and not self._is_beside()
        # A tensor without rows has a null pointer, and its buffer is used again like any other.
        self._unwaited -= {tensor.untyped_storage().data_ptr() for tensor in made}

    def record(self, launch):
        raise RuntimeError("the shim records nothing")

    def column_sums(self, rows):
        return rows.astype(np.float64).sum(0).astype(np.float32)

    def running_sums(self, counts):
        return np.cumsum(counts.view(np.int64))

    def total(self, values):
        return float(values.sum(dtype=np.float64))

    def tape_kernels(self, native):
        if native not in self._tape_kernels:
            from shim.host_kernels import HostKernels

            self._tape_kernels[native] = HostKernels(native)
        return self._tape_kernels[native]


@functools.cache
def _loaded(library: Path) -> Any:
    """An extension module from a file; once, since its types are registered once."""
    spec = importlib.util.spec_from_file_location("_cuda", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine:
    """Backends over one native module, and ways in and out of its memory.

    One process plays all PEs of a case, or after `join` one of the PEs of an MPI job: then the job is their world.
    device: "cuda", "shim", or "serial" for CPUs.
    """

    def __init__(self, device: str, module: Any, arrays: Any) -> None:
        self.device, self.module, self.arrays = device, module, arrays
        self.repeats = 10 if device == "cuda" else 2  # of what must give the same bits each time
        self.rounds = 3 if device == "serial" else 1  # of a halo's exchange
        self.job: NvshmemPeers | None = None
        self._comm: Any = None
        self._seed = 0
        self._share = 1.0  # of the GPU's blocks, of one process of a job
        self._streams: list[Any] = []

    @classmethod
    def host(cls) -> Engine:
        """CPUs: a thread plays each PE."""
        return cls("serial", None, HostArrays())

    @classmethod
    def shim(cls, library: Path) -> Engine:
        """The host, through a _cuda that was built for the shim."""
        return cls("shim", cuda_module.checked(_loaded(library)), HostArrays())

    @classmethod
    def gpu(cls, library: Path | None = None) -> Engine:
        """The current GPU, through the package's _cuda or another. Raises InputError where there is none."""
        # One process plays several PEs, whose kernels wait for each other: each stream needs a queue of its own.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        module = cuda_module.load() if library is None else cuda_module.checked(_loaded(library))
        cuda_module.need_device(module)
        return cls("cuda", module, DeviceArrays())

    def join(self, comm: Any, *, unreached: bool = False) -> None:
        """Start NVSHMEM with the other processes. unreached: as if no pointer led to another PE. Collective."""
        assignment = device.take(comm, self.module, share=True)
        reaches = (lambda rank, peer: rank == peer) if unreached else all_reachable
        self.job, self._comm = NvshmemPeers(comm, self.module, self.arrays, reaches), comm
        # Where kernels run side by side, each process sees only its part of the GPU.
        self._share = 1.0 if self.job.shared_gpu == SIDE_BY_SIDE else 1 / assignment.ranks

    @property
    def pointers(self) -> bool:
        """Whether pointers lead to all PEs."""
        return self.job is None or not self.job.gets

    def world(self, size: int, reaches: Callable[[int, int], bool] = all_reachable) -> Any:
        """The PEs of a case: the job's, or as many as one process plays."""
        assert self.job is None or self.job.size == size
        return self.job or World(size, reaches)

    def ranks(self, world: Any) -> list[int]:
        """Those that this process plays."""
        return [world.rank] if world is self.job else list(range(world.size))

    def everywhere(self, values: list[Any]) -> list[Any]:
        """One value of each PE that this process plays: the values of all PEs. Collective."""
        return values if self._comm is None else [v for of in self._comm.allgather(values) for v in of]

    def answers(self) -> bool:
        """Whether the device still works: after some errors a GPU refuses all that follows."""
        if self.device != "cuda":
            return True
        import torch

        try:
            torch.cuda.synchronize()
            return bool(torch.ones(1, device="cuda").item())
        except RuntimeError:
            return False

    def seed(self, seed: int, pe: int = 0) -> None:
        """Draw the order of execution anew, where it is ours to draw; ``pe`` launches."""
        self._seed = seed
        if self.device == "shim":
            self.module.shim_set(seed, pe, 1 + seed % 5)

    def backends(
        self, world: World, geometry: Geometry = SMALL, *, searches: bool = False, threads: int = 2
    ) -> list[Any]:
        """One for each rank of a world that this process plays, all of which run kernels at once."""
        options, made = Options(geometry, threads, searches=searches), []
        if self.device == "serial":
            return [SerialBackend(rank, world, options) for rank in range(world.size)]
        for rank in self.ranks(world):
            backend = DeviceBackend(rank, world, options, self.module, self.arrays)
            if world is self.job:
                backend.share, backend.alone = self._share, not world.shared_gpu
            else:
                backend.share, ranks = 1 / world.size, range(world.size)
                if self.device == "shim":
                    backend.has_gets = not all(world.reaches(a, b) for a in ranks for b in ranks)
            if self.device == "shim":
                backend.channels = list(range(CHANNELS))
            made.append(backend)
        return made

    def together(self, world: Any, turns: Sequence[Sequence[Call]]) -> None:
        """Run calls of all ranks that this process plays at once, and wait for them.

        turns: one call for each rank, in turns: no rank is launched ahead of the others.
        """
        if self.device == "serial":
            with ThreadPoolExecutor(max(1, world.size)) as pool:
                list(pool.map(lambda calls: [call() for call in calls], zip(*turns, strict=True)))
        elif world is self.job:
            self.seed(self._seed + world.rank, world.rank)
            self._launch(turns, lambda _: None)
            self.arrays.finish()
        elif self.device == "shim":
            seed = self._seed
            with self.symmetric(world):
                self.module.shim_hold()
                try:
                    self._launch(turns, lambda rank: self.module.shim_set(seed, rank, 1 + seed % 5))
                    self.module.shim_release()
                finally:
                    self.module.shim_drop()
        else:
            import torch

            with nothing_freed():
                self._launch(turns, self._stream)
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def symmetric(self, world: Any) -> Iterator[None]:
        """Tell the shim of the symmetric memory of a world that one process plays, within ``with``."""
        if self.device != "shim" or world is self.job:
            yield
            return
        for made in world.allocations:
            self.module.shim_symmetric(made.addresses.diagonal().tolist(), made.nbytes)
        try:
            yield
        finally:
            self.module.shim_forget()

    def _launch(self, turns: Sequence[Sequence[Call]], of: Callable[[int], Any]) -> None:
        for calls in turns:
            for rank, call in enumerate(calls):
                with of(rank) or contextlib.nullcontext():
                    call()

    def _stream(self, rank: int) -> contextlib.AbstractContextManager:
        import torch

        while len(self._streams) <= rank:
            self._streams.append(torch.cuda.Stream())
        self._streams[rank].wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._streams[rank])

    def array(self, values: np.ndarray | None) -> Any:
        """In the engine's memory."""
        return None if values is None else self.arrays.uploaded(values)

    def numpy(self, array: Any) -> np.ndarray:
        """From the engine's memory."""
        if isinstance(array, np.ndarray):
            return array
        if str(array.dtype) == "torch.bfloat16":
            import torch

            return array.contiguous().view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        return array.cpu().numpy()

    def fill(self, rows: Any, values: np.ndarray) -> None:
        """Write into rows in place."""
        rows[:] = self.array(np.ascontiguousarray(values)) if len(values) else rows[:]

    def nan_rows(self, backend: Any, count: int, format: RowFormat) -> Any:
        """Rows that nobody has written yet."""
        rows = backend.memory.padded(count, format)
        rows[:] = float("nan")
        return rows
