"""Tests marked gpu over the shim, what they make of hangs and of what is not there, and docs/gpu-results.md."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import programs
import pytest
from builds import made
from mpi4py import MPI
from tiers import drawn

from . import bench, page, prepare, test_sanitizers
from .faults import FAULTS, edited
from .pes.engine import Engine

pytestmark = pytest.mark.long

ROOT, GPU = Path(__file__).parents[2], Path(__file__).parent
PARTS = {
    "test_smoke.py": "machine or sum-float32",
    "test_table.py": "random or many",
    "test_ranks.py": "test_processes and 2-unreached",
}


def over_the_shim(*words, **options):
    """Run tests marked gpu in a process of their own."""
    chosen = ("-p", "no:cacheprovider", "--timeout=0", "-m", "gpu", "--device", "shim", "-n1")
    return programs.python("-m", "pytest", *chosen, *words, cwd=ROOT, **options)


@pytest.mark.parametrize("file", drawn(PARTS, 2))
def test_a_part_over_the_shim_and_its_page(shim, tmp_path, capsys, file):
    results = tmp_path / "results"
    done = over_the_shim(GPU / file, "-k", PARTS[file], "--junitxml", results / "test.xml", "--patience", 10)
    assert done.returncode == 0, done.stdout[-4000:]
    found = page.Found(results)
    assert found.tests and all(outcome == "passed" for outcome, _ in found.tests.values())
    assert page.main([str(results)], tmp_path / "kept", tmp_path / "page.md") == 2
    assert "results of the shim, or none" in capsys.readouterr().err and not (tmp_path / "kept").exists()


def test_a_kernel_that_hangs_is_named_and_others_go_on(tmp_path):
    """Over the shim it holds the interpreter while it hangs. What had no time left runs in the next call."""
    xml, cases = tmp_path / "test.xml", f"{GPU}/test_smoke.py::test_each_operation"
    words = [f"{cases}[{name}-float32-33-hub]" for name in ("sum", "gather", "max")]
    library = ("--library", made("shim-hangs") / "_cuda.so", "--patience", 2)
    done = over_the_shim(*words, *library, "--junitxml", xml)
    assert done.returncode == 1 and "most recent call first" in done.stderr
    tests = page.Found(tmp_path).tests
    (failed,) = [name for name, (outcome, _) in tests.items() if outcome == "failed"]
    assert len(tests) == 3 and failed.endswith("test_each_operation[gather-float32-33-hub]")
    done = over_the_shim(*words, "--until", time.time() - 1, "--junitxml", xml)
    assert done.returncode == 1 and done.stdout.count("not run: there was no time left") >= 3
    assert {outcome for outcome, _ in page.Found(tmp_path).tests.values()} == {"not run"}


def test_symmetric_memory_is_given_back_and_zeroed(rng, shim):
    """All allocations of a job of one PE have one size, so that the same place comes again."""
    engine = Engine.shim(shim.folder / "_cuda.so")
    engine.join(MPI.COMM_SELF)
    peers, address_of = engine.job, engine.arrays.address
    first = peers.memory.zeros(1000)
    first[:] = rng.integers(1, 255, 1000).astype(np.uint8)
    address = address_of(first)
    peers.release()
    again = peers.memory.zeros(1000)
    assert address_of(again) != 0 and not again.any() and abs(address_of(again) - address) <= 1024
    assert peers.allocate(0, 0, address_of(again), 1000).tolist() == [address_of(again)]
    peers.finish()


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("memcheck", "Invalid __global__ read of size 4 bytes"),
        ("racecheck", "Error: Race reported between Write access and Read access"),
        ("initcheck", "Uninitialized __global__ memory read of size 4 bytes"),
        ("synccheck", "Barrier error detected. Invalid arguments."),
    ],
)
def test_reports_of_a_sanitizer_count(tool, said):
    """As Compute Sanitizer writes them; initcheck must look at all kernels, and others' reports do not count."""
    end = "RACECHECK SUMMARY: {} hazards displayed" if tool == "racecheck" else "ERROR SUMMARY: {} errors"

    def log(count, kernel):
        entry = f"========= {said}\n=========     at {kernel}(Call)+0x1b0\n=========     by thread (3,0,0)\n"
        return f"========= COMPUTE-SANITIZER\n{count * entry}========= {end.format(count)}\n"

    kernel = f"void mgg::{FAULTS[tool].kernel}_something<float>"
    assert test_sanitizers.reports(tool, log(0, kernel)) == []
    found = test_sanitizers.reports(tool, log(3, kernel))
    assert len(found) == 3 and all(kernel in each and each.startswith(said) for each in found)
    assert bool(test_sanitizers.reports(tool, log(4, "void at::native::kernel<128>"))) == (
        tool != "initcheck"
    )
    with pytest.raises(AssertionError, match="ended without a summary: the last word"):
        test_sanitizers.reports(tool, "the last word")
    assert edited(*FAULTS.values())  # raises where a text is not in its source once


# ---- preparing


def test_preparing_names_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "NEEDED", ("absent_one", "numpy", "absent.two"))
    monkeypatch.setattr(prepare, "WHEELS", {"absent.two": "absent-wheel"})
    assert prepare.main(tmp_path, None) == 2
    assert "has no absent_one, absent-wheel; WHEELS=FOLDER names their wheels" in capsys.readouterr().err
    monkeypatch.setattr(prepare, "NEEDED", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prepare.main(tmp_path, None) == 2
    assert "no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds" in capsys.readouterr().err
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\necho 8.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert prepare.architecture() == "90-real"
    for meet, said in (
        ("import sys; sys.exit('a world of 1 ranks')", "do not meet: a world of 1 ranks"),
        ("import time; time.sleep(60)", "did not meet within 3 s"),
    ):
        monkeypatch.setattr(prepare, "MEET", meet)
        monkeypatch.setattr(prepare, "MPI_SECONDS", 3)
        assert prepare.main(tmp_path, None) == 2
        assert said in capsys.readouterr().err


def test_ranks_meet_where_the_machines_name_has_no_address(tmp_path, require):
    """In a container or a virtual machine, as one that is lent may be."""
    require(os.geteuid() == 0 and shutil.which("unshare") is not None, "no root or no unshare", "as root")
    say = "from pathlib import Path; from gpu import prepare; prepare.meet(Path('build'))"
    words = ("unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid; exec "$@"', "sh", sys.executable)
    path = f"{ROOT / 'tests'}:{ROOT}"
    done = programs.run(*words, "-c", say, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


# ---- benchmarks, and the page


def test_benchmarks_over_the_shim_have_all_figures_of_the_page(shim, tmp_path):
    """(cuSPARSE and PyG have no stand-in there.)"""
    words = ("--device", "shim", "--results", tmp_path, "--until", time.time() + 3000)
    done = programs.python(bench.__file__, *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = page.Found(tmp_path)
    assert found.documents.keys() == bench.BENCHES.keys() - {bench.CONTACT}
    (unmeasured,) = [line for line in page.table(found) if "| not measured | `make gpu-bench" in line]
    assert "cuSPARSE" in unmeasured
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(bench.DRAWN)


def xml(date, *tests):
    """An XML of pytest's: each test a name, and what is in it."""
    cases = ""
    for name, inside in tests:
        file, _, test = name.partition("::")
        cases += f"<testcase classname='tests.gpu.{file}' name='{test}'>{inside}</testcase>"
    return f"<testsuites><testsuite name='pytest' timestamp='{date}'>{cases}</testsuite></testsuites>"


def properties(**pairs):
    made = "".join(f"<property name='{name}' value='{value}'/>" for name, value in pairs.items())
    return f"<properties>{made}</properties>"


@pytest.fixture
def results(tmp_path):
    """A run's results."""
    folder = tmp_path / "results"
    folder.mkdir()
    failed, left = '<failure message="sum differs&#10;more"/>', f'<error message="failed: {page.NOT_RUN}"/>'
    machine = ("test_smoke::machine", properties(gpu="NVIDIA H200", device="cuda"))
    (folder / "a.xml").write_text(xml("2026-11-22T10:00:00", machine, ("test_table::one", failed)))
    losses = properties(**{"deviation of losses, float32, digits": "2.0e-06", "deviation of losses, b": "1"})
    tests = [("test_table::one", ""), ("test_table::two", left), ("test_ranks::test_training", losses)]
    (folder / "b.xml").write_text(xml("2026-11-22T11:00:00", *tests, ("test_sanitizers::planted", failed)))
    rows = [
        {"variant": "mgg", "width": 16, "relative_time": 1.31},
        {"variant": "mgg", "width": 128, "relative_time": 1.05},
        {"variant": "cusparse", "width": 16, "relative_time": 2.0, "mgg_speedup": 1.7},
    ]
    rows = [{"graph": "rmat20", "dtype": "float32", **row} for row in rows]
    document = {"date": "2026-11-22T09:00:00+00:00", "machine": {"gpu": "NVIDIA H200"}, "rows": rows}
    (folder / "aggregate-one.json").write_text(json.dumps(document))
    (folder / "aggregate-one.md").write_text("# all figures\n")
    return folder


def test_a_run_is_kept_and_written_and_the_newest_result_of_a_test_counts(results, tmp_path):
    kept, docs = tmp_path / "benchmarks" / "gpu", tmp_path / "docs"
    docs.mkdir()
    assert page.main([str(results)], kept, docs / "page.md") == 0
    run, said = kept / "2026-11-22T1100-nvidia-h200", (docs / "page.md").read_text()
    assert (run / "b.xml").read_bytes() == (results / "b.xml").read_bytes()
    rows = {cells[0]: cells[2] for line in said.splitlines() if len(cells := line[2:].split(" | ")) == 4}
    assert rows["cases on the GPU, one process and several"] == "3 of 4 pass, 1 did not run"
    assert rows["sanitizers; planted faults"] == "0 of 1 pass, 0 did not run: **no**"
    assert rows["our time relative to the gather floor"] == "worst 1.31 (rmat20, float32, 16): **no**"
    assert rows["losses of 30 epochs against the CPU's, float32"] == "worst 2.0e-06: yes"
    assert (
        rows["times as fast as cuSPARSE CSR_ALG2, float32"] == "1.70, least 1.70 (rmat20, float32, 16): yes"
    )
    assert rows["a GCN's epoch, and times as fast as PyG's"] == "not measured"
    assert "None yet" not in said and "## NVIDIA H200, 2026-11-22" in said
    assert "- tests.gpu.test_sanitizers::planted: failed: sum differs\n" in said
    assert "[aggregate-one.md](../benchmarks/gpu/2026-11-22T1100-nvidia-h200/aggregate-one.md)" in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "epoch.json",
            {"machine": {"gpu": "shim"}},
            "results of the shim, or none: the page is for those of a GPU",
        ),
        ("epoch.json", {"machine": {"gpu": "NVIDIA A100"}}, "of several GPUs: NVIDIA A100, NVIDIA H200"),
        ("epoch.json", {"rows": None}, "not a result of gpu-test or gpu-bench"),
        ("c.xml", None, "not a result of gpu-test or gpu-bench"),
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
