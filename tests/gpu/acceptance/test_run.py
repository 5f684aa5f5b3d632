"""`make gpu-test` without a GPU: the tool over the shim, and what it says where something is missing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import jobs
import programs
import pytest
from tiers import long_except

from gpu import prepare, run
from gpu.pes import table
from mgg_hpc.runtime.backends.cuda import module

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


@pytest.fixture
def library(shim, monkeypatch):
    """The shim's module; the table has two graphs."""
    monkeypatch.setattr(table.cases, "CASES", {name: table.cases.CASES[name] for name in ("ordinary", "hub")})
    return shim.folder / "_cuda.so"


@pytest.mark.parametrize("share", long_except([None, "0.25"], "0.25"))
def test_the_tool_over_the_shim(library, tmp_path, capsys, share):
    result = tmp_path / "result.json"
    options = [] if share is None else ["--remote-share", share]
    words = ["--device", "shim", "--library", str(library), "--json", str(result), *options]
    words += ["--small"] if share else ["--few", "--operations", "sum,get,halo,max,gather,by head"]
    assert run.main(words) == 0
    found = json.loads(result.read_text())
    assert found["format"] == "mgg-gpu-test" and found["machine"]["device"] == "shim"
    assert found["remote_share"] == (share and float(share))
    assert {"name", "driver", "runtime", "versions"} <= found["machine"].keys()
    lines = {(line["operation"], line["dtype"]): line for line in found["lines"]}
    assert len(lines) == (len(table.OPERATIONS) if share else 3 * 6)
    assert all(line["cases"] == line["passed"] > 0 and line["worst"] <= 1 for line in lines.values())
    assert lines["sum", "float32"]["worst"] > 0.01
    said = capsys.readouterr().out
    cases = sum(line["cases"] for line in lines.values())
    assert said.splitlines()[-1] == f"{cases} passed, 0 failed"


def test_what_fails_is_named_and_counts(library, tmp_path, capsys, monkeypatch):
    def wrong(engine, case, entry, rng):
        assert entry.width == 1, "3 of 7 beyond their bound"
        return 0.0

    monkeypatch.setitem(table.OPERATIONS, "max", wrong)
    result = tmp_path / "result.json"
    words = ["--device", "shim", "--library", str(library), "--few", "--operations", "max,gather"]
    assert run.main([*words, "--json", str(result)]) == 1
    line = next(line for line in json.loads(result.read_text())["lines"] if line["operation"] == "max")
    assert (line["cases"], line["passed"]) == (6, 2)
    assert line["failures"][0] == "max-float32-31-ordinary: 3 of 7 beyond their bound"
    said = capsys.readouterr().out
    assert "max-float32-31-ordinary: 3 of 7 beyond their bound" in said
    assert said.splitlines()[-1].endswith(" passed, 12 failed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--operations", "sum,sums"), "--operations: 'sums'; expected get, halo, halo in turns, sum"),
        (("--remote-share", "2"), "--remote-share: invalid share value: '2'"),
    ],
)
def test_wrong_options_are_named(capsys, words, said):
    with pytest.raises(SystemExit):
        run.main(list(words))
    assert said in capsys.readouterr().err


def test_without_a_gpu_it_says_so(require):
    require(bool(list((ROOT / "mgg_hpc").glob("_cuda*.so"))), "no mgg_hpc/_cuda", "make cuda")
    if module.load().devices()[0]:
        pytest.skip("there is a GPU")
    done = programs.python(ROOT / "tests/gpu/run.py")
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-test: no CUDA device (") and len(done.stderr.splitlines()) == 1


def test_preparing_names_every_missing_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "NEEDED", ("absent_one", "numpy", "absent.two"))
    monkeypatch.setattr(prepare, "WHEELS", {"absent.two": "absent-wheel"})
    assert prepare.missing(tmp_path) == ["absent_one", "absent-wheel"]


def test_preparing_without_a_gpu(tmp_path, require):
    require(not prepare.missing(tmp_path), "not all that gpu-test needs", "make cuda")
    program = ROOT / "tests/gpu/prepare.py"
    done = programs.python(program, tmp_path / "build", env={"PATH": str(tmp_path)})  # without nvidia-smi
    said = "gpu-test: no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_preparing_starts_two_ranks_that_meet(tmp_path, monkeypatch):
    assert prepare.speaks_mpi(tmp_path) == ""
    other = tmp_path / "other.py"
    monkeypatch.setattr(prepare, "HELLO", other)
    other.write_text("import sys; sys.exit('a world of 1 ranks')")
    said = prepare.speaks_mpi(tmp_path)
    assert said.startswith("two ranks of MPI do not meet: ") and "a world of 1 ranks" in said
    other.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(prepare, "MPI_SECONDS", 3)
    began = time.monotonic()
    assert prepare.speaks_mpi(tmp_path) == "two ranks of MPI did not meet within 3 s"
    assert time.monotonic() - began < 30


def test_ranks_meet_where_the_machines_name_has_no_address(tmp_path, require):
    """In a container or a virtual machine, as one that is lent may be."""
    require(os.geteuid() == 0 and shutil.which("unshare") is not None, "no root or no unshare", "as root")
    say = "from pathlib import Path; from gpu import prepare; print(repr(prepare.speaks_mpi(Path('build'))))"
    named = 'hostname nowhere.invalid; exec "$@"'
    environment = jobs.clean_environment() | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    words = ("unshare", "--uts", "sh", "-c", named, "sh", sys.executable, "-c", say)
    done = programs.run(*words, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stdout + done.stderr


def test_the_architecture_is_that_of_the_first_gpu(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\necho 8.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert prepare.architecture() == "90-real"
    monkeypatch.setenv("MGG_GPU_ARCHITECTURE", "80-real")
    assert prepare.architecture() == "80-real"
