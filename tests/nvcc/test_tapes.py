"""Sources of compiled tapes through nvcc, with the flags that CuPy gives NVRTC: no stack, and no spills."""

from __future__ import annotations

import re
from pathlib import Path

import builds
import programs
import pytest
from gpu.pes.tapes import source_of
from shim.host_kernels import HEADERS

pytestmark = pytest.mark.long

ARCHITECTURE = "sm_90"
REGISTERS = 128  # two blocks of 256 threads a multiprocessor
TAPES = {
    "gated": ("gated", "sources", 128, "sum", "float32"),
    "half rows": ("gated", "forward", 16, "sum", "float16"),
    "typed": ("typed", "sources", 40, "sum", "bfloat16"),
    "twice scored": ("twice scored", "targets", 300, "sum", "float32"),
    "every operator": ("every operator", "sources", 33, "sum", "float32"),
    "largest": ("largest", "forward", 128, "sum", "float32"),
}


def make(folder: Path, nvcc: str) -> None:
    """Compile each tape, and keep what ptxas says of it: NAME.txt."""
    cuda = builds.ROOT / "cuda"
    options = ["-std=c++17", "-ftz=true", "-cubin", "-Xptxas", "-v", f"-arch={ARCHITECTURE}"]
    options += [f"-I{cuda}", f"-I{cuda / 'include'}"]
    for name, tape in TAPES.items():
        file = folder / f"{builds.slug(name)}.cu"
        file.write_text(HEADERS + source_of(*tape).text)
        done = programs.run(nvcc, *options, file, "-o", file.with_suffix(".cubin"))
        if done.returncode:
            raise RuntimeError(done.stderr)
        file.with_suffix(".txt").write_text(done.stdout + done.stderr)


@pytest.mark.parametrize("name", TAPES)
def test_a_compiled_tape_needs_no_stack(name):
    said = (builds.made("nvcc-tapes") / f"{builds.slug(name)}.txt").read_text()
    used = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    assert used.groups() == ("0", "0", "0") and registers <= REGISTERS, said[-300:]
