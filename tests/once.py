"""Native builds that tests share: compiled once, and again only when a source or a tool changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import nanobind

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "tests" / "made"
SOURCES = ("CMakeLists.txt", "cuda", "tests/shim", "tests/host_build.py", "tests/sanitizers.py")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".txt", ".py", ".cmake")


def made_once(name: str, make: Callable[[Path], object], *, compiler: str = "g++") -> Path:
    """Return the folder build/tests/made/NAME that ``make(folder)`` fills.

    It is filled by the first process that asks, and anew when the native sources, the compiler or nanobind are others.
    """
    folder = FOLDER / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    digest, made = _digest(compiler), folder / "made"
    with filelock.FileLock(f"{folder}.lock"):
        if not made.exists() or made.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.write_text(digest)
    return folder


def _digest(compiler: str) -> str:
    seen = hashlib.sha256(f"{nanobind.__version__} {sys.version}".encode())
    seen.update(subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout)
    for name in SOURCES:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and not file.name.startswith("test_"):
                seen.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return seen.hexdigest()
