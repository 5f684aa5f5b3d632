"""Find the MPI library that Python uses, its launcher, and the launcher's settings.

mpi4py chooses its MPI library when it is imported (MPI4PY_LIBMPI, else the environment's own, else the system's). A
launcher of another MPI would start N worlds of one rank each, so the launcher is searched for next to the library, and
its --version is checked before it is used.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

LIBRARY = "MPI4PY_LIBMPI"  # mpi4py's own variable: the MPI library to load

# The sonames of the two binary interfaces for which mpi4py's wheel is built.
_LIBRARY_NAMES = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12")

# Names of launchers, and the output of their --version, for each family of MPI libraries.
_LAUNCHERS = {
    "openmpi": ("mpiexec.openmpi", "mpirun.openmpi", "mpiexec", "mpirun"),
    "mpich": ("mpiexec.mpich", "mpiexec.hydra", "mpiexec", "mpirun"),
}
_ANSWERS = {
    "openmpi": re.compile(r"Open ?MPI|OpenRTE|PRRTE|prterun", re.IGNORECASE),
    "mpich": re.compile(r"HYDRA|Intel\(R\) MPI", re.IGNORECASE),
}
_HOW_TO_GET = {
    "openmpi": "install it (Debian, Ubuntu: apt install openmpi-bin)",
    "mpich": "install it (pip install mpich, or Debian, Ubuntu: apt install mpich)",
}

_PROBE = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().replace(chr(10), ' ').replace(chr(0), ''))
for line in open('/proc/self/maps'):
    path = line.rstrip().rpartition(' ')[2]
    if path.rpartition('/')[2].startswith(('libmpi.so', 'libmpich.so')):
        print(path)
        break
"""


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads. version: text of MPI_Get_library_version. path: None if it is linked in."""

    version: str
    path: Path | None

    @property
    def family(self) -> str:
        """Interface of the library and its launcher: "openmpi" or "mpich"."""
        return "openmpi" if "Open MPI" in self.version else "mpich"

    @property
    def name(self) -> str:
        """Name and version, as "Open MPI v4.1.4"."""
        found = re.match(
            r"(MPICH|Open MPI|Intel\(R\) MPI Library|MVAPICH\d?)\W+(?:Version)?\W*(v?[\w.]+)", self.version
        )
        return f"{found[1]} {found[2]}" if found else self.version.partition(",")[0][:60]

    @property
    def major(self) -> int:
        """Major version, or 0."""
        number = re.search(r"\d+", self.name)
        return int(number[0]) if number else 0

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables that every process of the library needs, with any launcher.

        They turn off components of Open MPI for one-sided windows, which shared memory on a node does not use: version
        4's rdma makes OpenSHMEM crash when it ends, and version 5's ucx prints warnings if UCX finds no network.
        """
        if self.family != "openmpi":
            return {}
        return {"OMPI_MCA_osc": "^ucx" if self.major >= 5 else "^rdma"}


def library(environment: dict[str, str] | None = None) -> Library:
    """Return the library that mpi4py loads, found by a process that does not start MPI. Raises InputError."""
    probe = [sys.executable, "-c", _PROBE]
    probed = subprocess.run(probe, env=environment, capture_output=True, text=True, check=False, timeout=60)
    lines = probed.stdout.splitlines()
    if probed.returncode or not lines:
        reason = (probed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"mpi4py found no MPI library ({reason}): pip install mpich, "
            f"or apt install openmpi-bin and run with --mpi system, or name yours in {LIBRARY}"
        )
    return Library(lines[0], Path(lines[1]).resolve() if len(lines) > 1 else None)


def system_library() -> Path:
    """Return the MPI library of the machine or a loaded module, not of Python's environment. Raises InputError."""
    own = Path(sys.prefix).resolve()
    for folder in _library_folders():
        for name in _LIBRARY_NAMES:
            path = folder / name
            if path.exists() and not path.resolve().is_relative_to(own):
                return path
    raise InputError(
        "this machine has no MPI of its own: apt install openmpi-bin (Debian, Ubuntu), load your site's "
        f"MPI module, or name the library in {LIBRARY}"
    )


def _library_folders() -> Iterator[Path]:
    """Yield the folders of LD_LIBRARY_PATH, of the launchers on PATH, and of the dynamic loader's cache."""
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if entry:
            yield Path(entry)
    for name in ("mpiexec", "mpirun"):
        for folder in os.environ.get("PATH", "").split(":"):
            if (Path(folder) / name).exists():
                prefix = (Path(folder) / name).resolve().parent.parent
                yield from (prefix / "lib", prefix / "lib64")
    loader = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ.get("PATH", ""))
    if loader:
        cache = subprocess.run([loader, "-p"], capture_output=True, text=True, check=False).stdout
        for line in cache.splitlines():
            if line.strip().startswith(_LIBRARY_NAMES):
                yield Path(line.rpartition(" => ")[2]).parent


def launcher(found: Library) -> Path:
    """Return the mpiexec of a library's family, of the same installation if possible. Raises InputError."""
    names = _LAUNCHERS[found.family]
    # .venv/lib/libmpi.so.12 -> .venv/bin; /usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40 -> /usr/bin
    prefixes = list(found.path.parents)[1:5] if found.path is not None else []
    installed = [prefix / "bin" / name for prefix in prefixes for name in names]
    on_path = [Path(path) for path in map(shutil.which, names) if path]
    for path in [*(each for each in installed if os.access(each, os.X_OK)), *on_path]:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60)
        if _ANSWERS[found.family].search(answer.stdout + answer.stderr):
            return path
    raise InputError(
        f"Python loads {found.name} ({found.path or 'linked in'}), but its launcher is not installed: "
        f"{_HOW_TO_GET[found.family]}, or run with --mpi system"
    )


def launcher_flags(found: Library) -> list[str]:
    """Return the launcher's flags for a job on this machine.

    Ranks are not bound to cores, since they run several threads. MPICH's launcher gets an address if the machine's own
    name has none, as in some containers and virtual machines.
    """
    if found.family == "openmpi":
        return ["--bind-to", "none"]
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return ["-localhost", "127.0.0.1"]
    return []


def launcher_environment(found: Library) -> dict[str, str]:
    """Return environment variables for a job on this machine, unless the user has set them.

    They allow root and more ranks than cores, which Open MPI refuses by default, and turn off the eleven lines that
    version 4 adds to a rank's own error message; version 5's six lines cannot be turned off.
    """
    if found.family != "openmpi":
        return {}
    variables = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_orte_execute_quiet": "1"}
    if found.major >= 5:
        variables = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if os.geteuid() == 0:
        for name in ["OMPI", "PRTE"] if found.major >= 5 else ["OMPI"]:
            variables |= {f"{name}_ALLOW_RUN_AS_ROOT": "1", f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return found.settings | variables
