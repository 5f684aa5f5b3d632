"""What the table of cases runs on: a GPU, or the host that plays one (tests/shim)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from memory import heap_zeros

import mgg_hpc
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import device
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.device_arrays import TorchArrays, nothing_freed
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.nvshmem import SIDE_BY_SIDE, NvshmemPeers
from mgg_hpc.runtime.backends.simulated import World, all_reachable

# Hubs of more than eight edges, so that every case has some; several warps a block.
SMALL = Geometry(ps=2, dist=2, wpb=2)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CHANNELS = 5  # of the shim's transport


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

    late: copies of a stream of their own are made when something waits for them. locked: bytes by address.
    """

    def __init__(self, *, late=True):
        self.late, self.locked = late, {}

    def begin(self, device):
        pass

    def zeros(self, nbytes):
        return heap_zeros(nbytes, 256)

    def uploaded(self, array):
        return array.copy()

    def downloaded(self, array):
        return array.copy()

    def view(self, address, nbytes):
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def pinned(self, nbytes):
        return np.full(nbytes, 0xA5, np.uint8)

    def lock(self, address, nbytes):
        self.locked[address] = nbytes
        return lambda: self.locked.pop(address)

    def copies(self):
        return HostCopies(late=self.late)

    def address(self, array):
        return array.ctypes.data

    def kind(self, array):
        return (
            array.dtype.name,
            array.shape,
            tuple(step // array.itemsize for step in array.strides),
        )

    def stream(self):
        return 0

    def finish(self):
        """Launches are done when they return, unless they are held."""

    def stamp(self):
        return time.perf_counter()

    def since(self, stamp):
        taken = time.perf_counter() - stamp
        return lambda: taken

    def record(self, launch):
        raise RuntimeError("the shim records nothing")

    def column_sums(self, rows):
        return rows.astype(np.float64).sum(0).astype(np.float32)

    def total(self, values):
        return float(values.sum(dtype=np.float64))

    def tape_kernels(self):
        """None: tapes are interpreted, unless a test compiles them."""


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
    """

    def __init__(self, device: str, module: Any, arrays: Any) -> None:
        self.device, self.module, self.arrays = device, module, arrays
        self.repeats = 10 if device == "cuda" else 2  # of what must give the same bits each time
        self.job: NvshmemPeers | None = None
        self._comm: Any = None
        self._seed = 0
        self._share = 1.0  # of the GPU's blocks, of one process of a job
        self._streams: list[Any] = []

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
        return cls("cuda", module, TorchArrays())

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
        if self.device == "shim":
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
        self,
        world: World,
        geometry: Geometry = SMALL,
        *,
        searches: bool = False,
    ) -> list[DeviceBackend]:
        """One for each rank of a world that this process plays, all of which run kernels at once."""
        options, made = Options(geometry, searches=searches), []
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

    @contextlib.contextmanager
    def together(self, world: Any) -> Iterator[Callable[[int], contextlib.AbstractContextManager]]:
        """What is launched inside runs at once, as soon as all of it is launched: a rank's within the given context."""
        if world is self.job:
            self.seed(self._seed + world.rank, world.rank)
            yield lambda _: contextlib.nullcontext()
            self.arrays.finish()
            return
        if self.device != "shim":
            import torch

            with nothing_freed():
                yield self._stream
            torch.cuda.synchronize()
            return
        seed = self._seed
        for made in world.allocations:
            self.module.shim_symmetric(made.addresses.diagonal().tolist(), made.nbytes)
        self.module.shim_hold()
        try:
            yield lambda rank: contextlib.nullcontext(self.module.shim_set(seed, rank, 1 + seed % 5))
            self.module.shim_release()
        finally:
            self.module.shim_drop()
            self.module.shim_forget()

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

    def nan_rows(self, backend: DeviceBackend, count: int, format: RowFormat) -> Any:
        """Rows that nobody has written yet."""
        rows = backend.memory.padded(count, format)
        rows[:] = float("nan")
        return rows

    def about(self) -> dict[str, Any]:
        """The device, its driver and versions."""
        versions = {"mgg": mgg_hpc.__version__, "python": platform.python_version(), "numpy": np.__version__}
        for name in ("torch", "nvidia-nvshmem-cu13", "cupy-cuda13x"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        limits = self.module.limits()
        return {"device": self.device, **limits, "driver_version": _driver(), "versions": versions}


def _driver() -> str | None:
    """As nvidia-smi names it; None where there is none."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    return said[0] if said else None
