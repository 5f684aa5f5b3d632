"""The parts of `make gpu-test`: what they find, and what they make of tools that are not there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jobs
import numpy as np
import programs
import pytest
from mpi4py import MPI

from gpu import accept, processes, random_graphs, sanitize
from gpu.pes import table
from gpu.result import Line
from gpu.variants import faults
from mgg_hpc.errors import InputError

pytestmark = pytest.mark.long


def test_random_graphs_are_made_small_where_they_fail(engine, monkeypatch):
    def wrong(engine, problem):
        assert problem.edges < 10, "too many edges"
        return 0.5

    monkeypatch.setattr(random_graphs, "check", wrong)
    line = Line("", "")
    random_graphs.run(engine, 20, 3, line)
    assert line.cases - line.passed == 1 and line.worst == 0.5
    assert "edges=10," in line.failures[0] and "nodes=1," in line.failures[0]
    assert line.failures[0].endswith(": too many edges")


def test_a_wrong_sum_of_a_random_graph_is_found(engine, monkeypatch):
    right, line = random_graphs.reference.aggregate, Line("", "")
    monkeypatch.setattr(random_graphs.reference, "aggregate", lambda *given: right(*given) * (1 + 1e-4))
    random_graphs.run(engine, 20, 3, line)
    assert line.failures


@pytest.fixture
def alone(engine):
    """One PE, which is a job by itself."""
    job = processes.NvshmemPeers(MPI.COMM_SELF, engine.module, engine.arrays)
    yield processes.Processes(engine, job, MPI.COMM_SELF, ("direct", "get", "halo"), 1.0)
    job.finish()


@pytest.mark.parametrize("seed", range(4))
def test_processes_find_wrong_sums_and_other_bits(rng, alone, monkeypatch, seed):
    entry = table.Entry("processes", "float32", 33, "ordinary")
    worst, wrong = alone.check(entry, np.random.default_rng(seed))
    assert wrong == "" and 0 <= worst <= 1
    right = processes.Processes.aggregate

    def flawed(transfer):
        def aggregate(self, drawn, name, rng):
            outputs, problems = right(self, drawn, name, rng)
            if name == transfer:
                outputs[2] = outputs[2] + np.float32(0.5)
            return outputs, problems

        return aggregate

    monkeypatch.setattr(processes.Processes, "aggregate", flawed("halo"))
    assert alone.check(entry, rng)[1] == "PE 0: halo differs from direct in call 3"
    monkeypatch.setattr(processes.Processes, "aggregate", flawed("direct"))
    assert alone.check(entry, rng)[1].startswith("PE 0: direct, call 3: ")


def test_symmetric_memory_is_given_back_and_zeroed(rng, engine, alone):
    """All allocations have one size, so that the same place comes again."""
    job = alone.job
    first = job.memory.zeros(1000)
    first[:] = rng.integers(1, 255, 1000).astype(np.uint8)
    address = engine.arrays.address(first)
    job.release()
    again = job.memory.zeros(1000)
    assert engine.arrays.address(again) != 0 and not again.any()
    assert abs(engine.arrays.address(again) - address) <= 1024
    assert job.allocate(0, 0, engine.arrays.address(again), 1000).tolist() == [engine.arrays.address(again)]


# ---- Compute Sanitizer, played by a script


REPORTS = {
    "memcheck": "Invalid __global__ read of size 4 bytes",
    "racecheck": "Error: Race reported between Write access and Read access",
    "initcheck": "Uninitialized __global__ memory read of size 4 bytes",
    "synccheck": "Barrier error detected. Invalid arguments.",
}


def log_of(tool, count, kernel):
    """As Compute Sanitizer writes it."""
    entry = (
        f"========= {REPORTS[tool]}\n=========     at {kernel}(Call)+0x1b0\n=========     by thread (3,0,0)\n"
    )
    summary = f"RACECHECK SUMMARY: {count} hazards displayed (1 error, 0 warnings)"
    if tool != "racecheck":
        summary = f"ERROR SUMMARY: {count} errors"
    return "========= COMPUTE-SANITIZER\n" + count * f"{entry}========= \n" + f"========= {summary}\n"


PLAYED = """#!{python}
import json, os, pathlib, sys
words = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
program = [word for word in sys.argv[1:] if "=" not in word]
assert words.get("kernel-name") == (None if words["tool"] == "initcheck" else "kernel_substring=mgg")
assert words["target-processes"] == "application-only" and os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
assert program[1].endswith("run.py") and "--small" in program
report = json.loads(os.environ["PLAYED"])[words["tool"]]
if report is not None:
    pathlib.Path(words["log-file"]).write_text(report)
print("the program's last word")
"""


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A compute-sanitizer that reports so many errors; None: it ends without a word."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(PLAYED.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def reports(count, kernel="void mgg::aggregate_direct<float, 4>"):
        said = {name: None if count is None else log_of(name, count, kernel) for name in REPORTS}
        monkeypatch.setenv("PLAYED", json.dumps(said))

    return reports


def names(tool):
    """Return what `sanitize.clean` looks at."""
    return tool, f"{tool}, halo, one after another", f"{tool}, halo"


def failures(check, tool):
    """Return the complaints of `sanitize.clean` or `sanitize.planted`."""
    line = Line("", "")
    check(line, "cuda", tool, [])
    return line.failures


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_reports_of_a_sanitizer_count(played, tool):
    fault = faults.FAULTS[tool]
    missed = [f"{fault.what}: was not reported"]
    played(0)
    assert failures(sanitize.clean, tool) == []
    assert failures(sanitize.planted, tool) == missed
    played(3, f"void mgg::{fault.kernel}_something<float>")
    said = [f"{name}: 3 reports: {REPORTS[tool]}" for name in names(tool)]
    assert failures(sanitize.clean, tool) == said
    assert failures(sanitize.planted, tool) == []
    played(3, "void mgg::another_kernel<float>")
    assert failures(sanitize.planted, tool) == missed


def test_what_initcheck_says_of_other_kernels_is_not_ours(played):
    played(4, "void at::native::elementwise_kernel<128>")
    assert failures(sanitize.clean, "initcheck") == []
    assert len(failures(sanitize.clean, "memcheck")) == 3  # which looks at ours only


def test_a_sanitizer_that_did_not_run_has_failed(played, monkeypatch, tmp_path):
    played(None)
    said = "ended without a summary; the last that was said: the program's last word"
    for check in (sanitize.clean, sanitize.planted):
        assert failures(check, "racecheck")[0].endswith(said)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    failure = failures(sanitize.clean, "racecheck")[0]
    assert failure == "racecheck: no compute-sanitizer on PATH; it comes with the CUDA toolkit"


HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
open(sys.argv[1], 'w').write(str(child.pid))
time.sleep(60)
"""


def test_a_tool_that_hangs_is_ended_with_what_it_runs(tmp_path):
    child = tmp_path / "child"
    with pytest.raises(InputError, match="took more than 5 s"):
        sanitize.run([sys.executable, "-c", HANGS, str(child)], dict(os.environ), 5.0)
    programs.wait_until(lambda: not programs.is_running(int(child.read_text())), 5)


def test_only_kernels_that_wait_for_each_other_are_left_out(monkeypatch):
    """A halo whose kernels run one after another has to pass."""

    def examine(device, tool, words, seconds):
        raise sanitize.OutOfTimeError(f"took more than {seconds:.0f} s")

    monkeypatch.setattr(sanitize, "examine", examine)
    line = Line("", "")
    sanitize.clean(line, "cuda", "memcheck", [])
    assert [each.partition(": ")[0] for each in line.failures] == [*names("memcheck")[:2]]
    assert len(line.left_out) == 1 and line.left_out[0].startswith("memcheck, halo: took more than")


# ---- a daemon of CUDA's Multi-Process Service, played by a script


DAEMON = """#!{python}
import os, sys
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
with open("{log}", "a") as log:
    log.write(" ".join(sys.argv[1:] or sys.stdin.read().split()) + "|")
sys.exit({code} if "-d" in sys.argv else 0)
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """An nvidia-cuda-mps-control that notes what it is told, and starts with a code."""

    def made(code):
        path = tmp_path / processes.CONTROL
        path.write_text(DAEMON.format(python=sys.executable, log=tmp_path / "told", code=code))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return made


def test_a_daemon_is_started_probed_and_ended(tmp_path, control, monkeypatch):
    control(0)
    monkeypatch.setattr(processes, "PROBE", "print('a GPU')")
    with processes.mps(4) as variables:
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    monkeypatch.setattr(processes, "PROBE", "raise SystemExit('no CUDA device')")
    with pytest.raises(OSError, match=r"^no CUDA device$"), processes.mps(2):
        pytest.fail("ranks would start")
    assert (tmp_path / "told").read_text() == 2 * "-d|quit -t 5|"


def test_a_daemon_that_does_not_start_leaves_the_part_out(tmp_path, control):
    control(1)
    words = (processes.__file__, "--ranks", 2, "--mps")
    done = programs.python(*words, env=jobs.clean_environment())
    assert done.returncode == accept.LEFT_OUT
    said = "gpu-test: no daemon of CUDA's Multi-Process Service: nvidia-cuda-mps-control failed\n"
    assert done.stderr == said


def test_planted_faults_are_in_the_sources_once(tmp_path):
    faults.plant(tmp_path)
    kernels = Path(__file__).parents[3] / "cuda"
    files = {str(path.relative_to(kernels)) for path in kernels.rglob("*") if path.is_file()}
    copied = {name: (tmp_path / "cuda" / name).read_text() for name in files}
    changed = {name for name, text in copied.items() if text != (kernels / name).read_text()}
    assert changed == {edit.file for fault in faults.FAULTS.values() for edit in fault.edits}
    with pytest.raises(ValueError, match="is there 0 times; expected once"):
        faults.Edit("gpu/sums/get.cuh", "nothing like it", "").applied("another text")
