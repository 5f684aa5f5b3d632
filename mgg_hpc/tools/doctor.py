"""`mgg doctor`: report what this machine has and lacks, and how to get it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import DONE, FAILED, InputError
from ..runtime import cores, device, find_mpi

_PING_SECONDS = 20
_PACKAGES = ("numpy", "torch", "mpi4py", "h5py", "msgspec", "scipy", "safetensors")

# Program of two ranks that checks that launcher, library and shared memory work together.
_PING = """
import time
from mgg_hpc.runtime import mpi
comm = mpi.world()
window = mpi.SharedWindow(mpi.node(comm), 1 << 20)
window.buffer(comm.rank)[:] = comm.rank + 1
window.sync(); comm.Barrier(); window.sync()
assert window.buffer(1 - comm.rank)[-1] == 2 - comm.rank
start = time.perf_counter()
for _ in range(100):
    mpi.barrier(comm)
if comm.rank == 0:
    print(f"{(time.perf_counter() - start) * 1e4:.1f} us a barrier")
window.free()
"""
# Program that starts another one on several ranks: a launch listens to signals, and ends its ranks when it ends.
LAUNCH = """
import sys
from mgg_hpc.runtime import launch
sys.exit(launch.run([sys.executable, *sys.argv[2:]], int(sys.argv[1])))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: str  # "ok", "absent" (something cannot be used) or "broken" (training on CPUs cannot work)
    value: str
    advice: str = ""


def process_doctor(as_json: bool) -> int:
    """Print the findings; return 1 if something that training on CPUs needs is broken, else 0."""
    findings = examine()
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    return FAILED if broken else DONE


def examine() -> list[Finding]:
    """Return all findings, in the order of the report."""
    findings = [Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")]
    on_cpus = (_packages, _native, _machine, _shared_memory, _limits, _mpi, _openshmem)
    for check in (*on_cpus, _cuda, _slurm):
        try:
            findings += check()
        except Exception as error:  # a failing check is a finding too
            findings.append(Finding(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}"))
    return findings


def _print(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    marks = {"ok": "[green]ok[/]", "absent": "[yellow]absent[/]", "broken": "[red]broken[/]"}
    table = Table("what", "", "found", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(finding.name, marks[finding.state], finding.value)
    console = Console(highlight=False)
    console.print(table)
    for finding in findings:
        if finding.advice:
            console.print(f"\n{finding.name}: {finding.advice}", markup=False)


# ---- checks ---------------------------------------------------------------------------------------------


def _packages() -> list[Finding]:
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"training needs them: pip install {' '.join(missing)}, or run make setup"
        return [Finding("Packages", "broken", f"missing: {', '.join(missing)}", advice)]
    return [Finding("Packages", "ok", ", ".join(found))]


def _native() -> list[Finding]:
    try:
        from mgg_hpc import _host
    except ImportError as error:
        advice = "the kernels are not built for this Python: make setup, or pip install . (needs a compiler)"
        return [Finding("Native extension", "broken", str(error), advice)]
    uses = f"uses {_host.instruction_set()} of {', '.join(_host.instruction_sets())}"
    threads = f"{_host.openmp_threads()} (OMP_NUM_THREADS sets it)"
    return [Finding("Native extension", "ok", uses), Finding("OpenMP threads", "ok", threads)]


def _machine() -> list[Finding]:
    quota = cores.quota()
    limited = f", control group allows {quota:g}" if quota != float("inf") else ""
    usable = f"{len(cores.affinity())} of {os.cpu_count()} usable{limited}"
    memory = f"{cores.memory_available() / 2**30:.1f} of {cores.memory_total() / 2**30:.1f} GiB available"
    return [Finding("Cores", "ok", usable), Finding("Memory", "ok", memory)]


def _shared_memory() -> list[Finding]:
    try:
        state = os.statvfs("/dev/shm")
    except OSError as error:
        advice = "ranks of one machine share their features there: mount -t tmpfs tmpfs /dev/shm"
        return [Finding("Shared memory", "broken", str(error), advice)]
    free, size = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    value = f"/dev/shm: {free / 2**30:.2f} of {size / 2**30:.2f} GiB free"
    if free >= 256 << 20:
        return [Finding("Shared memory", "ok", value)]
    advice = (
        "the features of a machine's ranks live there, and MPI's own segments: enlarge it "
        "(mount -o remount,size=8g /dev/shm; docker run --shm-size=8g), or free it (mgg clean)"
    )
    return [Finding("Shared memory", "broken" if free < 16 << 20 else "absent", value, advice)]


def _limits() -> list[Finding]:
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    text = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked / 2**20:.0f} MiB"
    state, advice = ("ok", "") if files >= 1024 else ("absent", "few for many ranks: ulimit -n 4096")
    return [Finding("Locked memory", "ok", text), Finding("Open files", state, str(files), advice)]


def _mpi() -> list[Finding]:
    try:
        found = find_mpi.library()
    except InputError as error:
        return [Finding("MPI library", "broken", "none", str(error))]
    library = Finding("MPI library", "ok", f"{found.name} ({found.path or 'linked in'})")
    try:
        return [library, Finding("MPI launcher", "ok", str(find_mpi.launcher(found))), _ping()]
    except InputError as error:
        return [library, Finding("MPI launcher", "broken", "none", str(error))]


def _ping() -> Finding:
    """Run two ranks by `mgg launch`."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "2", "-c", _PING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=_PING_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # launch ends its ranks too
        process.communicate()
        answer = f"no answer in {_PING_SECONDS} s"
        return Finding("Two ranks", "broken", answer, "mgg launch -n 2 cannot work here")
    if process.returncode:
        reason = next((line for line in err.splitlines() if "mgg: error" in line), err.strip()[-200:])
        return Finding("Two ranks", "broken", f"ended with {process.returncode}", reason)
    return Finding("Two ranks", "ok", out.strip())


def _openshmem() -> list[Finding]:
    # A separate process, since it loads an MPI library, which may differ from that of this process.
    version = _output(sys.executable, "-c", "from mgg_hpc import _shmem; print(_shmem.version())")
    if version:
        return [Finding("OpenSHMEM", "ok", f"{version} (start with mgg launch --mpi system)")]
    if list(Path(__file__).parents[1].glob("_shmem*.so")):
        value, advice = "built, but does not load", "load the MPI module that it was built with"
    elif shutil.which("oshc++"):
        value, advice = "installed, but not built in", "make setup, or pip install ."
    else:
        value = "no oshc++"
        advice = "apt install libopenmpi-dev openmpi-bin, or load a site's module; then make setup, or pip install ."
    return [Finding("OpenSHMEM", "absent", value, f"CPU jobs over several nodes need it: {advice}")]


def _cuda() -> list[Finding]:
    return [_gpu(), _nvcc(), _nvshmem(), _cupy(), _gpu_kernels()]


def _gpu_kernels() -> Finding:
    """Return whether _cuda is built, loads, and sees a GPU."""
    name = "GPU kernels"
    if not list(Path(__file__).parents[1].glob("_cuda.*so")):
        return Finding(name, "absent", "not built in", "needed only for GPUs: make cuda (docs/install.md)")
    from ..runtime.backends.cuda import module

    try:
        count, why = module.load().devices()
    except InputError as error:
        return Finding(name, "absent", "built, but do not load", str(error))
    return Finding(name, "ok", f"built; {count} GPUs" if count else f"built; no CUDA device ({why})")


def _gpu() -> Finding:
    if not device.has_driver():
        advice = (
            "training runs on the CPUs; for GPUs install the driver, or start the container with its GPUs"
        )
        return Finding("GPU", "absent", "no NVIDIA driver", advice)
    query = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if query:
        return Finding("GPU", "ok", "; ".join(query.splitlines()))
    advice = "does nvidia-smi work? is this job given a GPU?"
    return Finding("GPU", "absent", "a driver, but no GPU answers", advice)


def _nvcc() -> Finding:
    version = _output("nvcc", "--version")
    if version:
        release = next((line for line in version.splitlines() if "release" in line), version)
        return Finding("CUDA compiler", "ok", release.strip())
    advice = "needed only to build GPU kernels: the CUDA toolkit"
    return Finding("CUDA compiler", "absent", "no nvcc on PATH", advice)


def _wheel(title: str, names: Sequence[str], absent: str, advice: str) -> Finding:
    """Return whether one of some packages is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return Finding(title, "ok", f"{name} {importlib.metadata.version(name)}")
    return Finding(title, "absent", absent, advice)


def _nvshmem() -> Finding:
    advice = _for_gpus("", "pip install nvidia-nvshmem-cu13")
    return _wheel("NVSHMEM", ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"), "no wheel", advice)


def _cupy() -> Finding:
    """Return whether CuPy, which compiles programs on edges by NVRTC, is installed."""
    advice = _for_gpus(", for programs on edges", "pip install cupy-cuda13x nvidia-cuda-nvrtc")
    return _wheel("CuPy", ("cupy-cuda13x", "cupy"), "not installed", advice)


def _for_gpus(what: str, command: str) -> str:
    """Return advice on what only GPUs need: a command, once there is a driver."""
    return f"needed only for GPUs{what}: {command if device.has_driver() else 'an NVIDIA driver comes first'}"


def _slurm() -> list[Finding]:
    nodes = _output("sinfo", "--noheader", "--format=%P %D nodes %t")
    if nodes:
        return [Finding("Slurm", "ok", "; ".join(nodes.splitlines()[:4]))]
    value = "sinfo finds no controller" if shutil.which("sinfo") else "no sinfo on PATH"
    return [Finding("Slurm", "absent", value, "needed only on clusters: docs/cluster.md")]


def _output(*command: str) -> str:
    """Return the output of a program; "" if it does not exist or fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
