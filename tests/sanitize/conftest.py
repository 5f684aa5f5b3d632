"""The extension built with the address and the undefined-behaviour sanitizer, in a copy of the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sanitizers
from once import made_once

ROOT = Path(__file__).parents[2]


def compile_host(folder: Path, compiler: str, tools: dict[str, str]) -> None:
    """_host with both sanitizers."""
    make = f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"
    options = [
        "-DMGG_SANITIZE=address;undefined",
        "-DMGG_ISAS=baseline",
        "-DMGG_CUDA=OFF",
        f"-DCMAKE_CXX_COMPILER={compiler}",
    ]
    for command in (
        [tools["cmake"], "-G", "Ninja", make, f"-DPython_EXECUTABLE={sys.executable}", *options, "-S", ROOT],
        [tools["ninja"], "_host"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="session")
def sanitized(require, tmp_path_factory) -> dict[str, str]:
    """The environment of a Python that loads the package with the sanitized extension.

    Kernels are built for one instruction set: what surrounds them is the same in all, and vector code that GCC's
    sanitizers do not see is left to guarded pages.
    """
    compiler = shutil.which("g++")
    require(compiler is not None, "no g++ (package g++)")
    tools = {name: shutil.which(name, path=Path(sys.executable).parent) for name in ("cmake", "ninja")}
    require(None not in tools.values(), f"no cmake or ninja beside {sys.executable}")
    build = made_once(tmp_path_factory, "build", lambda folder: compile_host(folder, compiler, tools))
    package = tmp_path_factory.mktemp("tree") / "mgg_hpc"
    package.mkdir()
    for path in (ROOT / "mgg_hpc").iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    for path in build.glob("_host*.so"):
        shutil.copy(path, package)
    return sanitizers.environment(compiler) | {"PYTHONPATH": str(package.parent)}
