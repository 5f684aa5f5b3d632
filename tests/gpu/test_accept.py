"""`make gpu-test` over the shim in place of a GPU, and how its parts end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jobs
import numpy as np
import pytest

from mgg_hpc.errors import InputError

from . import accept, bench, faults, page, parts, processes, random_graphs, sanitize, table

DEVICE = ["--device", "shim"]


@pytest.fixture
def accepted(tmp_path):
    """Runs accept.py over results of its own: the exit code, and what each part ended with."""

    def run(*words):
        command = ["test", *DEVICE, "--shim", str(tmp_path), "--results", str(tmp_path / "results"), *words]
        code = accept.main(command)
        found = json.loads((tmp_path / "results" / "test.json").read_text())
        assert found["format"] == "mgg-gpu-acceptance" and found["machine"]["device"] == "shim"
        return code, {part["part"]: part for part in found["parts"]}

    return run


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it may build the sanitized modules first
def test_all_of_it_over_the_shim(shim, sanitized, tmp_path, accepted, capsys):
    for name, build in (("plain", shim), ("sanitized", sanitized)):
        (tmp_path / name).symlink_to(build.folder)
    faults.plant_shim(shim, sanitized, tmp_path / "faulty")
    code, found = accepted()
    assert code == 0, found
    assert all(part["verdict"] == "passed" and part["cases"] == part["passed"] > 0 for part in found.values())
    assert {
        "table",
        "half-remote",
        "random",
        "processes-4-unreached",
        *parts.TOOLS,
        "planted",
    } <= found.keys()
    assert found["planted"]["cases"] == 4 and found["memcheck"]["cases"] == 2
    assert "failed" not in capsys.readouterr().out
    before = found["memcheck"]["date"]
    assert accepted("--parts", "memcheck,synccheck")[1]["memcheck"]["date"] == before  # it has passed


def script(tmp_path, name, text, *, expected=1.0, limit=30.0):
    """A part that writes one line of `cases` and `failures`, and ends with `code`."""
    path = tmp_path / f"{name}.py"
    lines = [
        "import json, sys, time",
        "cases, failures, code = 1, [], 0",
        text,
        "line = {'cases': cases, 'passed': cases - len(failures), 'failures': failures}",
        "open(sys.argv[-1], 'w').write(json.dumps({'lines': [line]}))",
        "sys.exit(code)",
    ]
    path.write_text("\n".join(lines))
    return parts.Part(name, (str(path),), expected, limit)


@pytest.mark.timeout(600)
def test_all_benchmarks_over_the_shim_and_their_page(shim, tmp_path, capsys, monkeypatch):
    (tmp_path / "plain").symlink_to(shim.folder)
    results = tmp_path / "results"
    words = ["bench", *DEVICE, "--shim", str(tmp_path), "--results", str(results)]
    assert accept.main(words) == 0, capsys.readouterr().out
    found = page.read(results)
    assert found.keys() == {*bench.BENCHES, "bench"}
    assert all(part["verdict"] == "passed" for part in found["bench"]["parts"])
    for name in bench.BENCHES:
        assert found[name]["device"]["name"] == "shim" and (results / f"{name}.md").read_text().startswith(
            "# mgg bench"
        )
    # Every figure of a benchmark is read from what benchmarks write. (cuSPARSE and PyG have no stand-in there.)
    read = {figure.what: figure.read(found) for figure in page.FIGURES if "bench" in figure.command}
    assert {what for what, said in read.items() if said is None} == {
        "times as fast as cuSPARSE CSR_ALG2, float32"
    }
    monkeypatch.setattr(page, "device_of", lambda found: found["huge"]["device"])
    folder = page.keep(results, tmp_path / "benchmarks" / "kept")
    assert {path.stem for path in folder.glob("*.svg")} == set(page.PICTURES)
    said = page.text(folder.parent, tmp_path / "docs" / "page.md")
    assert "## shim, " in said and "| sweep | passed |" in said


LEAVES = """
import subprocess
sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", sleep])
open("{file}", "w").write(str(child.pid))
"""


def ended(file):
    """Whether the process whose number is in the file is gone, or will be in a moment."""
    status = Path("/proc") / file.read_text() / "stat"
    for _ in range(100):
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_how_parts_end(tmp_path, accepted, monkeypatch, capsys):
    made = [
        script(tmp_path, "good", "cases = 7"),
        script(tmp_path, "bad", "failures, code = ['sum-float32-1-hub: 3 beyond their bound'], 1"),
        script(tmp_path, "dies", "raise RuntimeError('the GPU is gone')"),
        script(tmp_path, "silent", "sys.exit(0)"),
        script(
            tmp_path,
            "hangs",
            "print('waits [for/ever]', flush=True); time.sleep(60)",
            expected=0.2,
            limit=1.0,
        ),
        script(
            tmp_path, "torn", "open(sys.argv[-1], 'w').write('{'); print('died while it wrote'); sys.exit(1)"
        ),
        script(tmp_path, "leaves", LEAVES.format(file=tmp_path / "left")),
        script(tmp_path, "lacks", "print('gpu-test: no daemon'); sys.exit(3)"),
        script(tmp_path, "long", "", expected=1000.0, limit=2000.0),
    ]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)
    code, found = accepted("--seconds", "60")
    assert code == 1
    ends = {name: (part["verdict"], part["why"]) for name, part in found.items()}
    assert ends["good"] == ("passed", "") and found["good"]["cases"] == 7
    assert ends["bad"] == ("failed", "sum-float32-1-hub: 3 beyond their bound")
    assert ends["dies"] == ("failed", "RuntimeError: the GPU is gone (exit code 1)")
    assert ends["silent"] == ("failed", "nothing was said (exit code 0)")
    assert ends["hangs"] == ("failed", "did not end within 1 s; it said last: waits [for/ever]")
    assert ends["torn"] == ("failed", "died while it wrote (exit code 1)")
    assert ended(tmp_path / "left")  # what a part leaves behind is ended with it
    assert ends["lacks"] == ("left out", "no daemon")
    assert ends["long"][0] == "not run" and ends["long"][1].startswith("takes about 1000 s, and ")
    said = capsys.readouterr().out
    for word in ("good", "7 / 7", "left out", "did not end"):
        assert word in said


def test_what_has_passed_is_not_run_again(tmp_path, accepted, monkeypatch):
    log = tmp_path / "runs"
    made = [
        script(tmp_path, name, f"open({str(log)!r}, 'a').write({name!r} + ' ')") for name in ("one", "two")
    ]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)
    assert accepted("--parts", "one")[0] == 0
    assert accepted()[0] == 0
    assert log.read_text().split() == ["one", "two"]
    assert accepted("--parts", "two", "--again")[0] == 0
    assert log.read_text().split() == ["one", "two", "two"]
    monkeypatch.setattr(accept, "fingerprint", lambda *_: "other sources")
    assert accepted()[0] == 0
    assert log.read_text().split() == ["one", "two", "two", "one", "two"]


def test_what_was_never_run_comes_before_what_has_failed(tmp_path, accepted, monkeypatch):
    log = tmp_path / "runs"
    write = f"open({str(log)!r}, 'a').write(sys.argv[0][-6:-3] + ' ')"
    made = [
        script(tmp_path, "one", f"{write}; code = 1"),
        script(tmp_path, "two", write, expected=40.0, limit=80.0),
    ]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)
    assert accepted("--seconds", "20")[0] == 1
    assert accepted("--seconds", "60")[0] == 1
    assert log.read_text().split() == ["one", "two", "one"]


def test_the_time_of_building_counts(tmp_path, accepted, monkeypatch):
    monkeypatch.setattr(accept, "parts_of", lambda *_: [script(tmp_path, "one", "", expected=20.0)])
    assert accepted("--began", str(time.time() - 30), "--seconds", "40")[0] == 3
    assert accepted("--began", str(time.time() - 5), "--seconds", "40")[0] == 0


def test_what_has_no_time_is_left_for_the_next_run(tmp_path, accepted, monkeypatch, capsys):
    made = [script(tmp_path, "one", ""), script(tmp_path, "two", "", expected=50.0, limit=100.0)]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)
    assert accepted("--seconds", "20")[0] == 3
    assert "run the same again" in capsys.readouterr().err
    assert accepted("--seconds", "60")[0] == 0


def test_a_part_that_is_not_there_is_named(tmp_path, capsys):
    words = ["test", *DEVICE, "--shim", str(tmp_path), "--results", str(tmp_path), "--parts", "table,tabel"]
    assert accept.main(words) == 2
    assert capsys.readouterr().err.startswith(
        "gpu-test: --parts: 'tabel'; expected table, half-remote, random"
    )


def test_a_fingerprint_knows_the_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(accept, "ROOT", tmp_path)
    (tmp_path / "cuda").mkdir()
    source = tmp_path / "cuda" / "get.cuh"
    source.write_text("one")
    for name in accept.SOURCES["test"]:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    about = {"name": "shim", "driver": 13000}
    first = accept.fingerprint("test", about)
    assert (
        accept.fingerprint("test", dict(about))
        == first
        != accept.fingerprint("test", about | {"driver": 13010})
    )
    source.write_text("two")
    assert accept.fingerprint("test", about) != first


# ---- the parts themselves


def test_random_graphs_are_made_small_where_they_fail(engine, monkeypatch):
    def wrong(engine, problem):
        assert problem.edges < 10, "too many edges"
        return 0.5

    monkeypatch.setattr(random_graphs, "check", wrong)
    line = random_graphs.run(engine, 20, 3)
    assert line.cases - line.passed == 1 and line.worst == 0.5
    assert "edges=10," in line.failures[0] and "nodes=1," in line.failures[0]
    assert line.failures[0].endswith(": too many edges")


def test_a_wrong_sum_of_a_random_graph_is_found(engine, monkeypatch):
    right = random_graphs.reference.aggregate
    monkeypatch.setattr(random_graphs.reference, "aggregate", lambda *given: right(*given) * (1 + 1e-4))
    assert random_graphs.run(engine, 20, 3).failures


class Alone:
    """A communicator of one rank."""

    def Get_rank(self):  # noqa: N802
        return 0

    def Get_size(self):  # noqa: N802
        return 1

    def bcast(self, value):
        return value

    def allgather(self, value):
        return [value]


@pytest.fixture
def alone(engine):
    """One PE, which is a job by itself."""
    job = processes.Job(Alone(), engine.module, engine.memory)
    yield processes.Processes(engine, job, Alone(), ("direct", "get", "halo"), 1.0)
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
    """Of one size each time, so that the same place comes again."""
    job = alone.job
    first = job.memory.zeros(1000)
    first[:] = rng.integers(1, 255, 1000).astype(np.uint8)
    address = engine.memory.address(first)
    job.release()
    again = job.memory.zeros(1000)
    assert engine.memory.address(again) != 0 and not again.any()
    assert abs(engine.memory.address(again) - address) <= 1024
    assert job.allocate(0, 0, engine.memory.address(again), 1000).tolist() == [engine.memory.address(again)]


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


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_reports_of_a_sanitizer_count(played, tool):
    fault = faults.FAULTS[tool]
    missed = [f"{fault.what}: was not reported"]
    played(0)
    assert sanitize.clean("cuda", tool, []).failures == []
    assert sanitize.planted("cuda", tool, []).failures == missed
    played(3, f"void mgg::{fault.kernel}_something<float>")
    found = sanitize.clean("cuda", tool, [])
    assert found.failures == [f"{name}: 3 reports: {REPORTS[tool]}" for name in (tool, f"{tool}, halo")]
    assert sanitize.planted("cuda", tool, []).passed == 1
    played(3, "void mgg::another_kernel<float>")
    assert sanitize.planted("cuda", tool, []).failures == missed


def test_what_initcheck_says_of_other_kernels_is_not_ours(played):
    played(4, "void at::native::elementwise_kernel<128>")
    assert sanitize.clean("cuda", "initcheck", []).failures == []
    assert len(sanitize.clean("cuda", "memcheck", []).failures) == 2  # which looks at ours only


def test_a_sanitizer_that_did_not_run_has_failed(played, monkeypatch, tmp_path):
    played(None)
    said = "ended without a summary; the last that was said: the program's last word"
    for look in (sanitize.clean, sanitize.planted):
        assert look("cuda", "racecheck", []).failures[0].endswith(said)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    failure = sanitize.clean("cuda", "racecheck", []).failures[0]
    assert failure == "racecheck: no compute-sanitizer on PATH; it comes with the CUDA toolkit"


def test_a_tool_that_hangs_is_ended_with_what_it_runs(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(InputError, match="took more than 2 s"):
        sanitize.run([sys.executable, "-c", code, str(tmp_path / "child")], dict(os.environ), 2.0)
    assert ended(tmp_path / "child")


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
    assert (tmp_path / "told").read_text() == "-d|quit -t 5|"


def test_a_daemon_whose_clients_find_no_gpu_is_ended(tmp_path, control, monkeypatch):
    control(0)
    monkeypatch.setattr(processes, "PROBE", "raise SystemExit('no CUDA device')")
    with pytest.raises(OSError, match=r"^no CUDA device$"), processes.mps(2):
        pytest.fail("ranks would start")
    assert (tmp_path / "told").read_text() == "-d|quit -t 5|"


def test_a_daemon_that_does_not_start_leaves_the_part_out(tmp_path, control):
    control(1)
    words = [sys.executable, processes.__file__, "--ranks", "2", "--mps"]
    done = subprocess.run(words, env=jobs.clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == accept.LEFT_OUT
    assert (
        done.stderr == "gpu-test: no daemon of CUDA's Multi-Process Service: nvidia-cuda-mps-control failed\n"
    )


def test_planted_faults_are_in_the_sources_once(tmp_path):
    faults.plant(tmp_path / "planted")
    kernels = Path(__file__).parents[2] / "cuda"
    changed = {
        path.name
        for path in (tmp_path / "planted" / "cuda").glob("*")
        if path.is_file() and path.read_text() != (kernels / path.name).read_text()
    }
    assert changed == {"sddmm.cuh", "aggregate.cuh", "row_worker.cuh", "softmax.cuh"}
    with pytest.raises(ValueError, match="is there 0 times; expected once"):
        faults.Edit("get.cuh", "nothing like it", "").applied((kernels / "get.cuh").read_text())
