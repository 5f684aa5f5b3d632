"""`make gpu-test` and `make gpu-bench` over the shim in place of a GPU, and how their parts end."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path

import pytest
from builds import made
from programs import is_running, wait_until
from tiers import drawn

from gpu import accept, bench, page, parts

pytestmark = pytest.mark.long


@pytest.fixture
def accepted(tmp_path):
    """Runs accept.py over results of its own: the exit code, and what each part ended with."""

    def run(*words, kind="test"):
        where = ["--device", "shim", "--shim", str(tmp_path), "--results", str(tmp_path / "results")]
        code = accept.main([kind, *where, *words])
        found = json.loads((tmp_path / "results" / f"{kind}.json").read_text())
        assert found["format"] == "mgg-gpu-acceptance" and found["machine"]["device"] == "shim"
        return code, {part["part"]: part for part in found["parts"]}

    return run


@pytest.mark.parametrize("name", drawn([part.name for part in parts.parts_of("test", Path(), Path(), 0)], 2))
def test_a_part_over_the_shim(request, shim, tmp_path, accepted, capsys, name):
    (tmp_path / "plain").symlink_to(shim.folder)
    if name in ("memcheck", "planted"):
        sanitized = request.getfixturevalue("sanitized")
        (tmp_path / "sanitized").symlink_to(sanitized.folder)
        if name == "planted":
            (tmp_path / "faulty").symlink_to(made("shim-reported"))
    code, found = accepted("--parts", name, "--seconds", "1000")
    assert code == 0, found
    ended = found[name]
    assert ended["verdict"] == "passed" and ended["cases"] == ended["passed"] > 0
    assert ended["cases"] == {"planted": 4, "memcheck": 3}.get(name, ended["cases"])
    assert "failed" not in capsys.readouterr().out


def test_all_benchmarks_over_the_shim_and_their_page(shim, tmp_path, accepted, monkeypatch):
    (tmp_path / "plain").symlink_to(shim.folder)
    code, ends = accepted(kind="bench")
    assert code == 0, ends
    assert ends.keys() == bench.BENCHES.keys() - {parts.CONTACT_BENCH} == parts.BENCHES.keys()
    assert all(part["verdict"] == "passed" for part in ends.values())
    results = tmp_path / "results"
    found = page.read(results)
    for name in parts.BENCHES:
        if name != "start":  # over the shim it trains on the CPU
            assert found[name]["device"]["name"] == "shim"
        assert (results / f"{name}.md").read_text().startswith("# mgg bench")
    # Every figure of a benchmark is read from what benchmarks write. (cuSPARSE and PyG have no stand-in there.)
    read = {figure.what: figure.read(found) for figure in page.FIGURES if "bench" in figure.command}
    unread = {what for what, said in read.items() if said is None}
    assert unread == {"times as fast as cuSPARSE CSR_ALG2, float32"}
    monkeypatch.setattr(page, "device_of", lambda found: found["huge"]["device"])
    folder = page.keep(results, tmp_path / "benchmarks" / "kept")
    assert {path.stem for path in folder.glob("pictures/*.svg")} == set(page.PICTURES)
    said = page.text(folder.parent, tmp_path / "docs" / "page.md")
    assert "## shim, " in said and "| overlap | passed |" in said


@pytest.fixture
def script(tmp_path):
    """Makes a part that writes one line of `cases` and `failures`, and its name into `runs`, and ends with `code`."""

    def made(name, text="", *, expected=1.0, limit=3000.0):
        path = tmp_path / f"{name}.py"
        lines = [
            "import json, sys, time",
            f"open({str(tmp_path / 'runs')!r}, 'a').write({name!r} + ' ')",
            "cases, failures, code = 1, [], 0",
            text,
            "line = {'cases': cases, 'passed': cases - len(failures), 'failures': failures}",
            "open(sys.argv[-1], 'w').write(json.dumps({'lines': [line]}))",
            "sys.exit(code)",
        ]
        path.write_text("\n".join(lines))
        return parts.Part(name, (str(path),), expected, limit)

    return made


LEAVES = """
import subprocess
sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", sleep])
open("{file}", "w").write(str(child.pid))
"""
HANGS = "print('waits [for/ever]', flush=True); time.sleep(60)"
TEARS = "open(sys.argv[-1], 'w').write('{'); print('died while it wrote'); sys.exit(1)"


def test_how_parts_end(tmp_path, accepted, script, monkeypatch, capsys):
    made = [
        script("good", "cases = 7"),
        script("bad", "failures, code = ['sum-float32-1-hub: 3 beyond their bound'], 1"),
        script("dies", "raise RuntimeError('the GPU is gone')"),
        script("silent", "sys.exit(0)"),
        script("hangs", HANGS, expected=0.2, limit=3.0),
        script("torn", TEARS),
        script("leaves", LEAVES.format(file=tmp_path / "left")),
        script("lacks", "print('gpu-test: no daemon'); sys.exit(3)"),
        script("long", expected=1000.0),
    ]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)
    code, found = accepted("--seconds", "60")
    assert code == 1
    ends = {name: (part["verdict"], part["why"]) for name, part in found.items()}
    assert ends["good"] == ("passed", "") and found["good"]["cases"] == 7
    assert ends["bad"] == ("failed", "sum-float32-1-hub: 3 beyond their bound")
    assert ends["dies"] == ("failed", "RuntimeError: the GPU is gone (exit code 1)")
    assert ends["silent"] == ("failed", "nothing was said (exit code 0)")
    assert ends["hangs"][0] == "failed"
    assert re.fullmatch(r"did not end within [3-9] s; it said last: waits \[for/ever\]", ends["hangs"][1])
    assert ends["torn"] == ("failed", "died while it wrote (exit code 1)")
    left = int((tmp_path / "left").read_text())
    wait_until(lambda: not is_running(left), 5)  # what a part leaves behind is ended with it
    assert ends["lacks"] == ("left out", "no daemon")
    assert ends["long"][0] == "not run" and ends["long"][1].startswith("takes about 1000 s, and ")
    said = capsys.readouterr().out
    assert all(word in said for word in ("good", "7 / 7", "left out", "did not end"))


def test_which_parts_run_and_in_which_order(tmp_path, accepted, script, monkeypatch, capsys):
    """Parts that passed do not run again, parts that never ran come first, and parts without time are left."""
    made = [script("one", "code = 1"), script("two", expected=40.0), script("three")]
    monkeypatch.setattr(accept, "parts_of", lambda *_: made)

    def run(*words):
        (tmp_path / "runs").write_text("")
        return accepted(*words)[0], (tmp_path / "runs").read_text().split()

    assert run("--parts", "three") == (0, ["three"])
    assert run("--parts", "two,three", "--seconds", "20") == (3, [])
    assert "run the same again" in capsys.readouterr().err
    assert run("--seconds", "20") == (1, ["one"])
    assert run("--parts", "two", "--began", str(time.time() - 30), "--seconds", "60") == (3, [])  # to build
    assert run("--seconds", "60") == (1, ["two", "one"])
    assert run() == (1, ["one"])
    assert run("--parts", "two", "--again") == (0, ["two"])
    monkeypatch.setattr(accept, "fingerprint", lambda part, _: f"other sources of {part.name}")
    assert run("--seconds", "20") == (1, ["one", "three"])  # two has no time: its old result stays
    two = next(part for part in accepted("--parts", "one")[1].values() if part["part"] == "two")
    assert two["verdict"] == "passed" and two["of_other_sources"]
    assert "passed, of other" in capsys.readouterr().out
    assert run() == (1, ["two", "one"])


def test_a_part_that_is_not_there_is_named(tmp_path, capsys):
    words = [
        "--device",
        "shim",
        "--shim",
        str(tmp_path),
        "--results",
        str(tmp_path),
        "--parts",
        "table,tabel",
    ]
    assert accept.main(["test", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gpu-test: --parts: 'tabel'; expected smoke, table, half-remote, random")


def test_a_fingerprint_knows_the_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(accept, "ROOT", tmp_path)
    source = tmp_path / "cuda" / "get.cuh"
    source.parent.mkdir()
    source.write_text("one")
    about = {"name": "shim", "driver": 13000}
    part = parts.Part("get", ("run.py",), 1, 1, ("cuda",))
    other = parts.Part("bench", ("bench.py",), 1, 1, ("mgg_hpc",))
    first, second = accept.fingerprint(part, about), accept.fingerprint(other, about)
    assert first == accept.fingerprint(part, dict(about))
    assert first != accept.fingerprint(part, about | {"driver": 13010})
    source.write_text("two")
    assert first != accept.fingerprint(part, about) and second == accept.fingerprint(other, about)


def test_what_decides_each_part_is_there():
    found = {
        part.name: part for kind in accept.SECONDS for part in parts.parts_of(kind, None, Path("build"), 0)
    }
    for part in found.values():
        programs = {path.split("/")[-1] for path in part.words if path.endswith(".py")}
        assert {Path(name).name for name in part.sources} >= programs
        assert all((accept.ROOT / name).exists() for name in part.sources), part.name

    def of(file):
        return {name for name, part in found.items() if any(file.startswith(each) for each in part.sources)}

    assert of("tests/gpu/accept.py") == of("tests/gpu/page.py") == set()
    assert of("tests/gpu/training.py") == {name for name in found if name.startswith("training")} | {"smoke"}
    kernels = set.intersection(*(set(part.sources) for part in found.values()))
    assert not beyond(included(kernels), kernels)
    for name, part in found.items():
        if name in parts.BENCHES or name == parts.CONTACT_BENCH:
            assert not beyond(imported(part), part.sources), name


def beyond(files, sources):
    """Those of the files that are none of the sources, nor below one."""
    return {file for file in files if not any(f"{file}/".startswith(f"{each}/") for each in sources)}


def included(sources):
    """The headers in cuda/ that are included below these files and folders, and by those headers."""
    cuda, found = accept.ROOT / "cuda", set()
    files = [
        path for name in sources for path in (accept.ROOT / name).rglob("*.[ch]*") if path.suffix != ".pyc"
    ]
    while files:
        file = files.pop()
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
            places = [folder / name for folder in (file.parent, cuda, cuda / "include")]
            header = next((path for path in places if path.exists()), None)
            assert header or name == "shim.h", f"{file} includes {name}"
            if header and header not in found:
                found.add(header)
                files.append(header)
    assert cuda / "gpu" / "worker.cuh" in found
    return {str(path.relative_to(accept.ROOT)) for path in found}


def imported(part):
    """The modules of mgg_hpc/tools that a benchmark's own, and those that they import, need."""
    tools = accept.ROOT / "mgg_hpc" / "tools"
    own = tools / parts.BENCH_SOURCES.get(part.name, f"bench/{part.name}")
    files = [own] if own.suffix else [own / "gpu.py"] if (own / "gpu.py").exists() else list(own.glob("*.py"))
    found = set(files)
    while files:
        file = files.pop()
        for each in ast.walk(ast.parse(file.read_text())):
            if not isinstance(each, ast.ImportFrom) or not each.level:
                continue
            folder = file.parents[each.level - 1].joinpath(*(each.module or "").split("."))
            for path in (folder.with_suffix(".py"), *(folder / f"{name.name}.py" for name in each.names)):
                if path.is_relative_to(tools) and path.exists() and path not in found:
                    found.add(path)
                    files.append(path)
    assert len(found) > 3
    return {str(path.relative_to(accept.ROOT)) for path in found}
