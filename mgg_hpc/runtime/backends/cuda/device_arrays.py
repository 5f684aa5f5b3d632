"""Arrays that GPU kernels run over: torch's tensors on the current GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ..base import Recording
from .tape_kernels import TapeKernels


@contextlib.contextmanager
def nothing_freed() -> Iterator[None]:
    """Disable Python's garbage collector within the context.

    A collection may free device memory, which waits for running kernels. If ranks share a GPU, these kernels
    may in turn wait for kernels of other ranks that have not been launched yet.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class DeviceArrays:
    """Tensors on the current GPU, and torch's current stream."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._copies: Copies | None = None
        self._beside: Copies | None = None

    def begin(self, device: int) -> None:
        """Use this GPU from now on, on a stream of its own. Raises InputError if torch finds no GPU."""
        cuda = self._torch.cuda
        if not cuda.is_available():
            raise InputError(
                f"torch {self._torch.__version__} finds no GPU: it is built without CUDA, or for another driver; "
                "install a torch that is built for this machine's CUDA"
            )
        cuda.set_device(device)
        # Not the default one, on which no CUDA graph can be recorded.
        cuda.set_stream(cuda.Stream())
        self._copies = Copies(self._torch)  # on this GPU, whichever thread uses it first
        self._beside = Copies(self._torch)  # does not wait for what `aside` launches
        # Some containers turn on TF32, which keeps 10 bits of each factor; half products are added in float32.
        self._torch.set_float32_matmul_precision("highest")
        self._torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def zeros(self, nbytes: int) -> Any:
        """Return zeros, uint8 [nbytes], aligned to 256 bytes."""
        with self._torch.inference_mode(False):  # they may be written in other modes later
            return self._torch.zeros(nbytes, dtype=self._torch.uint8, device="cuda")

    def empty(self, nbytes: int) -> Any:
        """Return uninitialised bytes, uint8 [nbytes], aligned to 256 bytes."""
        with self._torch.inference_mode(False):
            return self._torch.empty(nbytes, dtype=self._torch.uint8, device="cuda")

    def uploaded(self, array: NDArray[Any]) -> Any:
        """Return a copy of a NumPy array on the GPU."""
        if array.dtype.name == "bfloat16":  # unknown to torch.from_numpy
            return self._torch.from_numpy(array.view(np.uint16)).cuda().view(self._torch.bfloat16)
        return self._torch.from_numpy(np.ascontiguousarray(array)).cuda()

    def sent(self, array: NDArray[Any]) -> Any:
        """Return a copy of a NumPy array on the GPU, without waiting for the GPU.

        The array may be changed at once, unless it is page-locked (`pinned`): then it may be freed, but not
        changed.
        """
        host = self._torch.from_numpy(np.ascontiguousarray(array))
        return host.pin_memory().cuda(non_blocking=True)

    def downloaded(self, array: Any) -> NDArray[Any]:
        """Return a NumPy copy of an array, once the current stream has finished."""
        return np.asarray(array.cpu().numpy())

    def view(self, address: int, nbytes: int) -> Any:
        """Return an array, uint8 [nbytes], over memory that the caller keeps."""
        return self._torch.as_tensor(_Bytes(address, nbytes), device="cuda")

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Return page-locked memory of the host, uninitialised."""
        found: NDArray[np.uint8] = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        return found

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        """Lock pages of the host's memory, as `Memory.lock` does."""
        runtime = self._torch.cuda.cudart()
        if not nbytes:
            return lambda: None
        error = int(runtime.cudaHostRegister(address, nbytes, 0))
        if error:
            raise InputError(
                f"{nbytes:,} bytes of the host's memory cannot be locked for the GPU (CUDA error {error}): free "
                "some, lower host=, keep rows of training in files (plan.scratch), or edges of traversals on the GPU "
                "(--edges)"
            )
        return lambda: runtime.cudaHostUnregister(address)

    def copies(self, *, own: bool = False) -> Copies:
        """Return a stream for copies, other than the current one. own: not one that other callers share."""
        if own:
            return Copies(self._torch)
        # One for all passes: torch hands out 32 streams in turn, and one of these is the current one.
        if self._copies is None or self._copies.stream == self._torch.cuda.current_stream():
            self._copies = Copies(self._torch)
        return self._copies

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which launches go to another stream of this GPU, in any thread."""
        stream: contextlib.AbstractContextManager[Any] = self._torch.cuda.stream(self.copies().stream)
        return stream

    def address(self, array: Any) -> int:
        """Return the address of the first item of an array of the GPU, or of locked memory of the host."""
        return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())

    def kind(self, array: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Return an array's dtype, shape, and strides in items. Raises ValueError for a tensor of the host."""
        if not array.is_cuda:
            raise ValueError("expected a tensor on the GPU")
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), tuple(array.stride())

    def stream(self) -> int:
        """Return the handle of the current stream."""
        return int(self._torch.cuda.current_stream().cuda_stream)

    def finish(self) -> None:
        """Wait for the current stream."""
        self._torch.cuda.current_stream().synchronize()

    def stamp(self) -> Any:
        """Return a time stamp on the current stream; None while a CUDA graph is recorded."""
        if self._torch.cuda.is_current_stream_capturing():
            return None
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def since(self, stamp: Any) -> Callable[[], float]:
        """Return a function for the seconds from a stamp to now, to be called once the stream has finished."""
        now = self.stamp()
        return lambda: stamp.elapsed_time(now) / 1e3

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which this thread launches on a second stream, other than that of `aside`."""
        assert self._beside is not None  # once `begin` has made it
        found: contextlib.AbstractContextManager[Any] = self._torch.cuda.stream(self._beside.stream)
        return found

    def wait(self, stamp: Any, made: Iterable[Any]) -> None:
        """Make the current stream wait for a stamp.

        made: tensors made on another stream before the stamp; torch's allocator keeps their memory until the
        current stream has used them.
        """
        stream = self._torch.cuda.current_stream()
        stream.wait_event(stamp)
        for tensor in made:
            tensor.record_stream(stream)

    def record(self, launch: Callable[[], None]) -> Recording:
        """Record what ``launch`` launches as a CUDA graph, without running it."""
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        # Other threads may query the GPU meanwhile: NCCL's does.
        with (
            nothing_freed(),
            cuda.graph(graph, stream=cuda.current_stream(), capture_error_mode="thread_local"),
        ):
            launch()
        made: Recording = graph
        return made

    def column_sums(self, rows: Any) -> Any:
        """Return the sums [F] of the columns of float32 rows [n, F], added in float64 in the order of rows."""
        total = rows[0].double()
        for row in rows[1:]:
            total += row
        return total.float()

    def running_sums(self, counts: Any) -> Any:
        """Return the cumulative sums [n] of int64 values, given as bytes [8 n]."""
        return self._torch.cumsum(counts.view(self._torch.int64), 0)

    def total(self, values: Any) -> float:
        """Return the sum of float32 values [n], added in float64, once the current stream has finished."""
        return float(values.sum(dtype=self._torch.float64))

    def tape_kernels(self, native: Any) -> TapeKernels:
        """Return a compiler of tapes for the current GPU. Raises InputError without CuPy or NVRTC."""
        return TapeKernels.by_cupy(native.tape_headers)


class Copies:
    """A stream for copies from the host's memory. Kernels are launched on the current stream beside it."""

    def __init__(self, torch: Any) -> None:
        self._torch, self.stream = torch, torch.cuda.Stream()
        while self.stream == torch.cuda.current_stream():
            self.stream = torch.cuda.Stream()

    def upload(self, rows: NDArray[np.uint8], to: Any) -> None:
        """Begin to copy bytes [n] to an array of the device, after all earlier copies.

        The bytes must not change until the copy has ended.
        """
        with self._torch.cuda.stream(self.stream):
            to.copy_(self._torch.from_numpy(rows), non_blocking=True)

    def mark(self) -> Any:
        """Return an event that occurs once all copies so far have ended."""
        return self.stream.record_event()

    def launched(self) -> Any:
        """Return an event that occurs once all launches on the current stream so far have ended."""
        return self._torch.cuda.current_stream().record_event()

    def after(self, mark: Any) -> None:
        """Make later copies wait for an event that `launched` returned."""
        self.stream.wait_event(mark)

    def before(self, mark: Any) -> None:
        """Make later launches on the current stream wait for an event that `mark` returned."""
        self._torch.cuda.current_stream().wait_event(mark)

    def finish(self, mark: Any) -> None:
        """Make the host wait for an event that `mark` returned."""
        mark.synchronize()


class _Bytes:
    """Bytes of the GPU's memory by CUDA's array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
