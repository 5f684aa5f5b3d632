"""`make gpu-test` without a GPU: the tool over the shim, and what it says where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite.tiers import long_except

from gpu import prepare, run
from gpu.pes import table
from mgg_hpc.runtime.backends.cuda import module

ROOT = Path(__file__).parents[3]


@pytest.fixture
def library(shim, monkeypatch):
    """The shim's module; the table has two graphs."""
    monkeypatch.setattr(table.cases, "CASES", {name: table.cases.CASES[name] for name in ("ordinary", "hub")})
    return shim.folder / "_cuda.so"


@pytest.mark.slow
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


def test_an_operation_is_one_of_the_table(capsys):
    with pytest.raises(SystemExit):
        run.main(["--operations", "sum,sums"])
    assert "--operations: 'sums'; expected get, halo, sum, weighted, mean" in capsys.readouterr().err


def test_a_share_is_a_share(capsys):
    with pytest.raises(SystemExit):
        run.main(["--remote-share", "2"])
    assert "--remote-share: invalid share value: '2'" in capsys.readouterr().err


@pytest.mark.long
def test_without_a_gpu_it_says_so(require):
    require(bool(list((ROOT / "mgg_hpc").glob("_cuda*.so"))), "no mgg_hpc/_cuda", "make cuda")
    if module.load().devices()[0]:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/gpu/run.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-test: no CUDA device (") and len(done.stderr.splitlines()) == 1


def prepared(tmp_path, *arguments, **environment):
    """What prepare.py says without a GPU on PATH."""
    command = [sys.executable, ROOT / "tests/gpu/prepare.py", tmp_path / "build", *arguments]
    variables = {"PATH": str(tmp_path), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_preparing_names_every_missing_wheel(tmp_path, monkeypatch):
    monkeypatch.setitem(prepare.NEEDED, "absent_one", "absent-one")
    monkeypatch.setitem(prepare.NEEDED, "absent.two", "absent-two")
    assert [wheel for wheel in prepare.missing(tmp_path) if wheel.startswith("absent")] == [
        "absent-one",
        "absent-two",
    ]


@pytest.mark.long
def test_preparing_without_a_gpu(tmp_path, require):
    require(not prepare.missing(tmp_path), "not all that gpu-test needs", "make cuda")
    assert prepared(tmp_path) == (
        2,
        "gpu-test: no GPU: nvidia-smi finds none (MGG_GPU_ARCHITECTURE=90-real builds all the same)\n",
    )


def test_the_architecture_is_that_of_the_first_gpu(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\necho 8.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert prepare.architecture() == "90-real"
    monkeypatch.setenv("MGG_GPU_ARCHITECTURE", "80-real")
    assert prepare.architecture() == "80-real"
