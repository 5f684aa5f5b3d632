"""A job that waits for ever ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import jobs
import pytest

from mgg_hpc.runtime import watchdog
from mgg_hpc.runtime.watchdog import Limit, Watchdog


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(watchdog, "_OTHERS_SECONDS", 0.05)


def test_no_progress_ends_the_job_and_says_where_it_was(quick, capfd):
    ended = threading.Event()
    with Watchdog(3, Limit(0.2), ended.set) as watched:
        watched.step("epoch 7: backward")
        assert ended.wait(5)
    said = capfd.readouterr().err
    line = "mgg: error: rank 3 has made no progress for 0.2 s; its last step: epoch 7: backward\n"
    assert said.startswith(line)
    assert "in test_no_progress_ends_the_job_and_says_where_it_was" in said  # where this thread's Python is


@pytest.mark.slow
def test_who_makes_steps_is_left_alone(quick, capsys):
    ended = threading.Event()
    with Watchdog(0, Limit(1.5), ended.set) as watched:  # a thread may get no core for a second
        for number in range(20):
            watched.step(f"step {number}")
            time.sleep(0.1)
    assert not ended.is_set()  # the thread that would set it has ended
    assert capsys.readouterr().err == ""


STEPS = """
    import time
    from mgg_hpc.runtime.watchdog import Limit, Watchdog
    with Watchdog(0, Limit(2.0)) as watched:
        print("here", flush=True)
        for step in range(10):
            watched.step(str(step))
            time.sleep(0.3)
"""


@pytest.mark.long
def test_a_process_that_was_stopped_is_left_alone(tmp_path):
    """Ctrl-Z, or a job that Slurm suspends: what the clock shows afterwards is not this rank's time."""
    program = tmp_path / "job.py"
    program.write_text(textwrap.dedent(STEPS))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, str(program)], **pipes)
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGSTOP)
    time.sleep(4.0)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")


@pytest.mark.slow
def test_the_limit_of_epochs_follows_the_longest_of_them(quick, capfd):
    ended = threading.Event()
    with Watchdog(0, Limit(60.0, factor=3.0, least=0.3), ended.set) as watched:
        began = time.monotonic()
        watched.step("epoch 1", repeats=True)
        assert watched.seconds == 60.0  # nothing is measured yet
        time.sleep(0.4)
        watched.step("epoch 2", repeats=True)
        assert 1.2 <= watched.seconds < 3 * (time.monotonic() - began)
        watched.step("writing what was found")
        assert watched.seconds == 60.0
        watched.step("epoch 3", repeats=True)
        assert ended.wait(10)
    assert "its last step: epoch 3" in capfd.readouterr().err


def test_zero_never_ends_anything(quick):
    before = set(threading.enumerate())
    with Watchdog(0, Limit(0.0), lambda: pytest.fail("ended")):
        assert set(threading.enumerate()) <= before
        time.sleep(0.1)


JOB = """
    import time
    from mgg_hpc.runtime import mpi, watchdog
    from mgg_hpc.runtime.watchdog import Limit, Watchdog
    watchdog._OTHERS_SECONDS = 4.0
    comm = mpi.world()
    with Watchdog(comm.rank, Limit(3.0)) as watched:
        for epoch in range(1, 4):
            watched.step(f"epoch {epoch}")
            if epoch == 2 and comm.rank == 1:
                watched.step("asleep")
                time.sleep(60)
            comm.Barrier()
"""


# What comes between calls may take any time.
LOOP = """
    import time
    import numpy as np, scipy.sparse
    import mgg_hpc as mgg
    from mgg_hpc.runtime import watchdog
    watchdog._OTHERS_SECONDS = 4.0
    matrix = scipy.sparse.identity(50, np.float32, format="csr")
    with mgg.from_scipy(matrix, np.ones((50, 4)), watchdog=3) as graph:
        conv = mgg.nn.GCNConv(4, 4)
        for _ in range(2):
            out = conv(graph.x, graph)
            time.sleep(4)
        if graph.rank == 0:
            graph.gather(out)
        conv(out, graph)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "rank_0", "rank_1", "line"),
    [(JOB, "epoch 2", "asleep", 12), (LOOP, "graph.gather", "GCNConv", 15)],
    ids=["job", "loop"],
)
def test_all_ranks_say_where_they_are_when_one_does_not_come(tmp_path, program, rank_0, rank_1, line):
    (tmp_path / "job.py").write_text(textwrap.dedent(program))
    start = "import sys; from mgg_hpc.runtime import launch; sys.exit(launch.run(sys.argv[1:], 2))"
    began = time.monotonic()
    done = jobs.python("-c", start, sys.executable, tmp_path / "job.py")
    assert done.returncode == 1 and time.monotonic() - began < 50
    said = "has made no progress for 3 s; its last step:"
    assert f"mgg: error: rank 0 {said} {rank_0}\n" in done.stderr
    assert f"mgg: error: rank 1 {said} {rank_1}\n" in done.stderr
    assert f'File "{tmp_path / "job.py"}", line {line}' in done.stderr  # where one of them is
