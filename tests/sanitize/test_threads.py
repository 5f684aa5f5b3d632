"""The host schedules under the thread sanitizer: between ranks, and between the threads of a rank.

Clang builds them, since its OpenMP runtime comes with archer, which tells the sanitizer of forks, joins and barriers;
of libgomp's it knows nothing and takes them for races. The runtime itself is not instrumented: what it does to its
own memory is ignored (SUPPRESSIONS), and that a loop's iterations are handed out in order is no synchronisation to
the sanitizer, so nothing of ours is hidden by it. Only orders that happen-before shows are judged, not deadlocks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import builds
import cases
import numpy as np
import plans
import pytest
from world import SMALL

from mgg_hpc.runtime.backends.arguments import Geometry

HERE = Path(__file__).parent
CUDA = HERE.parents[1] / "cuda"
SOURCES = [HERE / "schedules.cpp", CUDA / "cpu" / "aggregate.cpp", CUDA / "runtime" / "halo_exchange.cpp"]
FLAGS = ["-std=c++17", "-O1", "-g1", "-fopenmp", "-fsanitize=thread", "-DMGG_ISA=baseline"]
FLAGS += ["-Wno-psabi", "-Wno-logical-op-parentheses", f"-I{CUDA}", f"-I{CUDA / 'include'}"]

# The library's calls of the runtime alone. Archer's own advice, ignore_noninstrumented_modules, ignores every memcpy
# of ours as well.
SUPPRESSIONS = "called_from_lib:libomp.so\n"

RANKS = 3

# A memory order that a schedule depends on: the header it is in, how it begins, and which sources use it.
WEAKENED = {
    "signals": ("runtime/transport_host.h", "store(value, std::memory_order_", "release", SOURCES[::2]),
    "hubs": ("cpu/stages.h", "fetch_sub(1, std::memory_order_", "acq_rel", SOURCES[1:2]),
}

pytestmark = pytest.mark.long


def make(folder: Path) -> None:
    """Build the program that runs the schedules, and one for each weaker memory order."""

    def compiled(sources, folder, *options):
        objects = {source.name: folder / f"{source.stem}.o" for source in sources}
        builds.compile_all(
            ["clang++", *options, *FLAGS, "-c", source, "-o", objects[source.name]] for source in sources
        )
        return objects

    objects = compiled(SOURCES, folder)
    programs_of = {"schedules": objects}
    for name, (header, strong, order, users) in WEAKENED.items():
        cuda = folder / name  # a copy of all sources, whose folder is searched first
        shutil.copytree(CUDA, cuda)
        text = (cuda / header).read_text()
        assert text.count(strong + order) == 1, f"{header}: {strong + order}"
        (cuda / header).write_text(text.replace(strong + order, strong + "relaxed"))
        weak = [cuda / user.relative_to(CUDA) if user.is_relative_to(CUDA) else user for user in users]
        programs_of[f"weak-{name}"] = objects | compiled(weak, cuda, f"-I{cuda}", f"-I{cuda / 'include'}")
    builds.compile_all(
        ["clang++", *FLAGS, *each.values(), "-o", folder / name] for name, each in programs_of.items()
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The hard cases by every transfer, many calls in a row, and a graph whose halo takes several packets."""
    folder = tmp_path_factory.mktemp("plans")
    rng = np.random.default_rng(int(os.environ["MGG_TEST_SEED"]))
    large = cases.csr(*rng.integers(0, 6000, (2, 30_000)), 6000, cases.even(6000, RANKS))
    paths = {}
    for transfer in plans.TRANSFERS:
        given = {name: (make(rng, RANKS), rng, transfer, 33, 8, SMALL) for name, make in cases.CASES.items()}
        given["large"] = (large, rng, transfer, 129, 5, Geometry(16, 4, 4))
        for name, words in given.items():
            paths[f"{transfer}-{name}"] = plans.write(folder / f"{transfer}-{name}", *words)
    return paths


@pytest.fixture
def run(tmp_path):
    """run(program, threads, reach, fault, *files): to its end or to the first report."""
    (tmp_path / "suppressions").write_text(SUPPRESSIONS)
    environment = os.environ | {
        "TSAN_OPTIONS": f"suppressions={tmp_path / 'suppressions'} halt_on_error=1",
        "OMP_WAIT_POLICY": "passive",  # there are more threads than cores
    }
    # Addresses that some kernels choose at random are more than the sanitizer of older compilers can take.
    fixed = ["setarch", "--addr-no-randomize"]
    can = subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode == 0

    def run(program, *arguments):
        command = [*(fixed if can else []), builds.made("schedules") / program, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as child:
            try:
                out, err = child.communicate()
            finally:
                child.kill()
                # A report ends the program before LLVM's OpenMP takes its name off the list of loaded ones.
                for left in Path("/dev/shm").glob(f"__KMP_REGISTERED_LIB_{child.pid}_*"):
                    left.unlink()
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    return run


def reported(done):
    return done.returncode == 66 and "ThreadSanitizer: data race" in done.stderr


@pytest.mark.parametrize("reach", ["near", "far"])
@pytest.mark.parametrize("threads", [1, 3])
def test_schedules_are_free_of_races(files, run, threads, reach):
    done = run("schedules", threads, reach, "none", *files.values())
    assert (done.returncode, done.stdout) == (0, f"{len(files)}\n"), done.stderr[-6000:]


@pytest.mark.parametrize(
    ("fault", "threads", "reach", "name"),
    [
        ("unpublished", 1, "near", "direct-ordinary"),
        ("unpublished", 1, "far", "get-ordinary"),
        ("early", 1, "far", "halo-ordinary"),
        ("shared", 3, "near", "direct-large"),
    ],
)
def test_a_planted_race_is_reported(files, run, fault, threads, reach, name):
    done = run("schedules", threads, reach, fault, files[name])
    assert reported(done), done.stderr[-3000:]


@pytest.mark.parametrize("name", WEAKENED)
def test_a_weaker_memory_order_is_reported(files, run, name):
    """In one of five runs: on busy cores threads may not meet in one."""
    assert any(reported(run(f"weak-{name}", 3, "near", "none", *files.values())) for _ in range(5))
