"""Hosts that are none: network namespaces of this machine, joined by a switch whose links can be slowed down.

Each host has its own network, host name, System V and POSIX shared memory, as a machine of its own would. All of it
is held by a few processes that end with this one, and the kernel takes everything away with them. Root only.

    with two_hosts.connect() as hosts:
        hosts.throttle(rate="1gbit", delay="20us")
        hosts.run([sys.executable, "program.py"], ranks_per_host=2)
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

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import find_mpi

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}

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
    """What keeps hosts from being made on this machine; empty if nothing does."""
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

    def __init__(self, folder: Path, names: Sequence[str], shared_memory: str) -> None:
        self.names = list(names)
        self._folder = folder
        self._holders: list[subprocess.Popen[str]] = []
        self._pids: list[int] = []
        self._mpi = find_mpi.system_library()
        addresses = [f"10.77.0.{number + 1} {name}" for number, name in enumerate(self.names)]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(addresses) + "\n")
        try:
            switch = self._hold(["--net"], _BECOME_A_SWITCH)
            for number, name in enumerate(self.names):
                self._pids.append(self._add(switch, number, name, shared_memory))
        except BaseException:
            self.close()
            raise
        cases = [f"{name}) pid={pid};;" for name, pid in zip(self.names, self._pids, strict=True)]
        agent = folder / "agent"
        agent.write_text(_AGENT.format(cases="\n".join(cases)))
        agent.chmod(0o755)

    def throttle(self, rate: str = "", delay: str = "") -> None:
        """Limit what each host sends (tc's words: "1gbit", "50us"); "" takes the limit away.

        A delay takes a kernel with netem, which small ones lack: OSError.
        """
        # Room enough for packets to wait instead of being lost.
        discipline = ["pfifo_fast"]
        if delay:
            discipline = ["netem", "limit", "20000", "delay", delay, *(["rate", rate] if rate else [])]
        elif rate:
            discipline = ["tbf", "rate", rate, "burst", "128k", "limit", "4m"]
        for pid in self._pids:
            _inside(pid, "-n", "tc", "qdisc", "replace", "dev", "eth0", "root", *discipline)

    def run(
        self,
        command: Sequence[str | Path],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
        seconds: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on ranks 0, 1, ... by the machine's Open MPI, host by host, as its user would on a cluster.

        env: more variables for every rank. What runs after ``seconds`` is killed, and TimeoutExpired raised.
        """
        process = self.start(command, ranks_per_host, env, folder=folder)
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
        """The same without waiting for its end."""
        environment = self.environment() | dict(env or {})
        found = find_mpi.library(environment)
        ranks = len(self.names) * ranks_per_host
        environment = find_mpi.launcher_environment(found) | environment | {"MGG_RANKS": str(ranks)}
        slots = ",".join(f"{name}:{ranks_per_host}" for name in self.names)
        launcher = [str(find_mpi.launcher(found)), *find_mpi.launcher_flags(found)]
        agent = ["--mca", "plm_rsh_agent", str(self._folder / "agent")]
        scratch = ["--mca", "orte_tmpdir_base", str(self._folder)]
        full = [*launcher, *agent, *scratch, "--host", slots, "-n", str(ranks), *map(str, command)]
        # Entering another file system's view leads to its root, so the folder is entered again.
        enter = ["env", "-C", str((folder or Path.cwd()).resolve())]
        return subprocess.Popen(
            ["nsenter", "-t", str(self._pids[0]), "-n", "-u", "-i", "-m", "--", *enter, *full],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        """This process's environment without what a launcher put there, for the machine's Open MPI."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMI", "MGG_RANKS"))
        }
        kept.pop("MPI4PY_MPIABI", None)
        # Several hosts share this machine's cores, which no MPI can know: waiting ranks must give way.
        return kept | {find_mpi.LIBRARY: str(self._mpi), "OMPI_MCA_mpi_yield_when_idle": "1"}

    def segments(self) -> list[str]:
        """Names in the /dev/shm of all hosts, and identifiers of their System V segments."""
        found = []
        for name, pid in zip(self.names, self._pids, strict=True):
            found += [f"{name}:{path.name}" for path in Path(f"/proc/{pid}/root/dev/shm").iterdir()]
            listed = _inside(pid, "-i", "ipcs", "-m").splitlines()
            found += [f"{name}:sysv {line.split()[1]}" for line in listed if line.startswith("0x")]
        return found

    def processes(self) -> list[int]:
        """Everything that runs on the hosts, beside what holds them up."""
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

    def _add(self, switch: int, number: int, name: str, shared_memory: str) -> int:
        empty = self._folder / f"cgroup.{name}"
        empty.mkdir()
        arguments = [name, shared_memory, str(self._folder / "hosts"), str(empty)]
        pid = self._hold(["--net", "--uts", "--ipc", "--mount"], _BECOME_A_HOST, *arguments)
        plug = ["type", "veth", "peer", "name", "eth0", "netns", str(pid)]
        _inside(switch, "-n", "ip", "link", "add", "name", f"port{number}", *plug)
        _inside(switch, "-n", "ip", "link", "set", f"port{number}", "master", "switch", "up")
        _inside(pid, "-n", "ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        _inside(pid, "-n", "ip", "link", "set", "eth0", "up")
        return pid

    def _hold(self, namespaces: list[str], script: str, *arguments: str) -> int:
        """Start the process that holds new namespaces and prepares them; returns its number."""
        with_us = ["setpriv", "--pdeathsig", "KILL"]
        holder = subprocess.Popen(
            [*with_us, "unshare", *namespaces, "sh", "-c", script, "sh", *arguments],
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
def connect(count: int = 2, *, rate: str = "", delay: str = "", shared_memory: str = "1g") -> Iterator[Hosts]:
    """``count`` hosts named a, b, ...; nothing of them is left afterwards. Raises OSError where they cannot be made."""
    folder = Path(tempfile.mkdtemp(prefix="mgg-hosts-"))
    try:
        hosts = Hosts(folder, [chr(ord("a") + number) for number in range(count)], shared_memory)
        try:
            if rate or delay:
                hosts.throttle(rate, delay)
            yield hosts
        finally:
            hosts.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    with connect() as two:
        done = two.run(sys.argv[1:] or ["hostname"])
        print(done.stdout, end="")
        print(done.stderr, end="", file=sys.stderr)
        sys.exit(done.returncode)
