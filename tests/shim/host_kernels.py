"""Kernels of tapes where the host plays the GPU: compiled by the host's compiler, over the shim of a module.

`python tests/builds.py tapes` compiles them ahead: those of the tests marked ``compiled``, which it runs for that
(builds.COMPILING).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import builds

from mgg_hpc.runtime.backends.cuda.tape_kernels import THREADS

from .build import CUDA, SHIM

HEADERS = '#include "gpu/edges/tape.cuh"\n'  # the shim's tape_headers


class HostKernels:
    """Kernels by their source. module: whose shim runs them. launches: number of launches so far."""

    def __init__(self, module) -> None:
        self.module, self.headers, self.launches = module, module.tape_headers, 0
        self._functions: dict[str, int] = {}

    def load(self, text):
        if text not in self._functions:
            library = compiled(Path(self.module.__file__), self.headers + text)
            self._functions[text] = ctypes.cast(ctypes.CDLL(str(library)).mgg_tape, ctypes.c_void_p).value

    def launch(self, text, arguments, blocks, stream):
        self.launches += 1
        self.module.shim_launch(self._functions[text], arguments, blocks, THREADS)


def compile_all(module: Path, texts: list[str], folder: Path | None = None) -> None:
    """Compile sources, two at a time, over the shim of a module that is not loaded."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: compiled(module, HEADERS + text, folder), texts))


def compiled(module: Path, text: str, folder: Path | None = None) -> Path:
    """Return a source as a library beside the module or in `builds`' folders. It is compiled only for these."""
    build = module.parent.name  # "shim", or "shim-sanitized"
    name = f"{hashlib.sha256(_headers() + f'{build} {text}'.encode()).hexdigest()[:24]}.so"
    for made in (module.parent, builds.FOLDER / "tapes", builds.FOLDER / "tapes-long"):
        if (made / name).exists():
            return made / name
    folder = folder or Path(os.environ.get(builds.COMPILING, ""))
    assert folder.name, f"a tape is not compiled: {builds.command('tapes')} tapes-long"
    source = (folder / name).with_suffix(".cpp")
    source.write_text(text)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DMGG_SHIM", "-w"]
    flags += builds.SANITIZERS if build == "shim-sanitized" else ()
    include = [f"-I{path}" for path in (SHIM, CUDA, CUDA / "include")]
    builds.compile_all([["g++", *flags, *include, source, module, "-o", folder / name]])
    return folder / name


@functools.cache
def _headers() -> bytes:
    """Return a digest of what sources include."""
    files = [CUDA / "runtime" / "device.h", SHIM / "shim.h"]
    files += [file for pattern in ("include/mgg/*", "gpu/*", "gpu/edges/*") for file in CUDA.glob(pattern)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(files) if file.is_file())).digest()
