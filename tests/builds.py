"""Native builds that tests load. They are made before the tests of a tier start, since no test compiles:

    python tests/builds.py test         what `make test` needs
    python tests/builds.py long         what `make test-long` needs, with the faults that MGG_TEST_SEED draws
    python tests/builds.py torture      what `make torture` needs
    python tests/builds.py shim ...     builds by name

A build is kept in build/tests/made/NAME, and made anew when the native sources, the compiler, Python or nanobind are
others. A test whose build is missing fails and names the command that makes it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nanobind
import programs
import pytest
from seeds import FIXED, SEED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "tests" / "made"
SOURCES = ("CMakeLists.txt", "cuda", "tests/shim/src", "tests/shim/build.py")
# Options of code with the address and the undefined-behaviour sanitizer.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".txt", ".py", ".cmake")
TIERS = ("test", "long", "torture")
COMPILING = "MGG_TEST_COMPILE"  # set where tests of compiled tapes run only to compile them
COMPILED = ("tests/shim/test_tapes.py", "tests/shim/test_streamed.py")  # files of such tests


@dataclass(frozen=True)
class Target:
    """A build: ``make(folder)`` fills its folder. needs: programs, and the command that installs them.

    sources: files and folders on which it depends beside SOURCES. draws: it depends on MGG_TEST_SEED. keeps: its folder
    is not emptied before it is made anew. stamped: more on which it depends.
    """

    make: Callable[[Path], object]
    needs: tuple[str, ...] = ("g++",)
    install: str = "apt install g++"
    sources: tuple[str, ...] = ()
    draws: bool = False
    keeps: bool = False
    stamped: str = ""

    def stamp(self) -> str:
        """Return what the sources, the tools and the random numbers are of which it is made."""
        return digest(self.sources) + self.stamped + (os.environ.get(SEED, str(FIXED)) if self.draws else "")

    def missing(self) -> str:
        """Return what this machine lacks for it, and the command that installs that; or nothing."""
        lacking = [program for program in self.needs if shutil.which(program) is None]
        return f"no {lacking[0]} ({self.install})" if lacking else ""


def made(name: str) -> Path:
    """Return the folder of a build. Fails the test where it is missing, and names what makes it."""
    folder, made = FOLDER / name, target(name)
    if not is_made(folder, made):
        if made.missing() and os.environ.get("CI") != "true":
            pytest.skip(made.missing())
        pytest.fail(f"not built: {command(name)}", pytrace=False)
    return folder


def command(name: str) -> str:
    """Return the command that makes a build, with the random numbers on which it depends."""
    seed = f"{SEED}={os.environ[SEED]} " if target(name).draws else ""
    return f"{seed}{os.path.relpath(sys.executable)} tests/builds.py '{name}'"


def is_made(folder: Path, target: Target) -> bool:
    """Return whether a build is there and of the sources as they are."""
    stamp = folder / "made"
    return stamp.exists() and stamp.read_text() == target.stamp()


def build(name: str) -> None:
    """Make a build that is missing or old, and say how long that took."""
    folder, wanted = FOLDER / name, target(name)
    if is_made(folder, wanted):
        return
    if wanted.missing():
        print(f"tests: {name} is not built: {wanted.missing()}", flush=True)
        return
    print(f"tests: building {name} ...", end="", flush=True)
    began = time.monotonic()
    if not wanted.keeps:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    wanted.make(folder)
    (folder / "made").write_text(wanted.stamp())
    print(f" {time.monotonic() - began:.0f} s", flush=True)


@functools.cache
def digest(more: tuple[str, ...] = ()) -> str:
    """Return a digest of the native sources, more files and folders, and the tools that compile them."""
    seen = hashlib.sha256(f"{nanobind.__version__} {sys.version}".encode())
    if shutil.which("g++"):
        seen.update(programs.run("g++", "--version").stdout.encode())
    for name in (*SOURCES, *more):
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES:
                seen.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return seen.hexdigest()


def slug(name: str) -> str:
    """Return a name of a folder for a sentence."""
    return re.sub(r"\W+", "-", name).strip("-")


def compile_all(commands: Iterable[list[object]]) -> None:
    """Run compilers, two at a time. Raises RuntimeError with what the first that fails says."""

    def run(command: list[object]) -> None:
        done = programs.run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-4000:]}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, commands))


# ---- the kernels over the shim ---------------------------------------------------------------------------


def shim_build(name: str = "shim"):
    """Return the shim.build.Build of "shim" or "shim-sanitized", which may not be made yet."""
    from shim.build import Build

    return Build("g++", FOLDER / name, SANITIZERS if name == "shim-sanitized" else ())


def _planted_in_shim(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        from shim.test_planted import FAULTS

        fault = FAULTS[name]
        plain = shim_build()
        kernels = plain.older(FOLDER / "shim-before") if fault.before else plain
        file, objects = fault.where
        kernels.altered(file, fault.old, fault.new, objects, folder)

    return make


def _tapes(tier: str) -> Callable[[Path], object]:
    """Run a tier's tests of compiled tapes, which then compile their programs: the same ones, by the same seed."""

    def make(folder: Path) -> None:
        words = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout=0",
            f"--tier={tier}",
            "-m",
            "compiled",
        ]
        done = programs.python(*words, *COMPILED, cwd=ROOT, env={**os.environ, COMPILING: str(folder)})
        if done.returncode:
            raise RuntimeError(done.stdout[-4000:])

    return make


def _sanitized(folder: Path) -> None:
    """The shim's kernels, and the tapes of the table of cases."""
    from gpu.pes.tapes import FIXED, source_of
    from shim.host_kernels import compile_all

    module = shim_build("shim-sanitized").whole()
    compile_all(module, [source_of(*fixed).text for fixed in FIXED], folder)


def _sanitized_planted(folder: Path) -> None:
    """Undefined behaviour in sums, and an address beyond its array in dot products: KIND/_cuda.so."""
    edges, beyond = "gpu/edges/edges.cuh", "end = edge + segment->count + 4;"
    for kind, *text, objects in (
        (
            "shift",
            "gpu/worker.cuh",
            "all << (in_warp - lane);",
            "all << (in_warp - lane + 32);",
            ("aggregate_float32",),
        ),
        ("address", edges, "end = edge + segment->count;", beyond, ("edges_float32",)),
    ):
        (folder / kind).mkdir()
        shim_build("shim-sanitized").altered(*text, objects, folder / kind)


# ---- the host's code -------------------------------------------------------------------------------------


def compile_host(folder: Path, sources: Path, *options: str) -> None:
    """Build _host in ``folder`` from the tree ``sources``, for one instruction set, with more options of CMake."""
    beside = Path(sys.executable).parent
    given = {
        "CMAKE_MAKE_PROGRAM": beside / "ninja",
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_CXX_COMPILER": "g++",
        "MGG_ISAS": "baseline",
        "MGG_CUDA": "OFF",
    }
    defined = [f"-D{name}={value}" for name, value in given.items()]
    for command in (
        [beside / "cmake", "-G", "Ninja", *defined, *options, "-S", sources],
        [beside / "ninja", "_host"],
    ):
        done = programs.run(*command, cwd=folder)
        if done.returncode:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])


def _host_planted(folder: Path) -> None:
    """One tree in which the drawn faults are planted in turn: NAME/_host*.so, and none/_host*.so without a fault."""
    from test_planted import DRAWN_HOST, HOST

    tree, objects = folder / "tree", folder / "objects"
    objects.mkdir()
    tree.mkdir()
    shutil.copytree(ROOT / "cuda", tree / "cuda")
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    for name in ("none", *DRAWN_HOST):
        if name != "none":
            fault = HOST[name]
            text = (ROOT / fault.file).read_text()
            assert text.count(fault.old) == 1, (
                f"{fault.file}: {fault.old!r} is there {text.count(fault.old)} times"
            )
            (tree / fault.file).write_text(text.replace(fault.old, fault.new))
        compile_host(objects, tree, "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1")
        (folder / slug(name)).mkdir()
        for path in objects.glob("_host*.so"):
            path.rename(folder / slug(name) / path.name)
        if name != "none":
            shutil.copy(ROOT / fault.file, tree / fault.file)
    shutil.rmtree(tree)


def _acknowledged(folder: Path) -> None:
    sources = [ROOT / "tests/runtime/acknowledged.cpp", ROOT / "cuda/runtime/halo_exchange.cpp"]
    include = [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda/include'}"]
    compile_all([["g++", "-std=c++17", "-O2", "-pthread", *include, *sources, "-o", folder / "acknowledged"]])


def _transport(folder: Path) -> None:
    sources = [ROOT / "tests/shmem/transport.cpp", ROOT / "cuda/runtime/runtime_shmem.cpp"]
    include = [f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'cuda/include'}"]
    compile_all([["oshc++", "-std=c++17", "-O1", *include, *sources, "-lmpi", "-o", folder / "transport"]])


def _old_driver(folder: Path) -> None:
    """libcuda.so.1 of the version that MGG_TEST_DRIVER names."""
    source = folder / "driver.c"
    source.write_text(
        "#include <stdlib.h>\n"
        'int cuDriverGetVersion(int* version) { return *version = atoi(getenv("MGG_TEST_DRIVER")), 0; }\n'
    )
    compile_all([["g++", "-shared", "-fPIC", "-x", "c", source, "-o", folder / "libcuda.so.1"]])


def _by_test_file(file: str) -> Callable[[Path], object]:
    """Return the function ``make`` of a file of tests."""

    def make(folder: Path) -> None:
        path = ROOT / "tests" / file
        sys.path.insert(0, str(path.parent))
        importlib.import_module(path.stem).make(folder)

    return make


TAPES = ("mgg_hpc/runtime/backends", "mgg_hpc/nn/saga", "tests/gpu/pes", *COMPILED, "examples")
CLANG = {"needs": ("clang++",), "install": "apt install clang libclang-rt-dev libomp-dev"}
HERE = ("tests/builds.py",)
TARGETS = {
    "shim": Target(lambda folder: shim_build().whole()),
    "shim-before": Target(lambda folder: shim_build().before(folder)),
    "tapes": Target(_tapes("test"), sources=TAPES, draws=True, keeps=True),  # files are named by their texts
    "tapes-long": Target(_tapes("long"), sources=TAPES, draws=True, keeps=True),
    "acknowledged": Target(_acknowledged, sources=("tests/runtime/acknowledged.cpp",)),
    "shim-sanitized": Target(_sanitized, sources=TAPES),
    "shim-sanitized-planted": Target(_sanitized_planted, sources=HERE),
    "host-sanitized": Target(lambda folder: compile_host(folder, ROOT, "-DMGG_SANITIZE=address;undefined")),
    "host-planted": Target(_host_planted, sources=("tests/test_planted.py",), draws=True),
    "schedules": Target(_by_test_file("sanitize/test_threads.py"), **CLANG, sources=("tests/sanitize",)),
    "chunk-streams": Target(
        _by_test_file("sanitize/test_chunk_streams.py"), sources=("tests/sanitize",), draws=True
    ),
    "old-driver": Target(_old_driver, sources=HERE),
    "transport": Target(
        _transport, ("oshc++",), "apt install openmpi-bin libopenmpi-dev", ("tests/shmem/transport.cpp",)
    ),
}


def target(name: str) -> Target:
    """Return a target by its name; those of faults in the shim's kernels are named "shim: FAULT"."""
    if name.startswith("shim: "):
        from shim.test_planted import FAULTS

        fault = name.removeprefix("shim: ")
        return Target(_planted_in_shim(fault), stamped=repr(FAULTS[fault]))
    return TARGETS[name]


def of_tier(tier: str) -> list[str]:
    """Return the builds that the tests of a tier load."""
    test = ["shim", "tapes", "acknowledged"]
    if tier != "long":
        return {"test": test, "torture": ["shim"]}[tier]
    from shim.test_planted import DRAWN

    others = [name for name in TARGETS if name not in test]
    return [*test, *others, *(f"shim: {name}" for name in DRAWN)]


def sanitized_environment(compiler: str) -> dict[str, str]:
    """Return the variables of a Python that loads code built with SANITIZERS.

    Python itself is not sanitized: the sanitizer's library must be there first, and the C++ library whose exceptions
    it watches. What Python leaves allocated when it ends is not ours.
    """

    def library(name: str) -> str:
        return str(Path(programs.run(compiler, f"-print-file-name={name}").stdout.strip()).resolve())

    return os.environ | {
        "LD_PRELOAD": " ".join(map(library, ("libasan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }


def main(words: list[str]) -> int:
    """Make the builds that the command line names, those of a tier by its name."""
    names = dict.fromkeys(name for word in words for name in (of_tier(word) if word in TIERS else [word]))
    for name in names:
        try:
            target(name)
        except KeyError:
            print(f"tests: no build {name!r}; expected {', '.join((*TIERS, *TARGETS))}", file=sys.stderr)
            return 2
    failed = 0
    for name in names:
        try:
            build(name)
        except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            print(f" failed\ntests: {name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
