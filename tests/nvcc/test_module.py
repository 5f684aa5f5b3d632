"""The module _cuda as nvcc built it, on a machine without a GPU; and what its kernels take of one."""

from __future__ import annotations

import ast
import os
import re
import sys

import jobs
import programs
import pytest
from builds import made

from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import module as cuda_module

from . import resources


@pytest.fixture(scope="module")
def library(require):
    """The module; `make cuda` builds it."""
    require(resources.module() is not None, "no mgg_hpc/_cuda", "make cuda")
    return resources.module()


@pytest.mark.long
def test_a_command_without_a_gpu_says_so_in_one_line(library, tmp_path):
    """In a process of its own: loading must not end it, whatever it finds."""
    count, why = cuda_module.load().devices()
    if count:
        pytest.skip("there is a GPU")
    assert why == "no NVIDIA driver" or "CUDA" in why
    graph = str(tmp_path / "graph.h5")
    assert programs.python("-m", "mgg_hpc", "generate", "rmat", "--scale=5", "-o", graph).returncode == 0
    done = programs.python("-m", "mgg_hpc", "traverse", "cc", graph, "--backend=cuda")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"mgg: error: no CUDA device ({why})"]


@pytest.mark.long
def test_its_stub_is_python(library):
    """Type checkers stop at a stub that is not: mypy checks nothing else then."""
    stub = library.parent / "_cuda.pyi"
    classes = {each.name for each in ast.parse(stub.read_text()).body if isinstance(each, ast.ClassDef)}
    assert {"Plan", "Exchange", "EdgeRows"} <= classes


@pytest.mark.long
def test_a_driver_that_is_too_old_is_named_with_what_would_do(rng, library):
    """All that the CUDA runtime asks of such a driver is its version."""
    major, minor = map(int, rng.integers((11, 0), (13, 10)))
    code = "from mgg_hpc.runtime.backends.cuda import module as cuda_module; print(*cuda_module.load().devices())"
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(made("old-driver")),
        "MGG_TEST_DRIVER": str(1000 * major + 10 * minor),
    }
    done = programs.python("-c", code, env=variables)
    said = rf"0 the driver is for CUDA {major}\.{minor}, but this build needs \d+\.\d: update the driver\n"
    assert re.fullmatch(said, done.stdout), done.stderr


@pytest.mark.long
def test_a_launch_without_a_gpu_is_an_error_and_nothing_worse(library):
    module = cuda_module.load()
    if module.devices()[0]:
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="the current GPU: "):
        module.limits()


@pytest.mark.long
def test_the_cpu_package_does_not_load_it():
    code = "import sys, mgg_hpc.__main__, mgg_hpc.training.train; print('mgg_hpc._cuda' in sys.modules)"
    assert programs.python("-c", code).stdout.strip() == "False"


@pytest.fixture(scope="module")
def kernels(library, require):
    """What each kernel of the module takes, by architecture and name."""
    program = resources.cuobjdump()
    require(program is not None, "no cuobjdump", "make cuda")
    return resources.measured(library, program)


@pytest.mark.long
def test_hot_kernels_have_no_stack_and_do_not_spill(kernels):
    names = {kernel.partition("<")[0] for _, kernel in kernels}
    assert names >= {"aggregate_direct", "aggregate_get", "aggregate_halo", "over_edges", "gather_rows"}
    hot = {key: used for key, used in kernels.items() if not resources.NOT_HOT.match(key[1])}
    assert len(hot) > 100
    assert {key: used for key, used in hot.items() if used.stack or used.local} == {}


@pytest.mark.long
def test_all_kernels_are_loaded_before_the_first_runs(kernels, engine):
    architecture = min(kernels)[0]
    linked = {name for each, name in kernels if each == architecture and not name.startswith("device::")}
    engine.module.shim_counts()  # of the tests before
    assert engine.module.load_all() == len(linked)
    assert not any(engine.module.shim_counts().values()), "and none has run"


def test_a_module_of_another_version_is_refused():
    class Other:
        struct_sizes = staticmethod(lambda: [40, 24])
        ring_bytes = staticmethod(lambda threads, packs: 0)
        stage_bytes = staticmethod(lambda threads, lanes, packs, rows, dist: 0)

    with pytest.raises(InputError, match="of another version"):
        cuda_module.checked(Other)


JOB = r"""
import sys
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.runtime.backends.cuda.nvshmem import NvshmemPeers
comm = mpi.world()
try:
    job = NvshmemPeers(comm, cuda_module.load(), None)
except InputError as error:
    sys.stdout.write(f"{comm.Get_rank()} {error}\n")  # in one piece: ranks write at the same time
    sys.stdout.flush()
"""


@pytest.mark.long
def test_nvshmem_starts_from_a_unique_id_and_finds_no_gpu(library, tmp_path):
    """Two ranks meet by the id that one of them makes: as far as NVSHMEM goes without a GPU, which it must say."""
    if cuda_module.load().devices()[0]:
        pytest.skip("there is a GPU")
    (tmp_path / "job.py").write_text(JOB)
    start = "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run(sys.argv[1:], 2))"
    done = programs.python("-c", start, sys.executable, tmp_path / "job.py", env=jobs.clean_environment())
    said = "NVSHMEM: found its peers, but no GPU (status 1)"
    assert sorted(done.stdout.splitlines()) == [f"0 {said}", f"1 {said}"], done.stderr
