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


SOURCES = 16  # of CUDA: four for each type of rows, and four
NO_NVSHMEM = {"MGG_NVSHMEM": "/nonexistent"}
MISSING = "NVSHMEM (pip install nvidia-nvshmem-cu13 before the build, or NVSHMEM_HOME)"


@pytest.mark.parametrize(
    ("defined", "said"),
    [
        ({"MGG_CUDA": "OFF"}, []),
        ({"MGG_CUDA": "AUTO"} | NO_NVSHMEM, ["CUDA: built without GPU kernels; missing:", MISSING]),
        ({"MGG_CUDA": "AUTO", "MGG_NVCC": "cannot"}, ["CUDA: built without GPU kernels; missing:"]),
        (
            {"MGG_CUDA": "ON"} | NO_NVSHMEM,
            ["MGG_CUDA=ON, but missing:", "NVSHMEM (pip install nvidia-nvshmem"],
        ),
        ({"MGG_CUDA": "YES"}, ["MGG_CUDA=YES: expected AUTO, ON or OFF"]),
    ],
    ids=["off", "auto", "an nvcc that cannot", "on", "anything else"],
)
def test_cmake_builds_without_what_is_missing_and_says_so(configure, tmp_path, defined, said):
    """Off does not even look; what must be is refused."""
    if "MGG_NVCC" in defined:
        nvcc = tmp_path / "nvcc"
        nvcc.write_text(
            "#!/bin/sh\necho \"nvcc fatal : Unsupported gpu architecture 'compute_100'\" >&2\nexit 1\n"
        )
        nvcc.chmod(0o755)
        defined = defined | {"MGG_NVCC": nvcc}
    done = configure(**defined)
    words = " ".join((done.stdout + done.stderr).split())
    assert all(each in words for each in said), words
    assert (done.returncode == 0) == (defined["MGG_CUDA"] in ("OFF", "AUTO"))
    assert said or "CUDA" not in words


def test_kernels_take_minutes_and_less_than_four_gigabytes_and_no_compiler_warns(require, capsys):
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
    assert not [line for line in log.splitlines() if "warning:" in line or "warning #" in line]
