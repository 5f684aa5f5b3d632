"""The transport over OpenSHMEM by itself, and what becomes of a job that ends badly: on one host and across two."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import jobs
import programs
import pytest
from builds import made
from programs import wait_until
from tiers import drawn

TESTS = Path(__file__).with_name("test_shmem.py")
ROOT = Path(__file__).parents[2]

# Reserves as many bytes as its argument says, and writes a file with its pid as name and the shared memory that it maps
# as content: names in /dev/shm, and identifiers of System V segments. With a third argument it runs for ever.
JOB = """
import os, sys
from pathlib import Path
import numpy as np
from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import backends, exit_code, mpi
comm = mpi.world()
try:
    backend = backends.make(backends.choose("shmem", comm), comm)
    backend.memory.reserve(int(sys.argv[1]))
except InputError as error:
    exit_code.report(f"mgg: error: {error}", 2)
    sys.exit(2)
rows = backend.rows(np.full(comm.size, 100), RowFormat(np.dtype(np.float32), 16), symmetric=True)
for _ in range(3):
    backend.publish(rows)
maps = [line.split() for line in open("/proc/self/maps") if "/dev/shm/" in line or "/SYSV" in line]
names = {part[5] if "/dev/shm/" in part[5] else part[4] for part in maps}
Path(sys.argv[2], str(os.getpid())).write_text(" ".join(names))
while len(sys.argv) == 4:
    backend.publish(rows)
backend.memory.close()
"""


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program(built):
    """transport.cpp, compiled."""
    return made("transport") / "transport"


@pytest.fixture
def start():
    """Start a command on ranks of this host."""
    started = []

    def start(ranks, *command):
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("launch.py"), str(ranks), *map(str, command)],
            env=jobs.clean_environment() | {"OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()  # launch takes its ranks along
            process.communicate()


@pytest.fixture
def script(built, tmp_path):
    """The command of JOB, and the folder of its pids."""
    (tmp_path / "pids").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    return [sys.executable, tmp_path / "job.py"], tmp_path / "pids"


def segments(pids: Path) -> set[str]:
    """The shared memory that a job's processes mapped."""
    return {name for path in pids.iterdir() for name in path.read_text().split()}


def left(names: set[str]) -> set[str]:
    """Those segments that are there still. Other jobs' come and go."""
    identifiers = {
        line.split()[1] for line in programs.run("ipcs", "-m").stdout.splitlines() if line[:2] == "0x"
    }
    return {name for name in names if Path(name).exists() or name in identifiers}


def gone(pids: Path) -> bool:
    """Whether none of a job's processes runs."""
    return not any(programs.is_running(int(path.name)) for path in pids.iterdir())


# ---- one host -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_transport_keeps_its_promises(program, start, ranks):
    process = start(ranks, program, 30)
    assert process.wait(60) == 0, process.stderr.read()
    assert process.stderr.read() == ""


def test_a_heap_that_does_not_fit_is_refused_with_both_numbers(script, start):
    command, pids = script
    process = start(2, *command, 1 << 45, pids)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.count("\n") == 1
    assert "the 2 ranks of this node need 64.0 TiB of shared memory (32.0 TiB each)" in err
    assert "but the available memory is " in err


def test_ranks_that_end_leave_nothing(script, start):
    command, pids = script
    process = start(2, *command, 1 << 20, pids)
    assert (process.wait(60), process.stderr.read()) == (0, "")
    assert len(list(pids.iterdir())) == 2 and segments(pids)
    wait_until(lambda: not left(segments(pids)), 2)


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_a_killed_job_is_gone(script, start, victim):
    command, pids = script
    process = start(2, *command, 1 << 20, pids, "for ever")
    wait_until(lambda: len(list(pids.iterdir())) == 2 and left(segments(pids)), 30)
    number = int(next(pids.iterdir()).name) if victim == "rank" else process.pid
    os.kill(number, signal.SIGKILL if victim == "rank" else signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode != 0
    wait_until(lambda: gone(pids), 2)
    wait_until(lambda: not left(segments(pids)), 2)


def test_another_mpi_is_named(built):
    """The mpich wheel in .venv is what Python loads unless told otherwise."""
    program = "from mgg_hpc.runtime import backends, mpi; comm = mpi.world()\n"
    ended = jobs.python("-c", program + "backends.make(backends.choose('shmem', comm), comm)", folder=ROOT)
    assert "shmem uses Open MPI's OpenSHMEM, but Python loads MPICH" in ended.stderr
    assert "mgg launch --mpi system" in ended.stderr


# ---- two hosts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_transport_keeps_its_promises_across_hosts(program, hosts, ranks):
    for rounds in (0, 12):  # 0: connections that nothing has used must be closed as well
        ended = hosts.run([program, rounds], ranks, seconds=30)
        said = [
            line for line in ended.stderr.splitlines() if "Warning: setpgid" not in line
        ]  # Open MPI's own race
        assert (ended.returncode, said) == (0, [])
    assert hosts.segments() == []


@pytest.mark.parametrize("ranks", drawn([1, 2], 1))
def test_the_table_of_hard_cases_across_hosts(built, hosts, ranks):
    """What test_shmem.py does on one host; with two ranks on each, some peers are within reach and some are not."""
    tests = ["-m", "mpi4py", "-m", "pytest", "-q", "-x", "--color=no", "--with-mpi", "--tier", "all", TESTS]
    tests += ["-k", "not hard_cases"]  # whose traversals use the same exchanges
    environment = {"MGG_TEST_TRANSFERS": "get,halo", "MGG_TEST_RANKS": str(2 * ranks), "OMP_NUM_THREADS": "1"}
    ended = hosts.run([sys.executable, *tests], ranks, environment, folder=ROOT, seconds=300)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert hosts.segments() == []


def test_a_rank_killed_on_one_host_ends_the_job_on_both(script, hosts):
    command, pids = script
    process = hosts.start([*command, 1 << 20, pids, "for ever"], 1, {"OMP_NUM_THREADS": "1"}, folder=ROOT)
    try:
        wait_until(lambda: len(list(pids.iterdir())) == 2, 30)
        os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)
        process.communicate(timeout=10)
        assert process.returncode != 0
        wait_until(lambda: not hosts.processes(), 2)
        assert hosts.segments() == []
    finally:
        hosts.kill()
        with contextlib.suppress(ValueError):
            process.communicate()
