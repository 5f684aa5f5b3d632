"""Native builds that tests make: compiled once, and again only when a source or a tool changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import nanobind
import programs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "tests" / "made"
SOURCES = ("CMakeLists.txt", "cuda", "tests/shim", "tests/builds.py")
# Those of code with the address and the undefined-behaviour sanitizer.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".txt", ".py", ".cmake")


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder build/tests/made/NAME that ``make(folder)`` fills.

    It is filled by the first process that asks, and anew when the native sources, the compiler or nanobind are others.
    """
    folder = FOLDER / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    digest, made = _digest(), folder / "made"
    with filelock.FileLock(f"{folder}.lock"):
        if not made.exists() or made.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.write_text(digest)
    return folder


def _digest() -> str:
    seen = hashlib.sha256(f"{nanobind.__version__} {sys.version}".encode())
    seen.update(programs.run("g++", "--version").stdout.encode())
    for name in SOURCES:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and not file.name.startswith("test_"):
                seen.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return seen.hexdigest()


def compile_host(folder: Path, sources: Path, require: Callable[..., None], *options: str) -> None:
    """Build _host in ``folder`` from the tree ``sources``, for one instruction set, with more options of CMake."""
    compiler = shutil.which("g++")
    require(compiler is not None, "no g++", "apt install g++")
    tools = {name: shutil.which(name, path=Path(sys.executable).parent) for name in ("cmake", "ninja")}
    require(None not in tools.values(), f"no cmake or ninja beside {sys.executable}")
    given = {
        "CMAKE_MAKE_PROGRAM": tools["ninja"],
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_CXX_COMPILER": compiler,
        "MGG_ISAS": "baseline",
        "MGG_CUDA": "OFF",
    }
    defined = [f"-D{name}={value}" for name, value in given.items()]
    for command in (
        [tools["cmake"], "-G", "Ninja", *defined, *options, "-S", sources],
        [tools["ninja"], "_host"],
    ):
        done = programs.run(*command, cwd=folder)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def sanitized_environment(compiler: str) -> dict[str, str]:
    """Return the variables of a Python that loads code built with SANITIZERS.

    Python itself is not sanitized: the sanitizer's library must be there first, and the C++ library whose exceptions
    it watches. What Python leaves allocated when it ends is not ours.
    """

    def library(name: str) -> str:
        return str(Path(programs.run(compiler, f"-print-file-name={name}").stdout.strip()).resolve())

    return os.environ | {
        "LD_PRELOAD": " ".join(map(library, ("libasan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }
