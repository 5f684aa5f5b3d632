"""Compiled tapes where the host plays the GPU: their source, by the host's compiler, over the shim of a module."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mgg_hpc.runtime.backends.cuda.tapes.kernels import THREADS

from ..build import CUDA, SHIM


class HostKernels:
    """See TapeKernels. library: the module whose shim runs the kernels; folder: for what is compiled."""

    def __init__(self, compiler: str, library: Path, module: object, folder: Path) -> None:
        self.compiler, self.library, self.module, self.folder = compiler, library, module, folder
        self.launches = 0
        self._functions: dict[str, int] = {}

    def compile_all(self, texts: list[str]) -> None:
        """Compile several at once."""
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._compiled, texts))

    def load(self, text: str) -> bool:
        if text not in self._functions:
            kernel = ctypes.CDLL(str(self._compiled(text))).mgg_tape
            self._functions[text] = ctypes.cast(kernel, ctypes.c_void_p).value
        return True

    def _compiled(self, text: str) -> Path:
        target = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
        if not target.exists():
            source = target.with_suffix(".cpp")
            source.write_text(text)
            flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DMGG_SHIM", "-w"]
            include = [f"-I{path}" for path in (SHIM, CUDA, CUDA / "include")]
            command = [self.compiler, *flags, *include, source, self.library, "-o", target]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
        return target

    def launch(self, text: str, words, blocks: int, stream: int) -> None:
        self.launches += 1
        self.module.shim_launch(self._functions[text], words.tobytes(), blocks, THREADS)
