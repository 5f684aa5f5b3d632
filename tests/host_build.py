"""Builds of the host extension beside the one that is used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


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
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
