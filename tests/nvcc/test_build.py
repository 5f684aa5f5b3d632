"""Where GPU kernels are built, where they are not, and what that takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


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


SOURCES = 15  # of CUDA: four for each type of rows, and three
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


def test_kernels_take_minutes_and_less_than_four_gigabytes(require, capsys):
    """As the last `make cuda` found. Three architectures: 3 minutes on two quiet cores, 9 on slow, busy ones.

    Memory is twice that of the largest process: two run at once.
    """
    venv = ROOT / ".venv"
    require((venv / ".cuda").exists(), "the GPU kernels are not built", "make cuda")
    log = (venv / ".cuda.log").read_text(errors="replace")
    require(
        log.count("Building CUDA object") == SOURCES, "the last make cuda compiled a part only (rm -r build)"
    )
    seconds, largest = (float(word) for word in (venv / ".cuda").read_text().split())
    with capsys.disabled():
        print(f"\n_cuda: {seconds:.0f} s on two cores, {largest / 1e9:.2f} GB in the largest process")
    assert seconds < 900 and 2 * largest < 4e9


def test_nvcc_has_nothing_to_warn_of(require):
    """Nor the host's compiler, of the code around kernels."""
    log = ROOT / ".venv" / ".cuda.log"
    require(log.exists(), "the GPU kernels are not built", "make cuda")
    said = log.read_text(errors="replace")
    assert not [line for line in said.splitlines() if "warning:" in line or "warning #" in line]
