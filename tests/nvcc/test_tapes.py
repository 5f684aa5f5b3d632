"""Sources of compiled tapes through nvcc, with the options that CuPy gives NVRTC: no stack, and no spills."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

import programs
import pytest
from gpu.pes import tape_programs

from mgg_hpc.runtime.backends.cuda.tapes.kernels import OPTIONS
from mgg_hpc.runtime.backends.cuda.tapes.source import source

from . import resources

pytestmark = pytest.mark.long

REGISTERS = 128  # two blocks of 256 threads a multiprocessor
TAPES = [
    ("gated", "forward", 128, "float32"),
    ("gated", "sources", 128, "float32"),
    ("gated", "forward", 16, "float16"),
    ("typed", "sources", 40, "bfloat16"),
    ("scored", "targets", 64, "float32"),
    ("twice scored", "targets", 300, "float32"),
    ("every operator", "sources", 33, "float32"),
    ("largest", "forward", 128, "float32"),
]


@pytest.mark.parametrize("words", TAPES, ids=str)
def test_a_compiled_tape_needs_no_stack(require, tmp_path, words):
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13" / "bin"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=str(wheel))
    require(nvcc is not None, "no nvcc", "make cuda")
    *tape, dtype = words
    file = tmp_path / "tape.cu"
    file.write_text(source(tape_programs.tape(*tape).tape, dtype).text)
    options = [*OPTIONS, "-ftz=true", "-cubin", "-Xptxas", "-v"]
    for architecture in resources.ARCHITECTURES[:2]:
        done = programs.run(nvcc, *options, f"-arch={architecture}", file, "-o", tmp_path / "tape.cubin")
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        used = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
        registers = int(re.search(r"Used (\d+) registers", said)[1])
        assert used.groups() == ("0", "0", "0") and registers <= REGISTERS, said[-300:]
