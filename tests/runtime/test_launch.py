"""`mgg launch` as a person meets it: exit codes, errors readable once, Ctrl-C, nothing left behind.

Each test starts real ranks, with the mpich wheel and with the machine's Open MPI.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jobs
import programs
import pytest
from tiers import long_except

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import find_mpi, launch, leftovers

# A rank writes a file with its pid as name, and the segments that it maps as content.
PREAMBLE = """
import os, sys, time
from pathlib import Path
from mgg_hpc.errors import InputError
from mgg_hpc.runtime import exit_code, leftovers, mpi
def tell():
    names = leftovers.files_of(Path("/proc/self"), "/dev/shm/")
    (Path(__file__).parent / "pids" / str(os.getpid())).write_text("\\n".join(sorted(names)))
def job():
    global comm
    comm = mpi.world()
    tell()
"""
POSTAMBLE = """
try:
    code = job()
except InputError as error:
    exit_code.report(f"mgg: error: {error}", 2)
    code = 2
sys.exit(code or 0)
"""


def environment_without_mpi():
    """This process's environment without what a launcher may have put there."""
    return {name: value for name, value in jobs.clean_environment().items() if name != find_mpi.LIBRARY}


pytestmark = pytest.mark.slow
SOON = 10.0  # seconds within which all ranks must have ended, on a machine that has other work too


@pytest.fixture
def system_mpi(require):
    """The library of the machine's own MPI."""
    try:
        return find_mpi.system_library()
    except InputError:
        return require(False, "no MPI of the machine's own", "apt install openmpi-bin libopenmpi-dev")


@pytest.fixture(params=long_except(["wheel", "system"], "wheel"))
def mpi_environment(request):
    """The environment that selects each MPI."""
    environment = environment_without_mpi()
    if request.param == "system":
        environment["MPI4PY_LIBMPI"] = str(request.getfixturevalue("system_mpi"))
    return environment


@pytest.fixture
def nothing_left(tmp_path, mpi_environment):
    """Fails the test if the job leaves a segment or a folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mpi_environment["TMPDIR"] = str(scratch)
    yield
    assert not remaining_segments(tmp_path)
    assert not list(scratch.glob("mgg-*"))


def remaining_segments(folder):
    """Segments that ranks of the test's jobs mapped, and that are there still. Others' come and go."""
    told = [path.read_text().splitlines() for path in (folder / "pids").glob("*")]
    return {name for names in told for name in names if Path(name).exists()}


class Job:
    """A program of a few lines, run on several ranks by `launch.run` in a process of its own."""

    def __init__(self, folder, environment, body, ranks):
        self.pids = folder / "pids"
        self.pids.mkdir(exist_ok=True)
        script = folder / "job.py"
        script.write_text(PREAMBLE + textwrap.indent(textwrap.dedent(body), "    ") + POSTAMBLE)
        run = f"launch.run(sys.argv[2:], {ranks})"
        program = f"import sys; from mgg_hpc.runtime import launch; sys.exit({run})"
        self.ranks = ranks
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "job", sys.executable, str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=launch.end_with_parent,  # noqa: PLW1509 - should a timeout end pytest itself
        )

    def wait_until_all_run(self):
        deadline = time.monotonic() + 30
        while len(list(self.pids.iterdir())) < self.ranks:
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.01)

    def alive(self):
        return [int(path.name) for path in self.pids.iterdir() if launch._alive(int(path.name))]

    def end(self):
        try:
            out, err = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # launch takes its ranks along
            self.process.communicate(timeout=10)
            raise
        deadline = time.monotonic() + SOON  # a killed process may need a moment to disappear
        while left := self.alive():
            if time.monotonic() > deadline:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                pytest.fail("a rank outlived its job")
            time.sleep(0.01)
        return self.process.returncode, out, err


@pytest.fixture
def run(tmp_path, mpi_environment, nothing_left):
    """Run a body on ranks to its end: (exit code, stdout, lines of stderr)."""

    def run(body, ranks=2, **more):
        code, out, err = Job(tmp_path, mpi_environment | more, body, ranks).end()
        return code, out, err.splitlines()

    return run


LATE = "w = mpi.SharedWindow(mpi.node(comm), 1 << 20)\ntell()\nraise InputError('row 3')"


@pytest.mark.parametrize(
    ("body", "ranks"),
    [
        ("comm.Barrier()", 2),
        ("raise InputError('row 3')", 3),
        ("with mpi.agree(comm):\n  if comm.rank == 2: raise InputError('row 3')", 3),
        (LATE, 2),
    ],
    ids=["success", "all", "one", "open window"],
)
def test_success_is_silent_and_wrong_input_one_line(run, body, ranks):
    wrong = "row 3" in body
    assert run(body, ranks=ranks) == (2 * wrong, "", ["mgg: error: row 3"] * wrong)


def test_wrong_input_that_other_ranks_never_hear_of_still_ends_them(run):
    code, _, err = run("if comm.rank == 1:\n  raise InputError('one saw it')\ncomm.Barrier()")
    assert (code, [line for line in err if "mgg: error" in line]) == (2, ["mgg: error: one saw it"])


# Its launcher would end the first rank when another one has ended.
SLOW_FIRST = """
import os, sys, time
if "0" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    time.sleep(1.0)
from mgg_hpc.runtime import exit_code
exit_code.report("mgg: error: row 3", 2)
sys.exit(2)
"""
UNCAUGHT = "from mgg_hpc.runtime import mpi\nmpi.world()\nraise mpi.InputError('row 3')\n"


@pytest.mark.parametrize(
    ("call", "script", "said"),
    [
        ("process_launch(3, ['train'])", "", "Missing argument 'JOB'. (see 'mgg train --help')"),
        ("run([sys.executable, {}], 3)", SLOW_FIRST, "row 3"),
        ("run([sys.executable, {}], 2)", UNCAUGHT, "row 3"),
    ],
    ids=["before MPI starts", "the first rank speaks, however late", "nobody catches it"],
)
def test_wrong_input_of_any_kind_is_one_line(tmp_path, mpi_environment, nothing_left, call, script, said):
    (tmp_path / "rank.py").write_text(script)
    call = call.format(repr(str(tmp_path / "rank.py")))
    program = f"import sys; from mgg_hpc.runtime import launch; sys.exit(launch.{call})"
    done = programs.python("-c", program, env=mpi_environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"mgg: error: {said}\n")


FAILS = "if {ranks}: raise ZeroDivisionError('of rank', comm.rank)\ncomm.Barrier()"
AGREED = "with mpi.agree(comm):\n  comm.rank == 1 and 1 / 0"
THREAD = "import threading\ncomm.rank == 1 and threading.Thread(target=lambda: 1 / 0).start()\ntime.sleep(30)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (FAILS.format(ranks="comm.rank == 1"), "rank 1 of 3: ZeroDivisionError: ('of rank', 1)"),
        (FAILS.format(ranks=True), "rank 0 of 3: ZeroDivisionError: ('of rank', 0)"),
        (AGREED, "rank 1 of 3: ZeroDivisionError: division by zero"),
        (THREAD, "rank 1 of 3: ZeroDivisionError: division by zero"),
    ],
    ids=["one", "all", "agreed", "thread"],
)
def test_an_uncaught_error_ends_all_ranks_with_one_message(run, body, said):
    start = time.monotonic()
    code, _, err = run(body, ranks=3)
    assert time.monotonic() - start < SOON
    assert code == 1
    text = "\n".join(err)
    assert text.count("Traceback") == text.count("mgg: error") == 1
    assert f"mgg: error: {said}" in err


def test_killed_rank_ends_all_ranks(run):
    start = time.monotonic()
    code, _, err = run("comm.Barrier()\nif comm.rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(30)")
    assert time.monotonic() - start < SOON
    mpich = "a rank crashed, was killed, or could not start (its launcher returned 9)"
    open_mpi = "a rank was ended by SIGKILL; is the machine out of memory?"
    assert (code, err[-1]) in [(1, f"mgg: error: {mpich}"), (128 + 9, f"mgg: error: {open_mpi}")]
    code, _, err = run("return 1")
    assert (code, len(err)) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_ranks(tmp_path, mpi_environment, nothing_left, number):
    body = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worst of ranks
    while True:
        comm.rank == 0 and time.sleep(0.1)
        comm.rank == 1 and comm.Recv(bytearray(1), 0)
    """
    job = Job(tmp_path, mpi_environment, body, 2)
    job.wait_until_all_run()
    time.sleep(0.3)
    start = time.monotonic()
    job.process.send_signal(number)
    time.sleep(0.3)
    job.process.send_signal(number)  # impatience changes nothing
    code, _, err = job.end()
    assert time.monotonic() - start < SOON
    assert code == 128 + number
    name = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert f"mgg: error: {name}" in err.splitlines()


LOOP = """
import sys, time
import numpy as np
import mgg_hpc as mgg
from mgg_hpc.data.graph import from_edges
graph = mgg.open(from_edges(np.array([0, 1, 2]), np.array([1, 2, 0]), 3))
print("ready", flush=True)
try:
    while True:
        time.sleep(0.01)
finally:
    print("left", flush=True)
"""


@pytest.mark.parametrize("ranks", [0, pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_loop_with_one_line(tmp_path, mpi_environment, nothing_left, ranks, number):
    """As a program of its own, where clauses finally run, and by `mgg launch`."""
    (tmp_path / "train.py").write_text(LOOP)
    command = ["-m", "mgg_hpc", "launch", "-n", str(ranks), "train.py"] if ranks else ["train.py"]
    streams = {name: (tmp_path / name).open("w") for name in ("stdout", "stderr")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=mpi_environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **streams,
    )
    out, err = (tmp_path / name for name in streams)
    programs.wait_until(lambda: out.read_text().count("ready") == max(1, ranks), SOON, err.read_text)
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(2 * SOON) == 128 + number
    name = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert err.read_text() == f"mgg: error: {name}\n"
    words = re.findall("ready|left", out.read_text())  # two ranks may print within one another
    assert words == (["ready"] * ranks or ["ready", "left"])
    for stream in streams.values():
        stream.close()


def test_killed_launch_takes_its_ranks_along(tmp_path, mpi_environment):
    mpi_environment["TMPDIR"] = str(tmp_path)
    job = Job(tmp_path, mpi_environment, "comm.Barrier(); time.sleep(60)", 2)
    job.wait_until_all_run()
    time.sleep(0.3)
    start = time.monotonic()
    job.process.kill()
    while job.alive():
        assert time.monotonic() - start < SOON
        time.sleep(0.05)
    job.process.communicate()
    # What it could not remove itself, the next start of the same user does.
    time.sleep(max(0.0, leftovers._YOUNG_SECONDS + 0.1 - (time.monotonic() - start)))
    assert Job(tmp_path, mpi_environment, "comm.Barrier()", 2).end()[0] == 0
    assert not remaining_segments(tmp_path)


@pytest.mark.long
def test_launcher_of_another_mpi_is_one_line(tmp_path, mpi_environment, nothing_left, system_mpi):
    of_wheel = "MPI4PY_LIBMPI" not in mpi_environment
    other = {find_mpi.LIBRARY: str(system_mpi)} if of_wheel else {}
    found = find_mpi.library(environment_without_mpi() | other)
    script, status = tmp_path / "job.py", tmp_path / "status"
    script.write_text(PREAMBLE + "    pass" + POSTAMBLE)
    command = [find_mpi.launcher(found), "-n", "3", sys.executable, script]
    told = {"MGG_RANKS": "3", "MGG_STATUS": str(status)}
    environment = mpi_environment | find_mpi.launcher_environment(found) | told
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (line,) = [line for line in ended.stderr.splitlines() if "mgg: error" in line]
    assert "the launcher started 3 ranks" in line and "but MPI has 1: Python loads" in line
    assert status.read_text() == "2\n"


def test_threads_are_the_ranks_share(run, monkeypatch):
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    code, out, _ = run("print(os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="7")
    assert (code, out.count("7")) == (0, 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = find_mpi.library(environment_without_mpi())
    assert launch._settings(found, 2)["OMP_NUM_THREADS"] == share


def test_dry_run_prints_the_command_line_and_starts_nothing(capsys):
    assert launch.process_launch(3, ["train", "my job.toml"], dry_run=True) == 0
    line = capsys.readouterr().out
    assert line.startswith("env ")
    assert "MGG_RANKS=3" in line
    assert "mgg_hpc train 'my job.toml'" in line


@pytest.mark.parametrize(("error", "code"), [("ValueError('broken')", 1), ("InputError('row 3')", 2)])
def test_one_rank_ends_as_python_does(tmp_path, mpi_environment, error, code):
    """What a program has opened is written, and its atexit runs; wrong input is one line."""
    script = tmp_path / "program.py"
    script.write_text(
        "import atexit\nfrom mgg_hpc.errors import InputError\nfrom mgg_hpc.runtime import mpi\n"
        f"atexit.register(print, 'at exit')\nlog = open({str(tmp_path / 'log')!r}, 'w')\n"
        f"mpi.world()\nlog.write('epoch 1')\nraise {error}\n"
    )
    done = programs.python(script, env=mpi_environment)
    assert (done.returncode, done.stdout, (tmp_path / "log").read_text()) == (code, "at exit\n", "epoch 1")
    assert done.stderr.count("Traceback") == (code == 1)
    assert done.stderr.startswith("mgg: error: row 3\n" if code == 2 else "mgg: error: ValueError: broken\n")
