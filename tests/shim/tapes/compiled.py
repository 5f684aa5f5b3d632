"""Compiled tapes where the host plays the GPU: their source, by the host's compiler, over the shim of a module.

They are compiled by `python tests/builds.py tapes`, which runs their tests for that (builds.COMPILING).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import builds

from mgg_hpc.runtime.backends.cuda.tapes.kernels import THREADS

from ..build import CUDA, SHIM


class HostKernels:
    """Kernels of tapes by their text. library: the module whose shim runs them."""

    def __init__(self, library: Path, module: object) -> None:
        self.library, self.module = library, module
        self.compiling = os.environ.get(builds.COMPILING)
        self.folder = Path(self.compiling or builds.made("tapes"))
        self.folders = [self.folder, builds.FOLDER / "tapes-long", builds.FOLDER / "tapes"]
        self.launches = 0
        self._functions: dict[str, int] = {}

    def compile_all(self, texts: list[str]) -> None:
        """Compile several at once."""
        if self.compiling:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(self._compiled, texts))

    def load(self, text: str) -> bool:
        if text not in self._functions:
            kernel = ctypes.CDLL(str(self._compiled(text))).mgg_tape
            self._functions[text] = ctypes.cast(kernel, ctypes.c_void_p).value
        return True

    def _compiled(self, text: str) -> Path:
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
        there = [folder / name for folder in self.folders if (folder / name).exists()]
        target = there[0] if there else self.folder / name
        if not there:
            assert self.compiling, f"a tape is not compiled: {builds.command('tapes')} tapes-long"
            source = target.with_suffix(".cpp")
            source.write_text(text)
            flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DMGG_SHIM", "-w"]
            include = [f"-I{path}" for path in (SHIM, CUDA, CUDA / "include")]
            builds.compile_all([["g++", *flags, *include, source, self.library, "-o", target]])
        return target

    def launch(self, text: str, words, blocks: int, stream: int) -> None:
        self.launches += 1
        self.module.shim_launch(self._functions[text], words.tobytes(), blocks, THREADS)
