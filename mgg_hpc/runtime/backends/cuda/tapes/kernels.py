"""Kernels of tapes, made of their source by CuPy: its NVRTC, and its cache on disk."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import optional

OPTIONS = ("-std=c++17",)
THREADS = 256  # of a CUDA block


class TapeKernels(ABC):
    """What compiles tapes, and launches them."""

    @abstractmethod
    def load(self, text: str) -> bool:
        """Compile a source, unless that was done before; return False where it cannot be."""

    @abstractmethod
    def launch(self, text: str, words: NDArray[np.uint64], blocks: int, stream: int) -> None:
        """Launch CUDA blocks of THREADS threads of a loaded source's kernel on a stream; words: its struct."""


def cupy_kernels() -> TapeKernels | None:
    """Return what compiles tapes on the current GPU, or None without CuPy and NVRTC.

    What CuPy compiles it keeps in the user's cache folder, under a digest of the source, the options, the compiler and
    the GPU's architecture.
    """
    found = optional.cupy()
    try:
        if found is not None:
            found.cuda.nvrtc.getVersion()
    except Exception:  # without its libraries
        found = None
    return found and CupyKernels(found)


class CupyKernels(TapeKernels):
    """Kernels by CuPy's NVRTC."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._kernels: dict[str, Any] = {}  # None for what was not compiled

    def load(self, text: str) -> bool:
        # The first source that is not compiled is warned of.
        if text not in self._kernels:
            self._kernels[text] = self._compiled(text)
        return self._kernels[text] is not None

    def _compiled(self, text: str) -> Any:
        try:
            kernel = self._cupy.RawModule(code=text, options=OPTIONS).get_function("mgg_tape")
            kernel.compile()
        except (self._cupy.cuda.compiler.CompileException, OSError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(
                f"programs of edges are interpreted, since CuPy did not compile one: {said[0]}", stacklevel=2
            )
            return None
        return kernel

    def launch(self, text: str, words: NDArray[np.uint64], blocks: int, stream: int) -> None:
        struct = words.view(np.dtype((np.void, words.nbytes)))  # of size one: passed by value
        with self._stream(stream):
            self._kernels[text]((blocks,), (THREADS,), (struct,))

    def _stream(self, stream: int) -> Any:
        """Return a stream of CUDA as CuPy's."""
        cuda = self._cupy.cuda
        if hasattr(cuda.Stream, "from_external"):  # from CuPy 14 on
            return cuda.Stream.from_external(_Stream(stream))
        return cuda.ExternalStream(stream)


class _Stream:
    """A stream by the protocol for streams of CUDA: its version, and the stream's address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address
