"""A real Slurm with two nodes on this machine, of the test's own: nothing of it outlives the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import programs
import pytest

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "srun": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
}

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/state/slurmd.%n
TmpFS={folder}/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN"

# Own host name, own /dev/shm and own IPC names, as on a machine of its own.
AS_A_NODE = 'hostname "$1"; mount -t tmpfs -o size=4g tmpfs /dev/shm; exec slurmd -D -N "$1" -f "$SLURM_CONF"'


class Cluster:
    """The daemons, started by pid and stopped by pid, and the commands of a user."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.daemons: list[subprocess.Popen] = []
        self.environment = {name: os.environ[name] for name in ("HOME", "LANG", "CI") if name in os.environ}
        self.environment |= {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def start(self):
        for name in ("run", "log", "state", "tmp/node1", "tmp/node2"):
            (self.folder / name).mkdir(parents=True)
        ports = free_ports(3)
        text = CONFIGURATION.format(folder=self.folder, host=short_host_name(), ports=ports, node=NODE)
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        run = self.folder / "run"
        self._daemon(
            *("munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"),
            *(f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"),
            f"--log-file={self.folder}/log/munged.log",
        )
        self._until((run / "munge.sock").exists, "munged")
        self._daemon("slurmctld", "-D", "-i", "-f", self.environment["SLURM_CONF"])
        for node in ("node1", "node2"):
            self._daemon("unshare", "--uts", "--ipc", "--mount", "bash", "-c", AS_A_NODE, "bash", node)
        self._until(
            lambda: self.user("sinfo", "-h", "-o", "%D %t").stdout.split() == ["2", "idle"], "two idle nodes"
        )

    def stop(self):
        if len(self.daemons) > 1:
            self.user("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                self._until(lambda: not self.user("squeue", "-h").stdout.strip(), "an empty queue", 10)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for number in self._processes():  # steps of jobs, which run in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def user(self, *command, folder=None, **variables):
        """Run a command as a user of the cluster would."""
        return programs.run(*command, env=self.environment | variables, cwd=folder, timeout=60)

    def submit(self, *arguments, folder, **variables):
        """Submit a job from a folder; returns its number."""
        submitted = self.user("sbatch", "--parsable", *arguments, folder=folder, **variables)
        assert submitted.returncode == 0, submitted.stderr
        return int(submitted.stdout.split(";")[0])

    def result(self, job, seconds=90):
        """Wait for a job to end; returns what scontrol says of it."""
        facts = {}

        def ended():
            words = self.user("scontrol", "show", "job", str(job), "-o").stdout.split()
            facts.update(word.split("=", 1) for word in words if "=" in word)
            return facts.get("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

        programs.wait_until(ended, seconds, lambda: f"job {job} is {facts['JobState']}\n{self.logs()}")
        return facts

    def logs(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in (self.folder / "log").iterdir()
        )

    def _daemon(self, *command):
        log = (self.folder / "log" / f"{len(self.daemons)}.{command[0]}.out").open("w")
        with log:
            options = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            self.daemons.append(subprocess.Popen(command, env=self.environment, **options))

    def _until(self, condition, what, seconds=30):
        def met():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            assert not dead, f"{dead} ended\n{self.logs()}"
            return condition()

        programs.wait_until(met, seconds, lambda: f"no {what} after {seconds} s\n{self.logs()}")

    def _processes(self):
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                    yield int(process.name)


def short_host_name():
    return socket.gethostname().partition(".")[0]


def free_ports(count):
    """Ports that nothing listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def missing():
    """Return the Debian packages whose programs a real Slurm needs and this machine lacks."""
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    return sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)})


@pytest.fixture(scope="session")
def cluster(require):
    """Two nodes that run jobs."""
    require(not missing(), "no Slurm", f"apt install {' '.join(missing())}")
    require(os.geteuid() == 0, "a real Slurm needs root")
    # A short path: munge's socket must fit into 108 characters, and everyone must reach it.
    folder = Path(tempfile.mkdtemp(prefix="mgg-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
