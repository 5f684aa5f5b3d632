"""Where GPU kernels are built, where they are not, and what that takes."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def configure(require, tmp_path):
    """Runs CMake in a folder of its own with these definitions."""
    tools = {name: shutil.which(name, path=Path(sys.executable).parent) for name in ("cmake", "ninja")}
    require(None not in tools.values(), f"no cmake or ninja beside {sys.executable}")

    def run(**defined):
        given = {"CMAKE_MAKE_PROGRAM": tools["ninja"], "Python_EXECUTABLE": sys.executable, **defined}
        options = [f"-D{name}={value}" for name, value in given.items()]
        command = [tools["cmake"], "-G", "Ninja", *options, "-S", ROOT, "-B", tmp_path]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


NO_NVSHMEM = {"MGG_NVSHMEM": "/nonexistent"}


def test_off_does_not_look(configure):
    done = configure(MGG_CUDA="OFF")
    assert done.returncode == 0 and "CUDA" not in done.stdout + done.stderr


def test_auto_builds_without_what_is_missing_and_says_so(configure):
    done = configure(MGG_CUDA="AUTO", **NO_NVSHMEM)
    assert done.returncode == 0
    assert "CUDA: built without GPU kernels; missing:" in done.stdout
    assert "NVSHMEM (the extra cuda, or NVSHMEM_HOME)" in done.stdout


def test_on_names_what_is_missing(configure):
    done = configure(MGG_CUDA="ON", **NO_NVSHMEM)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "MGG_CUDA=ON, but missing:" in said and "NVSHMEM (the extra cuda, or NVSHMEM_HOME)" in said


def test_anything_else_is_refused(configure):
    done = configure(MGG_CUDA="YES")
    assert done.returncode != 0 and "MGG_CUDA=YES: expected AUTO, ON or OFF" in done.stderr


def test_three_architectures_take_less_than_three_minutes_and_four_gigabytes(
    configure, require, tmp_path, capsys
):
    """On two cores; memory is twice that of the largest process, since two run at once."""
    done = configure(MGG_CUDA="ON")
    require("but missing:" not in done.stderr, "no nvcc or no NVSHMEM (make cuda)")
    assert done.returncode == 0, done.stderr[-3000:]
    began = time.perf_counter()
    made = [
        shutil.which("cmake", path=Path(sys.executable).parent),
        "--build",
        tmp_path,
        "-j2",
        "--target",
        "_cuda",
    ]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    seconds = time.perf_counter() - began
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    with capsys.disabled():
        print(
            f"\n_cuda for three architectures: {seconds:.0f} s, {largest / 1e9:.2f} GB in the largest process"
        )
    assert "warning" not in done.stdout
    assert seconds < 180 and 2 * largest < 4e9
