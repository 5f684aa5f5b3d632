"""Kernels of tapes, which CuPy compiles by NVRTC and keeps in the user's cache folder."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np

from ....data import user_cache
from ....errors import InputError

OPTIONS = ("-std=c++17", "-default-device")
THREADS = 256  # of a CUDA block, as `__launch_bounds__` says in cuda/gpu/edges/tape.cuh


class TapeKernels:
    """Compiler and launcher of the kernels of tapes on the current GPU.

    CuPy names compiled kernels by a digest of the source, the options, the compiler and the GPU's architecture.
    """

    def __init__(self, cupy: Any, headers: str) -> None:
        """headers: text that each source is compiled after, the native module's ``tape_headers``."""
        self._cupy, self._headers = cupy, headers
        self._kernels: dict[str, Any] = {}

    @classmethod
    def by_cupy(cls, headers: str) -> TapeKernels:
        """Return the kernels of the current GPU. Raises InputError without CuPy or NVRTC."""
        with suppress(RuntimeError):  # without a home directory CuPy chooses its folder itself
            # Read when CuPy is imported, or later: what the user has set stays.
            os.environ.setdefault("CUPY_CACHE_DIR", str(user_cache.folder() / "cupy"))
        try:
            import cupy

            cupy.cuda.nvrtc.getVersion()
        except Exception as error:  # not installed, or without its libraries
            raise InputError(
                f"programs of edges are compiled for the GPU by CuPy and NVRTC, which do not load ({error}): "
                "pip install cupy-cuda13x nvidia-cuda-nvrtc"
            ) from error
        return cls(cupy, headers)

    def load(self, text: str) -> None:
        """Compile a source, unless that was done before. Raises InputError where it does not compile."""
        if text in self._kernels:
            return
        try:
            module = self._cupy.RawModule(code=self._headers + text, options=OPTIONS)
            kernel = module.get_function("mgg_tape")
            kernel.compile()
        except (self._cupy.cuda.compiler.CompileException, OSError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"CuPy's NVRTC did not compile a program of edges: {said[0]}") from error
        self._kernels[text] = kernel

    def launch(self, text: str, arguments: bytes, blocks: int, stream: int) -> None:
        """Launch the kernel of a loaded source in CUDA blocks of THREADS threads. arguments: its struct."""
        struct = np.frombuffer(arguments, np.dtype((np.void, len(arguments))))  # of size one: passed by value
        cuda = self._cupy.cuda
        if hasattr(cuda.Stream, "from_external"):  # from CuPy 14 on
            current = cuda.Stream.from_external(_Stream(stream))
        else:
            current = cuda.ExternalStream(stream)
        with current:
            self._kernels[text]((blocks,), (THREADS,), (struct,))


class _Stream:
    """A stream by the protocol for streams of CUDA: its version, and the stream's address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address
