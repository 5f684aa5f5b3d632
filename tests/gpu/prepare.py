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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
MPI_SECONDS = 30
sys.path.insert(0, str(Path(__file__).parents[1]))
# What the tests and the build import; and of some the wheel, whose name is another.
NEEDED = [
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
]
NEEDED += [
    "xxhash",
    "h5py",
    "mpi4py",
    "hypothesis",
    "sortedcontainers",
    "nvidia.nvshmem",
    "cupy",
    "cuda.pathfinder",
    "pytest",
    "iniconfig",
]
NEEDED += ["pluggy", "packaging", "pytest_timeout", "xdist", "execnet", "pytest_mpi", "pygments"]
WHEELS = {"sklearn": "scikit-learn", "nvidia.nvshmem": "nvidia-nvshmem-cu13", "xdist": "pytest-xdist"}
WHEELS |= {"cupy": "cupy-cuda13x", "cuda.pathfinder": "cuda-pathfinder"}
WHEELS |= {"pytest_timeout": "pytest-timeout", "pytest_mpi": "pytest-mpi"}
# Two ranks, started as tests start theirs: whether MPI and its launcher work here.
MEET = """
import sys
from mgg_hpc.runtime import launch
hello = "from mpi4py import MPI; import sys; sys.exit(MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank) != [0, 1])"
sys.exit(launch.run([sys.executable, "-c", hello], 2))
"""


class MissingError(Exception):
    """Something that is needed is not there; the message names it."""


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


def architecture() -> str:
    """Return the architecture of the first GPU, as CMake writes it, or MGG_GPU_ARCHITECTURE."""
    if named := os.environ.get("MGG_GPU_ARCHITECTURE"):
        return named
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        said = []
    if not said:
        raise MissingError("no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)")
    return f"{said[0].replace('.', '')}-real"


def environment_of(build: Path) -> dict[str, str]:
    """Return the variables of a Python that sees what was installed into the build's folder, an MPI library too."""
    path = os.pathsep.join([str(build / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    libraries = sorted((build / "mpi").glob("**/lib/libmpi.so.12"))  # which pip's --target would leave out
    more = {"MPI4PY_LIBMPI": str(libraries[0].resolve())} if libraries else {}
    return os.environ | {"PYTHONPATH": path} | more


def has_mpi(build: Path) -> bool:
    """Whether mpi4py loads an MPI library, the machine's or the build's."""
    look = [sys.executable, "-c", "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"]
    return subprocess.run(look, env=environment_of(build), capture_output=True, check=False).returncode == 0


def gather(build: Path, wheels: Path | None) -> None:
    """Install what is missing. Raises MissingError with what is missing afterwards."""
    site = build / "site"
    site.mkdir(parents=True, exist_ok=True)

    def pip(*words: str) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--find-links"]
        subprocess.run([*command, str(wheels), *words], check=False)

    if wheels and (absent := missing(site)):
        pip("--target", str(site), *absent)
    if wheels and not missing(site) and not has_mpi(build):
        pip("--prefix", str(build / "mpi"), "--ignore-installed", "mpich")
    if absent := missing(site) or ([] if has_mpi(build) else ["mpich (or another MPI library)"]):
        where = f"the folder {wheels} has no wheels of them" if wheels else "WHEELS=FOLDER names their wheels"
        raise MissingError(f"{sys.executable} has no {', '.join(absent)}; {where}")


def meet(build: Path) -> None:
    """Start two ranks that greet each other. Raises MissingError with what was said where they do not."""
    command = [sys.executable, "-c", MEET]
    options = {"env": environment_of(build), "capture_output": True, "text": True, "timeout": MPI_SECONDS}
    try:
        done = subprocess.run(command, check=False, **options)
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"two ranks of MPI did not meet within {MPI_SECONDS} s") from error
    if done.returncode:
        raise MissingError(f"two ranks of MPI do not meet: {(done.stdout + done.stderr).strip()[-2000:]}")


def compile(
    source: Path, tree: Path, options: list[str], targets: list[str], environment: dict[str, str]
) -> None:
    """Configure and build. Raises MissingError with what was said where that failed."""
    for command in (
        ["cmake", "-S", source, "-B", tree, "-G", "Ninja", *options],
        ["cmake", "--build", tree, "--target", *targets],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"the build failed\n{done.stdout[-6000:]}{done.stderr[-6000:]}")


def prepare(build: Path, wheels: Path | None) -> None:
    """Put the modules into the package's folder. Raises MissingError with what is missing, by name."""
    gather(build, wheels)
    of_gpu = architecture()
    meet(build)
    if not (shutil.which("cmake") and shutil.which("ninja")):
        raise MissingError("no cmake or no ninja on PATH")
    from gpu import faults

    environment = environment_of(build)
    found = importlib.util.find_spec("nvidia.nvshmem")
    if found and found.submodule_search_locations:
        environment["NVSHMEM_HOME"] = next(iter(found.submodule_search_locations))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMGG_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={of_gpu}"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    modules, faulty = ["_cuda", "_host"], build / "faulty"
    faults.plant(faulty / "source")
    works = [
        (ROOT, build / "tree", ["-DCMAKE_CUDA_FLAGS=-lineinfo", *options], modules),
        (faulty / "source", faulty / "tree", options, ["_cuda"]),
    ]
    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(lambda work: compile(*work, environment), works))
    ending = sysconfig.get_config_var("EXT_SUFFIX")  # another Python may have built here before
    for name in modules:
        shutil.copy(build / "tree" / f"{name}{ending}", ROOT / "mgg_hpc")
    shutil.copy(faulty / "tree" / f"_cuda{ending}", faulty / "_cuda.so")


def main(build: Path, wheels: Path | None) -> int:
    """Exit code 0 when the modules are in the package's folder; 2 where something is missing, by name."""
    try:
        prepare(build.resolve(), wheels)  # CMake and its programs run elsewhere
    except MissingError as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None))
