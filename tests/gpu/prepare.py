"""Builds the native modules for `make gpu-test` on a GPU machine that has no network: with what PYTHON has, and with
wheels from a folder for what it has not. Beside them one with the faults that sanitizers must report (faults.py).

    python tests/gpu/prepare.py BUILD_FOLDER [WHEELS_FOLDER]

Only the standard library is needed to say what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HELLO = Path(__file__).parent / "hello.py"
MPI_SECONDS = 30
sys.path.insert(0, str(Path(__file__).parents[1]))
# What the tests and the build import; and of some the wheel, whose name is another.
NEEDED = (
    "numpy",
    "torch",
    "ml_dtypes",
    "nanobind",
    "rich",
    "scipy",
    "sklearn",
    "click",
    "msgspec",
    "tomli_w",
)
NEEDED += ("xxhash", "h5py", "mpi4py", "hypothesis", "sortedcontainers", "nvidia.nvshmem")
WHEELS = {"sklearn": "scikit-learn", "nvidia.nvshmem": "nvidia-nvshmem-cu13"}


def missing(site: Path) -> list[str]:
    """The wheels that neither Python nor the build's own folder has."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()

    def found(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return [WHEELS.get(name, name) for name in NEEDED if not found(name)]


def architecture() -> str | None:
    """Return the architecture of the first GPU, as CMake writes it, or MGG_GPU_ARCHITECTURE; None without a GPU."""
    if named := os.environ.get("MGG_GPU_ARCHITECTURE"):
        return named
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{said.split()[0].replace('.', '')}-real" if said.split() else None


def fail(what: str) -> int:
    print(f"gpu-test: {what}", file=sys.stderr)
    return 2


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep what it writes."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)


def pip(wheels: Path, *words: str) -> None:
    """Install wheels of a folder; whether that worked is seen by what is there afterwards."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*command, "--find-links", str(wheels), *words], check=False)


def mpi_library(build: Path) -> Path | None:
    """That of an MPI wheel in the build's folder (pip's --target would leave libraries out)."""
    return next(iter(sorted((build / "mpi").glob("**/lib/libmpi.so.12"))), None)


def environment_of(build: Path) -> dict[str, str]:
    """Return the variables of a Python that sees what was installed into the build's folder."""
    path = f"{build / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    library = mpi_library(build)
    more = {"MPI4PY_LIBMPI": str(library.resolve())} if library else {}
    return os.environ | {"PYTHONPATH": path} | more


def has_mpi(build: Path) -> bool:
    """Whether mpi4py loads an MPI library, the machine's or the build's."""
    look = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
    done = subprocess.run(
        [sys.executable, "-c", look], env=environment_of(build), capture_output=True, check=False
    )
    return done.returncode == 0


def gather(build: Path, wheels: Path | None) -> str:
    """Install what is missing. What is wrong afterwards, or nothing."""
    site = build / "site"
    site.mkdir(parents=True, exist_ok=True)
    if wheels and (absent := missing(site)):
        pip(wheels, "--target", str(site), *absent)
    if wheels and not missing(site) and not has_mpi(build):
        pip(wheels, "--prefix", str(build / "mpi"), "--ignore-installed", "mpich")
    absent = missing(site) or ([] if has_mpi(build) else ["mpich (or another MPI library)"])
    if not absent:
        return ""
    where = f"the folder {wheels} has no wheels of them" if wheels else "WHEELS=FOLDER names their wheels"
    return f"{sys.executable} has no {', '.join(absent)}; {where}"


def speaks_mpi(build: Path) -> str:
    """Start two ranks that greet each other, as the parts start theirs. What was said where that failed, or nothing."""
    environment = environment_of(build)
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment['PYTHONPATH']}"
    start = "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run([sys.executable, sys.argv[1]], 2))"
    options: dict[str, Any] = {
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": MPI_SECONDS,
    }
    try:
        done = subprocess.run([sys.executable, "-c", start, str(HELLO)], check=False, **options)
    except subprocess.TimeoutExpired:
        return f"two ranks of MPI did not meet within {MPI_SECONDS} s"
    said = f"{done.stdout}{done.stderr}".strip()
    return "" if done.returncode == 0 else f"two ranks of MPI do not meet: {said[-2000:]}"


def compile(
    source: Path,
    tree: Path,
    options: list[str],
    targets: list[str],
    environment: dict[str, str],
    run: Callable[..., subprocess.CompletedProcess[str]] = run,
) -> str:
    """Configure and build. What was said where that failed, or nothing. run: starts a command, and waits for it."""
    for command in (
        ["cmake", "-S", source, "-B", tree, "-G", "Ninja", *options],
        ["cmake", "--build", tree, "--target", *targets],
    ):
        done = run(*command, env=environment)
        if done.returncode:
            return done.stdout[-6000:] + done.stderr[-6000:]
    return ""


def main(build: Path, wheels: Path | None) -> int:
    """Exit code 0 when the modules are in the package's folder; 2 where something is missing, by name."""
    build = build.resolve()  # CMake and its programs run elsewhere
    if wrong := gather(build, wheels):
        return fail(wrong)
    of_gpu = architecture()
    if of_gpu is None:
        return fail("no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)")
    if wrong := speaks_mpi(build):
        return fail(wrong)
    if not (shutil.which("cmake") and shutil.which("ninja")):
        return fail("no cmake or no ninja on PATH")
    from gpu.variants import faults

    environment = environment_of(build)
    found = importlib.util.find_spec("nvidia.nvshmem")
    if found and found.submodule_search_locations:
        environment["NVSHMEM_HOME"] = next(iter(found.submodule_search_locations))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMGG_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={of_gpu}"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    faulty = build / "faulty"
    faults.plant(faulty / "source")
    works = [
        (
            ROOT,
            build / "tree",
            ["-DCMAKE_CUDA_FLAGS=-lineinfo", *options],
            ["_cuda", "_cuda_studies", "_host"],
        ),
        (faulty / "source", faulty / "tree", options, ["_cuda"]),
    ]
    with ThreadPoolExecutor(len(works)) as pool:
        failed = list(pool.map(lambda work: compile(*work, environment), works))
    if said := "".join(failed):
        print(said, file=sys.stderr)
        return fail("the build failed")
    ending = sysconfig.get_config_var("EXT_SUFFIX")  # another Python may have built here before
    for name in ("_cuda", "_cuda_studies", "_host"):
        shutil.copy(build / "tree" / f"{name}{ending}", ROOT / "mgg_hpc")
    shutil.copy(faulty / "tree" / f"_cuda{ending}", faulty / "_cuda.so")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None))
