"""`mgg doctor`: a real examination of this machine, and what it says of worse ones."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jobs
import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import device, find_mpi
from mgg_hpc.runtime.backends.cuda import module as cuda_module
from mgg_hpc.tools import doctor


@pytest.mark.slow
def test_this_machine_can_train_on_its_cpus():
    """And each finding that is not ok says what it means."""
    ended = jobs.run("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(ended.stdout)}
    assert ended.returncode == 0, ended.stdout
    assert findings["Two ranks"]["value"].endswith("us a barrier")
    for name in ("Python", "Packages", "Native extension", "Cores", "MPI library", "MPI launcher"):
        assert findings[name]["state"] == "ok"
    assert [each for each in findings.values() if each["state"] != "ok" and not each["advice"]] == []


@pytest.mark.slow
def test_what_cpus_need_makes_it_fail_and_a_check_that_fails_is_a_finding(monkeypatch, capsys):
    def version(name):
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError
        return "1"

    def fail():
        raise RuntimeError("no luck")

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.cores, "quota", fail)
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor.process_doctor(as_json=False) == 1
    doctor._print([doctor.Finding("Thing", "absent", "none", "get it [somewhere]")])
    said = " ".join(capsys.readouterr().out.split())
    assert "pip install torch" in said and "RuntimeError: no luck" in said
    assert "Thing: get it [somewhere]" in said


@pytest.mark.parametrize(("free", "state"), [(1 << 20, "broken"), (64 << 20, "absent"), (8 << 30, "ok")])
def test_small_shared_memory(monkeypatch, free, state):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1))
    assert doctor._shared_memory()[0].state == state


@pytest.mark.slow
def test_ranks_that_do_not_answer_are_broken(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_PING_SECONDS", 1)
    monkeypatch.setattr(doctor, "_PING", "import time; time.sleep(60)")
    assert doctor._ping().state == "broken"
    monkeypatch.setenv(find_mpi.LIBRARY, str(tmp_path / "libnone.so"))
    assert doctor._mpi()[0].state == "broken"


def test_gpu_kernels_are_built_or_said_to_be_missing():
    found = doctor._gpu_kernels()
    if list(Path(doctor.__file__).parents[1].glob("_cuda*.so")):
        assert found.state == "ok" and found.value.startswith("built; ")
    else:
        assert found.state == "absent" and "make cuda" in found.advice


def test_without_a_driver_nothing_is_to_be_installed_by_pip(monkeypatch):
    """As of a module that does not load, and in the words of the doctor."""
    monkeypatch.setitem(sys.modules, "mgg_hpc._cuda", None)
    for there in (False, True):
        monkeypatch.setattr(device, "has_driver", lambda there=there: there)
        with pytest.raises(InputError) as refusal:
            cuda_module.load()
        advice = [str(refusal.value), *(each.advice for each in (doctor._nvshmem(), doctor._cupy()))]
        assert ["pip install" in each for each in advice] == [there] * 3
        assert ("no NVIDIA driver" in advice[0]) != there
    monkeypatch.setattr(device, "has_driver", lambda: False)
    assert doctor._gpu().value == "no NVIDIA driver"
