"""`make gpu-test` over the shim in place of a GPU, and how its parts end."""

from __future__ import annotations

import json
import time

import pytest

from gpu import accept, bench, faults, page, parts

from .gone import ended

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.slow
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


@pytest.mark.slow
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
