"""The first experiments: each changes what stands today, and is timed beside it in turns."""

from __future__ import annotations

import json
import subprocess
import tarfile
from types import SimpleNamespace

import pytest

from gpu.variants import experiments
from gpu.variants.edits import edited
from mgg_hpc.runtime.backends.cuda.transfers import halo

pytestmark = pytest.mark.long

CHANGES = [name for name, each in experiments.EXPERIMENTS.items() if each.builds]
CONSTANTS = [name for name, each in experiments.EXPERIMENTS.items() if each.constants]


def test_each_experiment_changes_one_thing():
    assert {*CHANGES, *CONSTANTS} == set(experiments.EXPERIMENTS)
    assert not {*CHANGES} & {*CONSTANTS}


@pytest.mark.parametrize("name", CHANGES)
def test_the_sources_have_what_an_experiment_changes(name):
    """`edited` raises where a text is not there once."""
    assert edited(experiments.EXPERIMENTS[name].edits) or experiments.EXPERIMENTS[name].flags


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_has_its_value_while_it_is_measured(monkeypatch, name):
    seen = {}
    for constant, value in experiments.EXPERIMENTS[name].constants.items():
        assert getattr(halo, constant) != value
        monkeypatch.setattr(halo, constant, getattr(halo, constant))  # so that it is as before, afterwards
    monkeypatch.setattr(experiments.command, "main", lambda words, **_: seen.update(vars(halo), words=words))
    experiments.measure(name, None, ["aggregate"])
    assert seen["words"] == ["aggregate"]
    assert all(seen[constant] == value for constant, value in experiments.EXPERIMENTS[name].constants.items())


def test_a_change_is_timed_beside_what_stands(shim, tmp_path):
    words = [*experiments.WORDS, "rmat:6:4", "--transfers=direct,halo"]
    library = shim.folder / "_cuda.so"
    libraries = {experiments.UNCHANGED: library, "claims-1": library}
    found = experiments.compare("claims-1", libraries, tmp_path, 2, words, "--shim")
    assert set(found) == {f"rmat6 {width} {way}" for width in (128, 16) for way in ("direct", "halo")}
    assert all(0 < over < 100 for over in found.values())
    assert len(list(tmp_path.glob("*.json"))) == 4


def test_lines_are_kept_and_what_has_one_is_not_run_again(tmp_path, monkeypatch, capsys):
    about, ran = {"name": "a GPU"}, []
    monkeypatch.setattr(experiments.prepare, "architecture", lambda: "90-real")
    monkeypatch.setattr(experiments.Engine, "gpu", lambda: SimpleNamespace(about=lambda: dict(about)))
    monkeypatch.setattr(experiments, "build", lambda name, *_: ran.append(name))

    def compare(name, *_, until):
        if name == "unroll-8":
            raise RuntimeError("it fell over")
        if name == "claims-1" and len(ran) < 5:
            raise subprocess.TimeoutExpired("aggregate", 1)
        return {"rmat20 16 direct": 0.5}

    monkeypatch.setattr(experiments, "compare", compare)

    def run(*words):
        ran.clear()
        code = experiments.main(["--build", str(tmp_path), *words])
        return code, list(ran)

    assert run("no-allocate", "claims-1") == (3, ["no-allocate", "claims-1"])
    assert "not run for lack of time: claims-1; run the same again" in capsys.readouterr().err
    assert run("no-allocate", "--seconds", "0") == (0, [])
    assert "rmat20 16 direct 0.500 |" in capsys.readouterr().out
    assert run("unroll-8", "all-claimed") == (1, ["unroll-8", "all-claimed"])
    assert run("claims-1", "--seconds", "20") == (3, [])
    found = json.loads((tmp_path / "results" / "experiments.json").read_text())
    assert found["experiments"].keys() == {"no-allocate", "all-claimed"} and found["machine"] == about
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert b"First experiments" in archive.extractfile("results.md").read()
    about["name"] = "another GPU"
    assert run("no-allocate") == (0, ["no-allocate"])


def test_what_is_not_there_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        experiments.main(["no-alocate"])
    assert ended.value.code == 2
    assert "no experiment no-alocate; there are registers-64," in capsys.readouterr().err
