"""Tapes as NVRTC compiles them: behind the headers that the build puts together, without a stack and without spills."""

from __future__ import annotations

import re

import pytest
from gpu.pes.tapes import source_of

from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.tape_kernels import OPTIONS

from . import nvrtc, resources

pytestmark = pytest.mark.long

REGISTERS = 128  # two blocks of 256 threads a multiprocessor
TAPES = {
    "gated": ("gated", "sources", 128, "sum", "float32"),
    "half rows": ("gated", "forward", 16, "sum", "float16"),
    "typed": ("typed", "sources", 40, "sum", "bfloat16"),
    "twice scored": ("twice scored", "targets", 300, "sum", "float32"),
    "every operator": ("every operator", "sources", 33, "sum", "float32"),
    "largest": ("largest", "forward", 128, "sum", "float32"),
}


@pytest.mark.parametrize("name", TAPES)
def test_a_tape_needs_no_stack(require, name):
    library = nvrtc.library()
    require(
        library is not None and resources.module() is not None, "no NVRTC or no mgg_hpc/_cuda", "make cuda"
    )
    options = [*OPTIONS, "-ftz=true", "-arch=sm_90", "--ptxas-options=-v"]
    said = nvrtc.compiled(library, cuda_module.load().tape_headers + source_of(*TAPES[name]).text, options)
    used = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    assert used.groups() == ("0", "0", "0") and registers <= REGISTERS, said[-300:]
