"""A real Slurm with two nodes on this machine, whose daemons and jobs all end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import programs

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
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
GresTypes=gpu
SlurmdTimeout=300
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=2000 Gres=gpu:2 State=UNKNOWN"
# Character devices that open, in the place of GPUs.
GPUS = """\
AutoDetect=off
NodeName=node[1-2] Name=gpu File={folder}/gpu[0-1]
"""
NULL_DEVICE = os.makedev(1, 3)

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

# Own host name, own /dev/shm and own IPC names, as on a machine of its own.
# Temporary files of a job lie on its node too: what one node writes there no other sees.
AS_A_NODE = """\
hostname "$1"; mount -t tmpfs -o size=4g tmpfs /dev/shm; mount -t tmpfs tmpfs "$MGG_SCRATCH"
exec slurmd -D -N "$1" -f "$SLURM_CONF"
"""


class Cluster:
    """The daemons, and the commands of a user. folder: holds all files of this cluster."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.daemons: list[subprocess.Popen] = []
        self.nodes: dict[str, subprocess.Popen] = {}
        self.environment = {name: os.environ[name] for name in ("HOME", "LANG", "CI") if name in os.environ}
        self.environment |= {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MGG_SCRATCH": str(folder / "scratch"),
        }

    def start(self):
        for name in ("run", "log", "state", "scratch", "tmp/node1", "tmp/node2"):
            (self.folder / name).mkdir(parents=True)
        ports = free_ports(3)
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(folder=self.folder, host=host, ports=ports, node=NODE)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(GPUS.format(folder=self.folder))
        for number in range(2):
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, NULL_DEVICE)
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
            self.start_node(node)
        self.wait_for_nodes()

    def start_node(self, node):
        command = ("unshare", "--uts", "--ipc", "--mount", "bash", "-c", AS_A_NODE, "bash", node)
        self.nodes[node] = self._daemon(*command)

    def wait_for_nodes(self):
        """Wait until both nodes can take jobs."""
        self._until(
            lambda: self.user("sinfo", "-h", "-o", "%D %t").stdout.split() == ["2", "idle"], "two idle nodes"
        )

    def lose_node(self, node):
        """Kill everything that runs on a node, as when it loses its power."""
        slurmd = self.nodes.pop(node)
        self.daemons.remove(slurmd)
        its_host_name = Path(f"/proc/{slurmd.pid}/ns/uts").stat().st_ino
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and (path / "ns" / "uts").stat().st_ino == its_host_name:
                    os.kill(int(path.name), signal.SIGKILL)
        slurmd.wait()
        # A node that boots has neither: Slurm's PMIx cannot start a job again where files of its killed step lie.
        shutil.rmtree(self.folder / "state" / f"slurmd.{node}")
        shutil.rmtree(self.folder / "tmp" / node)
        (self.folder / "tmp" / node).mkdir()

    def configure(self, before, after):
        """Change the configuration while the cluster runs."""
        path = self.folder / "slurm.conf"
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, after))
        done = self.user("scontrol", "reconfigure")
        assert done.returncode == 0, done.stderr

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

    def facts(self, job):
        """Return what scontrol says of a job, "1234" or "1234_5"."""
        words = self.user("scontrol", "show", "job", str(job), "-o").stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job, condition, seconds=90):
        """Wait until what scontrol says of a job meets a condition; returns it."""
        facts = {}

        def met():
            time.sleep(0.1)  # the commands of Slurm take much of a small machine
            facts.update(self.facts(job))
            return condition(facts)

        programs.wait_until(met, seconds, lambda: f"job {job}: {facts}\n{self.logs()}")
        return facts

    def result(self, job, seconds=90):
        """Wait for a job to end; returns what scontrol says of it."""
        return self.wait_for(job, lambda facts: facts.get("JobState") in ENDED, seconds)

    def logs(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in (self.folder / "log").iterdir()
        )

    def _daemon(self, *command):
        log = (self.folder / "log" / f"{len(self.daemons)}.{command[0]}.out").open("w")
        with log:
            options = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            self.daemons.append(subprocess.Popen(command, env=self.environment, **options))
        return self.daemons[-1]

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
