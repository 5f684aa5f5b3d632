"""Where GPU kernels are built, where they are not, and what that takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


# Runs a command; the last line is its processor time over two cores, and the bytes of its largest process.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print((used.ru_utime + used.ru_stime) / 2, used.ru_maxrss * 1024)
sys.exit(code)
"""
NO_NVSHMEM = {"MGG_NVSHMEM": "/nonexistent"}


def test_off_does_not_look(configure):
    done = configure(MGG_CUDA="OFF")
    assert done.returncode == 0 and "CUDA" not in done.stdout + done.stderr


def test_auto_builds_without_what_is_missing_and_says_so(configure):
    done = configure(MGG_CUDA="AUTO", **NO_NVSHMEM)
    assert done.returncode == 0
    assert "CUDA: built without GPU kernels; missing:" in done.stdout
    assert "NVSHMEM (pip install nvidia-nvshmem-cu13 before the build, or NVSHMEM_HOME)" in done.stdout


def test_auto_builds_without_an_nvcc_that_cannot(configure, tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(
        "#!/bin/sh\necho \"nvcc fatal : Unsupported gpu architecture 'compute_100'\" >&2\nexit 1\n"
    )
    nvcc.chmod(0o755)
    done = configure(MGG_CUDA="AUTO", MGG_NVCC=nvcc)
    assert done.returncode == 0, done.stderr
    assert "CUDA: built without GPU kernels; missing:" in done.stdout
    assert "compute_100" in done.stdout or "NVSHMEM (" in done.stdout


def test_on_names_what_is_missing(configure):
    done = configure(MGG_CUDA="ON", **NO_NVSHMEM)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "MGG_CUDA=ON, but missing:" in said and "NVSHMEM (pip install nvidia-nvshmem-cu13" in said


def test_anything_else_is_refused(configure):
    done = configure(MGG_CUDA="YES")
    assert done.returncode != 0 and "MGG_CUDA=YES: expected AUTO, ON or OFF" in done.stderr


def test_three_architectures_take_less_than_three_minutes_and_four_gigabytes(
    configure, require, tmp_path, capsys
):
    """On two cores; memory is twice that of the largest process, since two run at once.

    Of the three types of rows only the one that takes longest is compiled here; `make cuda` compiles all.
    """
    done = configure(MGG_CUDA="ON")
    require("but missing:" not in done.stderr, "no nvcc or no NVSHMEM (make cuda)")
    assert done.returncode == 0, done.stderr[-3000:]
    cmake = shutil.which("cmake", path=Path(sys.executable).parent)

    def measure(*targets: str) -> tuple[float, float]:
        made = [cmake, "--build", tmp_path, "-j2", "--target", *targets]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *made], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]
        assert "warning" not in done.stdout
        seconds, largest = (float(word) for word in done.stdout.splitlines()[-1].split())
        return seconds, largest

    typed, largest = measure(*(f"cuda_{source}_BFloat16" for source in ("get", "halo", "aggregate")))
    once, other = measure("cuda_rows", "cuda_transport")
    seconds, largest = 3 * typed + once, max(largest, other)
    with capsys.disabled():
        print(f"\n_cuda: {seconds:.0f} s on two cores, {largest / 1e9:.2f} GB in the largest process")
    assert seconds < 180 and 2 * largest < 4e9
