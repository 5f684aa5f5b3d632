"""Tests marked gpu over the shim, what they make of hangs and of tools that are not there, and docs/gpu-results.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import programs
import pytest
from builds import made
from mpi4py import MPI
from tiers import drawn

from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.backends.cuda.nvshmem import NvshmemPeers

from . import bench, conftest, page, prepare, test_sanitizers, test_table
from .faults import FAULTS, edited
from .pes import table
from .pes.engine import Engine

pytestmark = pytest.mark.long

ROOT, GPU = Path(__file__).parents[2], Path(__file__).parent
PARTS = {
    "test_smoke.py": "machine or sum-float32",
    "test_table.py": "random or many",
    "test_ranks.py": "test_processes and 2-unreached",
    "test_sanitizers.py": "planted and memcheck",
}


MODULE = "tests.gpu.test_smoke::test_each_operation["


def over_the_shim(*words, **options):
    """Run tests marked gpu in a process of their own."""
    command = (
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--timeout=0",
        "-m",
        "gpu",
        "--device",
        "shim",
        "-n",
        1,
    )
    return programs.python(*command, *words, cwd=ROOT, **options)


@pytest.mark.parametrize("file", drawn(PARTS, 2))
def test_a_part_over_the_shim_and_its_page(shim, tmp_path, capsys, file):
    if file == "test_sanitizers.py":
        made("shim-sanitized"), made("shim-reported")
    results = tmp_path / "results"
    done = over_the_shim(GPU / file, "-k", PARTS[file], "--junitxml", results / "test.xml", "--patience", 10)
    assert done.returncode == 0, done.stdout[-4000:]
    tests = page.read(results).tests
    assert tests and all(test.outcome == "passed" for test in tests.values())
    assert all(test.properties["device"] == "shim" for test in tests.values())
    assert page.main([str(results)], tmp_path / "kept", tmp_path / "page.md") == 2
    assert "results of the shim, or none" in capsys.readouterr().err and not (tmp_path / "kept").exists()


def test_bounds_are_multiples_of_what_rounding_does():
    """On two ranks."""
    test = GPU / "ranks" / "test_training.py"
    words = (
        "-m",
        "mpi4py",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-x",
        "--with-mpi",
        test,
        "-k",
        "bounds and 500",
    )
    command = ("-c", conftest.LAUNCH, 2, sys.executable, *words, "--tier", "all")
    done = programs.python(*command, cwd=ROOT)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_kernel_that_hangs_is_named_and_others_go_on(tmp_path):
    """Over the shim it holds the interpreter while it hangs. What had no time left runs in the next call."""
    xml, cases = tmp_path / "test.xml", f"{GPU}/test_smoke.py::test_each_operation"
    words = [f"{cases}[{name}-float32-33-hub]" for name in ("sum", "gather", "max")]
    library = ("--library", made("shim-hangs") / "_cuda.so", "--patience", 2)
    done = over_the_shim(*words, *library, "--junitxml", xml)
    assert done.returncode == 1 and "most recent call first" in done.stderr
    tests = page.read(tmp_path).tests
    assert [name for name, test in tests.items() if test.outcome == "failed"] == [
        f"{MODULE}gather-float32-33-hub]"
    ]
    assert len(tests) == 3
    done = over_the_shim(*words, "--until", time.time() - 1, "--junitxml", xml)
    assert done.returncode == 1 and done.stdout.count("not run: there was no time left") >= 3
    assert {test.outcome for test in page.read(tmp_path).tests.values()} == {"not run"}


def test_without_a_gpu_it_says_so(require):
    require(bool(list((ROOT / "mgg_hpc").glob("_cuda*.so"))), "no mgg_hpc/_cuda", "make cuda")
    if module.load().devices()[0]:
        pytest.skip("there is a GPU")
    words = ("-m", "gpu", "--device", "cuda", GPU / "test_smoke.py", "-k", "machine")
    done = programs.python("-m", "pytest", "-p", "no:cacheprovider", *words, cwd=ROOT)
    assert done.returncode == 1 and "no CUDA device (" in done.stdout


def test_a_wrong_sum_of_a_random_graph_is_found_and_made_small(engine, monkeypatch):
    right = test_table.reference.aggregate
    monkeypatch.setattr(test_table.reference, "aggregate", lambda *given: right(*given) * (1 + 1e-4))
    with pytest.raises(AssertionError, match="beyond their bound") as error:
        test_table.test_random_graphs(engine)
    assert any("Problem(" in note and "nodes=1," in note for note in error.value.__notes__)


@pytest.fixture
def job(shim):
    """An engine of one PE, which is a job by itself."""
    made = Engine.shim(shim.folder / "_cuda.so")
    made.join(MPI.COMM_SELF)
    yield made
    made.job.finish()


def test_a_job_of_one_process_finds_wrong_bits(rng, job, monkeypatch):
    entry = table.Entry("halo", "float32", 33, "ordinary")
    assert table.check(job, entry, rng) == 0
    right, calls = table.Played.calls, []

    def flawed(self, *given):
        calls.append(right(self, *given))
        return [out + np.float32(len(calls) == 2) for out in calls[-1]]

    monkeypatch.setattr(table.Played, "calls", flawed)
    with pytest.raises(AssertionError, match="halo differs from direct"):
        table.check(job, entry, rng)


def test_symmetric_memory_is_given_back_and_zeroed(rng, job):
    """All allocations have one size, so that the same place comes again."""
    peers, address_of = job.job, job.arrays.address
    first = peers.memory.zeros(1000)
    first[:] = rng.integers(1, 255, 1000).astype(np.uint8)
    address = address_of(first)
    peers.release()
    again = peers.memory.zeros(1000)
    assert isinstance(peers, NvshmemPeers) and address_of(again) != 0 and not again.any()
    assert abs(address_of(again) - address) <= 1024
    assert peers.allocate(0, 0, address_of(again), 1000).tolist() == [address_of(again)]


# ---- Compute Sanitizer, by what it writes; a daemon of CUDA's Multi-Process Service, played by a script


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


@pytest.mark.parametrize("tool", FAULTS)
def test_reports_of_a_sanitizer_count(tool):
    kernel = f"void mgg::{FAULTS[tool].kernel}_something<float>"
    assert test_sanitizers.reports(tool, log_of(tool, 0, kernel)) == []
    found = test_sanitizers.reports(tool, log_of(tool, 3, kernel))
    assert len(found) == 3 and all(kernel in each and each.startswith(REPORTS[tool]) for each in found)
    other = test_sanitizers.reports(tool, log_of(tool, 4, "void at::native::elementwise_kernel<128>"))
    assert bool(other) == (tool != "initcheck")  # which looks at all kernels
    with pytest.raises(AssertionError, match="ended without a summary: the last word"):
        test_sanitizers.reports(tool, "the last word")


def test_a_sanitizer_looks_at_our_kernels_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="no compute-sanitizer on PATH"):
        test_sanitizers.command("racecheck", tmp_path)
    (tmp_path / "compute-sanitizer").write_text("#!/bin/sh\n")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    for tool in FAULTS:
        words = test_sanitizers.command(tool, tmp_path)
        assert f"--tool={tool}" in words and ("--kernel-name=kernel_substring=mgg" in words) == (
            tool != "initcheck"
        )


def test_planted_faults_are_in_the_sources_once(tmp_path):
    changed = edited(*FAULTS.values())
    assert changed.keys() == {file for fault in FAULTS.values() for file, _, _ in fault.edits}
    assert all(text != (ROOT / "cuda" / file).read_text() for file, text in changed.items())


@pytest.mark.parametrize("starts", [True, False])
def test_a_daemon_is_started_probed_and_ended_or_its_tests_are_skipped(tmp_path, monkeypatch, starts):
    told, daemon = tmp_path / "told", tmp_path / conftest.CONTROL
    daemon.write_text(
        f'#!/bin/sh\necho "$@" >> {told}; [ "$1" = -d ] || cat >> {told}; exit {int(not starts)}\n'
    )
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(conftest, "PROBE", "print('a GPU')")
    if not starts:
        with pytest.raises(pytest.skip.Exception, match="no daemon of CUDA's"), conftest.mps(2):
            raise AssertionError("ranks would start")
        return
    with conftest.mps(4) as variables:
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert told.read_text().split() == ["-d", "quit", "-t", "5"]
    with pytest.raises(subprocess.TimeoutExpired), conftest.mps(4):
        raise subprocess.TimeoutExpired("ranks", 1.0)  # which is no reason to skip a test


# ---- preparing


def test_preparing_names_every_missing_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "NEEDED", ("absent_one", "numpy", "absent.two"))
    monkeypatch.setattr(prepare, "WHEELS", {"absent.two": "absent-wheel"})
    assert prepare.missing(tmp_path) == ["absent_one", "absent-wheel"]


def test_preparing_without_a_gpu(tmp_path, require):
    require(not prepare.missing(tmp_path), "not all that gpu-test needs", "make cuda")
    done = programs.python(
        prepare.__file__, tmp_path / "build", env={"PATH": str(tmp_path)}
    )  # without nvidia-smi
    said = "gpu-test: no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_preparing_starts_two_ranks_that_meet(tmp_path, monkeypatch):
    prepare.meet(tmp_path)
    monkeypatch.setattr(prepare, "MEET", "import sys; sys.exit('a world of 1 ranks')")
    with pytest.raises(prepare.MissingError, match="two ranks of MPI do not meet: a world of 1 ranks"):
        prepare.meet(tmp_path)
    monkeypatch.setattr(prepare, "MEET", "import time; time.sleep(60)")
    monkeypatch.setattr(prepare, "MPI_SECONDS", 3)
    with pytest.raises(prepare.MissingError, match="two ranks of MPI did not meet within 3 s"):
        prepare.meet(tmp_path)


def test_ranks_meet_where_the_machines_name_has_no_address(tmp_path, require):
    """In a container or a virtual machine, as one that is lent may be."""
    require(os.geteuid() == 0 and shutil.which("unshare") is not None, "no root or no unshare", "as root")
    say = "from pathlib import Path; from gpu import prepare; prepare.meet(Path('build'))"
    words = (
        "unshare",
        "--uts",
        "sh",
        "-c",
        'hostname nowhere.invalid; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        say,
    )
    done = programs.run(*words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_architecture_is_that_of_the_first_gpu(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\necho 8.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert prepare.architecture() == "90-real"
    monkeypatch.setenv("MGG_GPU_ARCHITECTURE", "80-real")
    assert prepare.architecture() == "80-real"


# ---- benchmarks, and the page


def test_benchmarks_over_the_shim_have_all_figures_of_the_page(shim, tmp_path):
    """(cuSPARSE and PyG have no stand-in there.)"""
    words = ("--device", "shim", "--results", tmp_path, "--until", time.time() + 3000)
    done = programs.python(bench.__file__, *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = page.read(tmp_path)
    assert found.documents.keys() == bench.BENCHES.keys() - {bench.CONTACT}
    cells = {each.what: each.cells(found)[2] for each in page.FIGURES if "bench" in each.command}
    assert {what for what, said in cells.items() if said == "not measured"} == {
        "times as fast as cuSPARSE CSR_ALG2, float32"
    }
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(bench.DRAWN)


MACHINE = {"name": "NVIDIA H200", "multiprocessors": 132, "memory_bytes": 141 << 30}
MACHINE |= {"driver": 13010, "runtime": 13000, "driver_version": "580.65"}
FAILED = '<failure message="sum differs&#10;more"/>'
LEFT = '<error message="failed on setup with &quot;Failed: not run: there was no time left&quot;"/>'


def xml(folder, name, date, cases):
    """Write an XML of pytest's: each case a name, its properties, and more."""
    made = []
    for case, properties, more in cases:
        pairs = "".join(f"<property name='{key}' value='{value}'/>" for key, value in properties.items())
        classname, _, test = case.partition("::")
        head = f"<testcase classname='tests.gpu.{classname}' name='{test}'>"
        made.append(f"{head}<properties>{pairs}</properties>{more}</testcase>")
    suite = f"<testsuite name='pytest' timestamp='{date}'>{''.join(made)}</testsuite>"
    (folder / name).write_text(f"<testsuites>{suite}</testsuites>")


@pytest.fixture
def results(tmp_path):
    """A run's results."""
    folder = tmp_path / "results"
    folder.mkdir()
    machine = {"machine": json.dumps(MACHINE).replace("'", ""), "device": "cuda"}
    losses = {"deviation of losses, float32, digits": "2.0e-06", "deviation of losses, bfloat16, sbm": "1e-2"}
    xml(
        folder,
        "a.xml",
        "2026-11-22T10:00:00",
        [("test_smoke::machine", machine, ""), ("test_table::one", {}, FAILED)],
    )
    cases = [
        ("test_table::one", {}, ""),
        ("test_table::two", {}, LEFT),
        ("test_ranks::test_training", losses, ""),
    ]
    xml(folder, "b.xml", "2026-11-22T11:00:00", [*cases, ("test_sanitizers::planted", {}, FAILED)])
    cell = {"graph": "rmat20", "dtype": "float32"}
    rows = [
        {**cell, "variant": "mgg", "width": 16, "times_first": 1.31, "median_ms": 2.0},
        {**cell, "variant": "mgg", "width": 128, "times_first": 1.05, "median_ms": 8.0},
        {
            **cell,
            "variant": "cusparse",
            "width": 16,
            "times_first": 2.0,
            "median_ms": 4.0,
            "mgg_speedup": 1.7,
        },
    ]
    document = {"date": "2026-11-22T09:00:00+00:00", "machine": {"gpu": MACHINE["name"]}, "rows": rows}
    (folder / "aggregate-one.json").write_text(json.dumps(document))
    (folder / "aggregate-one.md").write_text("# all figures\n")
    return folder


def test_a_run_is_kept_and_written_and_the_newest_result_of_a_test_counts(results, tmp_path):
    kept, docs = tmp_path / "benchmarks" / "gpu", tmp_path / "docs"
    docs.mkdir()
    assert page.main([str(results)], kept, docs / "page.md") == 0
    run, said = kept / "2026-11-22T1100-nvidia-h200", (docs / "page.md").read_text()
    assert (run / "b.xml").read_bytes() == (results / "b.xml").read_bytes()
    rows = {cells[0]: cells[2:4] for line in said.splitlines() if len(cells := line[2:].split(" | ")) == 5}
    assert rows["cases on the GPU, one process and several"] == [
        "3 of 4 pass; 1 not run: test_table::two",
        "",
    ]
    assert rows["sanitizers; planted faults"] == ["0 of 1 pass; 1 failed: test_sanitizers::planted", "**no**"]
    floor = "worst 1.31 (rmat20, float32 x 16), geometric mean 1.17; aggregate-one only"
    assert rows["our time relative to the gather floor"] == [floor, "**no**"]
    assert rows["losses of 30 epochs against the CPU's, float32"] == ["worst 2.0e-06", "yes"]
    cusparse = "1.70, least 1.70 (rmat20, float32 x 16); aggregate-one only"
    assert rows["times as fast as cuSPARSE CSR_ALG2, float32"] == [cusparse, "yes"]
    assert rows["a GCN's epoch, and times as fast as PyG's"] == ["not measured", ""]
    assert "None yet" not in said
    assert "## NVIDIA H200, 2026-11-22" in said and "driver for CUDA 13.1 (580.65), runtime 13.0" in said
    assert "| tests.gpu.test_sanitizers::planted | failed | sum differs |" in said
    assert "[aggregate-one](../benchmarks/gpu/2026-11-22T1100-nvidia-h200/tables/aggregate-one.md)" in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "epoch.json",
            {"machine": {"gpu": "shim"}},
            "results of the shim, or none: the page is for those of a GPU",
        ),
        (
            "epoch.json",
            {"machine": {"gpu": "NVIDIA A100"}},
            "results of several GPUs: NVIDIA A100, NVIDIA H200",
        ),
        ("epoch.json", {"rows": None}, "not a result of gpu-bench (it has no rows)"),
        ("c.xml", None, "not a result of gpu-test"),
    ],
)
def test_what_is_no_result_of_a_gpu_is_refused(results, tmp_path, capsys, name, content, said):
    document = {"date": "2026-11-22", "machine": {}, "rows": []} | (content or {})
    (results / name).write_text(json.dumps(document) if content else "<torn")
    assert page.main([str(results)], tmp_path / "kept", tmp_path / "page.md") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "kept").exists() and not (tmp_path / "page.md").exists()


def test_the_page_in_docs_is_what_its_results_say():
    assert page.PAGE.read_text() == page.text(page.KEPT, page.PAGE)
