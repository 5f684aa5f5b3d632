"""The rules of sass.py hold for the linked module, and break in kernels with a planted fault."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from . import resources, sass

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # nvdisasm takes minutes

HALO = "gpu/sums/halo.cuh"
ROWS = "gpu/row_worker.cuh"
# A file, a text of it and what replaces it; what is said then.
FAULTS = {
    "none": (HALO, "", "", None),
    "staged rows through the read-only cache": (
        HALO,
        "add_segment<true>",
        "add_segment<false>",
        "halo.staging",
    ),
    "a row at a time": (
        ROWS,
        "constexpr int unroll = 4;",
        "constexpr int unroll = 1;",
        "1 under way at once",
    ),
    "two rows at a time": (
        ROWS,
        "constexpr int unroll = 4;",
        "constexpr int unroll = 2;",
        "2 under way at once",
    ),
    "an array in local memory": (
        HALO,
        "    sums.left = was.left;",
        "    volatile int32_t seen[64]; seen[was.chunk & 63] = was.left; sums.left = seen[was.slot & 63];",
        "local memory",
    ),
}
KERNEL = "mgg::aggregate_halo<float, mgg::DeviceSum, 32, 1, false>(mgg::DeviceHaloCall<float>)"


@pytest.fixture(scope="module")
def tools(require, tmp_path_factory):
    """cuobjdump, and the offsets of the kernels' parameters."""
    program, compiler = sass.cuobjdump(), shutil.which("g++")
    require(program is not None, "no cuobjdump or nvdisasm", "make cuda")
    require(compiler is not None, "no g++", "apt install g++")
    return program, sass.offsets(compiler, tmp_path_factory.mktemp("offsets"))


def test_linked_kernels_keep_the_rules(rng, require, tools):
    """One architecture of the module is checked, chosen at random, since disassembling the kernels takes minutes."""
    program, members = tools
    require(resources.module() is not None, "no mgg_hpc/_cuda", "make cuda")
    built = resources.architectures(resources.module(), program)
    require(set(built) <= sass.PARAMETERS.keys(), "kernels for other GPUs", "make cuda")
    architecture = str(rng.choice(built))
    names, said = set(), []
    for name, kernel in sass.kernels(resources.module(), program, architecture):
        names.add(name)
        said += sass.wrong(name, kernel, architecture, members)
    assert names == {name for _, name in resources.allowed()}
    assert not said


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(require, tools, tmp_path, fault):
    program, members = tools
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=str(wheel / "bin"))
    require(nvcc is not None, "no nvcc", "make cuda")
    file, text, instead, expected = FAULTS[fault]
    cuda = tmp_path / "cuda"
    shutil.copytree(resources.ROOT / "cuda", cuda)
    source = (cuda / file).read_text()
    assert not text or source.count(text) == 1
    (cuda / file).write_text(source.replace(text, instead) if text else source)
    kernel = tmp_path / "planted.cu"
    kernel.write_text(f'#include "{HALO}"\ntemplate __global__ void {KERNEL};\n')
    options = ["-std=c++17", "-O3", "-arch=sm_90", "-cubin", "-rdc=true", "-w", f"-I{wheel / 'include'}"]
    paths = [f"-I{cuda}", f"-I{cuda / 'include'}"]
    cubin = tmp_path / "planted.cubin"
    done = subprocess.run(
        [nvcc, *options, *paths, "-o", cubin, kernel], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = []
    for name, each in sass.kernels(cubin, program, "sm_90"):
        said += sass.wrong(name, each, "sm_90", members)
    assert bool(said) == (expected is not None), said
    assert expected is None or any(expected in line for line in said), said
