"""Builds the native modules for `make gpu-test` on a GPU machine that has no network: with what PYTHON has, and with
wheels from a folder for what it has not.

    python tests/gpu/prepare.py BUILD_FOLDER [WHEELS_FOLDER]

Only the standard library is needed to say what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What the tests and the build import; and the wheel that has it, where its name is another.
NEEDED = {
    "numpy": "numpy",
    "torch": "torch",
    "ml_dtypes": "ml_dtypes",
    "nanobind": "nanobind",
    "rich": "rich",
    "scipy": "scipy",
    "click": "click",
    "xxhash": "xxhash",
    "h5py": "h5py",
    "nvidia.nvshmem": "nvidia-nvshmem-cu13",
}


def missing(site: Path) -> list[str]:
    """The wheels that neither Python nor the build's own folder has."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()

    def found(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return [wheel for name, wheel in NEEDED.items() if not found(name)]


def architecture() -> str | None:
    """Of this machine's first GPU, as CMake writes it; MGG_GPU_ARCHITECTURE names another. None without a GPU."""
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


def main(build: Path, wheels: Path | None) -> int:
    """Exit code 0 when the modules are in the package's folder; 2 where something is missing, by name."""
    site = build / "site"
    site.mkdir(parents=True, exist_ok=True)
    absent = missing(site)
    if absent and wheels:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--find-links",
            str(wheels),
        ]
        subprocess.run([*pip, "--target", str(site), *absent], check=False)
        absent = missing(site)
    if absent:
        where = f"the folder {wheels} has no wheels of them" if wheels else "WHEELS=FOLDER names their wheels"
        return fail(f"{sys.executable} has no {', '.join(absent)}; {where}")
    of_gpu = architecture()
    if of_gpu is None:
        return fail("no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)")
    tools = {name: shutil.which(name) for name in ("cmake", "ninja")}
    if None in tools.values():
        return fail("no cmake or no ninja on PATH")
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    found = importlib.util.find_spec("nvidia.nvshmem")
    if found and found.submodule_search_locations:
        environment["NVSHMEM_HOME"] = next(iter(found.submodule_search_locations))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMGG_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={of_gpu}"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    tree = build / "tree"
    for command in (
        [tools["cmake"], "-S", ROOT, "-B", tree, "-G", "Ninja", *options],
        [tools["cmake"], "--build", tree, "--target", "_cuda", "_host"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout[-6000:] + done.stderr[-6000:], file=sys.stderr)
            return fail("the build failed")
    for module in (*tree.glob("_cuda*.so"), *tree.glob("_host*.so")):
        shutil.copy(module, ROOT / "mgg_hpc")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None))
