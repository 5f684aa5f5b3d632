"""The GPU kernels compiled by the host compiler against the shim."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.plan.workload import Plan

HERE, CUDA = Path(__file__).parent, Path(__file__).parents[2] / "cuda"
REDUCTIONS = ("sum", "mean", "max")
TYPES = ("float32", "float16", "bfloat16")


class Call(ctypes.Structure):
    """kernels.cpp's Call"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("chunks", "segments", "indices")),
        *(
            (name, ctypes.c_int64)
            for name in ("chunk_count", "segment_count", "edges", "destinations", "part_edges", "rank")
        ),
        *((name, ctypes.c_void_p) for name in ("rows", "weight", "scale", "bias", "out")),
        ("dim", ctypes.c_int64),
        *(
            (name, ctypes.c_int32)
            for name in ("type", "reduce", "relu", "lanes", "packs", "blocks", "threads")
        ),
        ("seed", ctypes.c_uint64),
    )


class Kernels:
    """Launches of the compiled kernels."""

    def __init__(self, library: Path) -> None:
        self._direct = ctypes.CDLL(str(library)).direct

    def direct(
        self,
        plan: Plan,
        rows: list[np.ndarray],
        out: np.ndarray,
        rank: int,
        *,
        shape: tuple[int, int],
        seed: int,
        weight: np.ndarray | None = None,
        scale: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        relu: bool = False,
        reduce: str = "sum",
        part_edges: int = 8,
    ) -> None:
        """Aggregate padded rows of every PE into padded ``out``. Raises RuntimeError for what the shim found."""

        def at(array: np.ndarray | None) -> int:
            return 0 if array is None else array.ctypes.data

        pointers = (ctypes.c_void_p * len(rows))(*(at(part) for part in rows))
        call = Call(
            at(plan.chunks), at(plan.segments), at(plan.indices),
            len(plan.chunks), len(plan.segments), plan.edges, plan.destinations, part_edges, rank,
            ctypes.addressof(pointers), at(weight), at(scale), at(bias), at(out),
            out.shape[1], TYPES.index(out.dtype.name), REDUCTIONS.index(reduce), relu, *shape, 3, 64, seed,
        )  # fmt: skip
        said = ctypes.create_string_buffer(400)
        if self._direct(ctypes.byref(call), said, len(said)):
            raise RuntimeError(said.value.decode())


def shape_for(format: RowFormat) -> tuple[int, int]:
    """(lanes, packs) of a worker for rows of this format, as the launch on a GPU takes them."""
    packs = format.row_bytes // 16
    if packs <= 32:
        return next(lanes for lanes in (4, 8, 16, 32) if lanes >= packs), 1
    return 32, 2  # and as many passes as it takes: four packs would need 200 registers a thread


@pytest.fixture(scope="session")
def compiled(require, tmp_path_factory) -> Callable[..., Kernels]:
    """Compiles the kernels, with a text of one source replaced by another: compiled(file, old, new)."""
    compiler = shutil.which("g++")
    require(compiler is not None, "no g++ (package g++)")

    def compile(file: str | None = None, old: str = "", new: str = "") -> Kernels:
        folder = tmp_path_factory.mktemp("kernels")
        include = [HERE, CUDA, CUDA / "include"]
        if file is not None:
            text = (CUDA / file).read_text()
            assert text.count(old) == 1, f"{file}: {old!r} is there {text.count(old)} times"
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text.replace(old, new))
            include.insert(0, folder)
        library = folder / "kernels.so"
        sources = [HERE / "kernels.cpp", HERE / "shim.cpp"]
        flags = [
            "-std=c++17",
            "-O1",
            "-g1",
            "-shared",
            "-fPIC",
            "-DMGG_SHIM",
            "-Wall",
            "-Wno-unknown-pragmas",
        ]
        subprocess.run(
            [compiler, *flags, *(f"-I{path}" for path in include), *sources, "-o", library], check=True
        )
        return Kernels(library)

    return compile


@pytest.fixture(scope="session")
def kernels(compiled) -> Kernels:
    """The kernels as they are."""
    return compiled()
