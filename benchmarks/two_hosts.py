"""Run a program on two hosts that are none: network namespaces of this machine, joined by links that can be slow.

    python benchmarks/two_hosts.py --rate 1gbit benchmarks/studies/exchanges.py transfers rmat:17 --backend shmem

Each host has its own network, host name, System V and POSIX shared memory, as a machine of its own would. All of it
is held by a few processes that end with this one, and the kernel takes everything away with them. Root only. The
program runs on one rank of each host, by the machine's Open MPI.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from harness import command, run

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import find_mpi

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
NAMES, SHARED_MEMORY = ("a", "b"), "1g"

# Run with: name, size of /dev/shm, hosts file, and an empty folder. UCX looks for networks in /sys, which shows those
# of the process that mounted it; the control groups below it are kept.
_BECOME_A_HOST = """
set -e
hostname "$1"
mount -t tmpfs -o size="$2" tmpfs /dev/shm
mount --bind "$3" /etc/hosts
mount --rbind /sys/fs/cgroup "$4"
mount -t sysfs sysfs /sys
mount --move "$4" /sys/fs/cgroup
ip link set lo up
echo ready
exec sleep infinity
"""
_BECOME_A_SWITCH = """
set -e
ip link add name switch type bridge
ip link set switch up
echo ready
exec sleep infinity
"""

# What Open MPI takes for ssh: called with a host's name and a command line.
_AGENT = """#!/bin/sh
host=$1
shift
case $host in
{cases}
esac
exec nsenter -t "$pid" -n -u -i -m -- sh -c "$*"
"""


def missing() -> str:
    """Return what keeps hosts from being made on this machine; "" if nothing does."""
    absent = {program: package for program, package in PROGRAMS.items() if not shutil.which(program)}
    if absent:
        return f"{' '.join(absent)} (apt install {' '.join(sorted(set(absent.values())))})"
    try:
        found = find_mpi.library(os.environ | {find_mpi.LIBRARY: str(find_mpi.system_library())})
        find_mpi.launcher(found)
    except InputError as error:
        return str(error)
    if found.family != "openmpi":
        return "Open MPI (apt install openmpi-bin libopenmpi-dev)"
    return "" if os.geteuid() == 0 else "root"


class Hosts:
    """Running hosts; made by `connect`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pids = folder, list[int]()
        self._holders: list[subprocess.Popen[str]] = []
        addresses = "".join(f"10.77.0.{number} {name}\n" for number, name in enumerate(NAMES, 1))
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + addresses)
        try:
            switch = self._hold(["--net"], _BECOME_A_SWITCH)
            for number, name in enumerate(NAMES, 1):
                self._pids.append(self._add(switch, number, name))
        except BaseException:
            self.close()
            raise
        cases = [f"{name}) pid={pid};;" for name, pid in zip(NAMES, self._pids, strict=True)]
        agent = folder / "agent"
        agent.write_text(_AGENT.format(cases="\n".join(cases)))
        agent.chmod(0o755)

    def throttle(self, rate: str) -> None:
        """Limit what each host sends, in tc's words: "1gbit"."""
        # Room enough for packets to wait instead of being lost.
        for pid in self._pids:
            shape = ("root", "tbf", "rate", rate, "burst", "128k", "limit", "4m")
            _inside(pid, "-n", "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def run(self, *given: Any, seconds: float = 120, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; arguments as of `start`.

        What runs after ``seconds`` is killed, and TimeoutExpired raised.
        """
        process = self.start(*given, **more)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(
        self,
        command: Sequence[str | Path],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start ``command`` on ranks 0, 1, ... by the machine's Open MPI, host by host, as on a cluster.

        env: more variables for every rank.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMI", "MGG_RANKS")) and name != "MPI4PY_MPIABI"
        }
        # Several hosts share this machine's cores, which no MPI can know: waiting ranks must give way.
        kept |= {find_mpi.LIBRARY: str(find_mpi.system_library()), "OMPI_MCA_mpi_yield_when_idle": "1"}
        kept |= env or {}
        found, ranks = find_mpi.library(kept), len(NAMES) * ranks_per_host
        environment = find_mpi.launcher_environment(found) | kept | {"MGG_RANKS": str(ranks)}
        launcher = [str(find_mpi.launcher(found)), *find_mpi.launcher_flags(found)]
        agent = ["--mca", "plm_rsh_agent", str(self._folder / "agent")]
        scratch = ["--mca", "orte_tmpdir_base", str(self._folder)]
        slots = ["--host", ",".join(f"{name}:{ranks_per_host}" for name in NAMES), "-n", str(ranks)]
        # Entering another file system's view leads to its root, so the folder is entered again.
        enter = ["nsenter", "-t", str(self._pids[0]), "-n", "-u", "-i", "-m", "--"]
        enter += ["env", "-C", str((folder or Path.cwd()).resolve())]
        return subprocess.Popen(
            [*enter, *launcher, *agent, *scratch, *slots, *map(str, command)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def segments(self) -> list[str]:
        """Return names in the /dev/shm of all hosts, and identifiers of their System V segments."""
        found = []
        for name, pid in zip(NAMES, self._pids, strict=True):
            found += [f"{name}:{path.name}" for path in Path(f"/proc/{pid}/root/dev/shm").iterdir()]
            listed = _inside(pid, "-i", "ipcs", "-m").splitlines()
            found += [f"{name}:sysv {line.split()[1]}" for line in listed if line.startswith("0x")]
        return found

    def processes(self) -> list[int]:
        """Return the process ids of all programs on the hosts, without the ones that keep the hosts alive."""
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in self._pids}
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                number = int(process.name) if process.name.isdigit() else 0
                if number and number not in self._pids and (process / "ns" / "net").readlink() in networks:
                    found.append(number)
        return found

    def kill(self) -> None:
        """End everything that runs on the hosts."""
        for number in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def close(self) -> None:
        """End all processes; networks, shared memory and mounts go with the last one."""
        self.kill()
        for holder in self._holders:
            holder.kill()
            holder.communicate()

    def _add(self, switch: int, number: int, name: str) -> int:
        empty = self._folder / f"cgroup.{name}"
        empty.mkdir()
        arguments = [name, SHARED_MEMORY, str(self._folder / "hosts"), str(empty)]
        pid = self._hold(["--net", "--uts", "--ipc", "--mount"], _BECOME_A_HOST, *arguments)
        plug = ["type", "veth", "peer", "name", "eth0", "netns", str(pid)]
        _inside(switch, "-n", "ip", "link", "add", "name", f"port{number}", *plug)
        _inside(switch, "-n", "ip", "link", "set", f"port{number}", "master", "switch", "up")
        _inside(pid, "-n", "ip", "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        _inside(pid, "-n", "ip", "link", "set", "eth0", "up")
        return pid

    def _hold(self, namespaces: list[str], script: str, *arguments: str) -> int:
        """Start the process that holds new namespaces and prepares them; return its number."""
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c", script, "sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise OSError(f"no host could be made: {holder.stderr.read().strip()}")
        return holder.pid


def _inside(pid: int, namespaces: str, *command: str) -> str:
    ended = subprocess.run(
        ["nsenter", "-t", str(pid), namespaces, "--", *command], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise OSError(f"{shlex.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


@contextlib.contextmanager
def connect() -> Iterator[Hosts]:
    """Make two hosts; nothing of them is left afterwards. Raises OSError where they cannot be made."""
    made = tempfile.TemporaryDirectory(prefix="mgg-hosts-", ignore_cleanup_errors=True)
    with made as folder, contextlib.closing(Hosts(Path(folder))) as hosts:
        yield hosts


@command(__doc__)
@click.option("--rate", default="", help="Of each link, in tc's words. [default: as fast as memory]")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM.py [ARGUMENT]...")
def main(rate: str, words: tuple[str, ...]) -> int:
    if lacking := missing():
        raise InputError(f"two hosts need {lacking}")
    with connect() as hosts:
        if rate:
            hosts.throttle(rate)
        done = hosts.run([sys.executable, *words], env={"OMP_NUM_THREADS": "1"}, seconds=600)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


main.allow_interspersed_args = False  # options after the program are its own

if __name__ == "__main__":
    run(main)
