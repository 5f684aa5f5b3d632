"""What hangs is named, and `make gpu-contact` loses nothing, whenever it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import programs
import pytest
from builds import made

from gpu import accept, parts, result, smoke
from mgg_hpc.runtime import segments

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]

HANG = """
import sys
sys.path.insert(0, {tests!r})
from gpu import result
with result.case("first", 9.0):
    pass
with result.case("second-float32", 1.0):
    while True:
        pass
"""


def test_a_case_that_hangs_is_named(tmp_path):
    done = programs.python("-c", HANG.format(tests=str(ROOT / "tests")))
    assert done.returncode == 1 and "most recent call first" in done.stderr
    said = done.stdout + done.stderr
    assert result.why_failed(said, 1, tmp_path / "none") == "second-float32: did not end within 1 s"
    cut = result.why_failed("case: one\nkilled by magic\n", 9, tmp_path / "none")
    assert cut == "killed by magic (exit code 9, in one)"


def test_a_kernel_that_hangs_is_named_within_30_s(tmp_path):
    library = made("shim-hangs") / "gather" / "_cuda.so"
    words = ("--device", "shim", "--library", library, "--small", "--operations", "sddmm,gather")
    words += ("--case-seconds", result.CASE_SECONDS)  # as on a GPU
    part = parts.Part("table", parts.program("run", *words), 30, 120)
    began = time.perf_counter()
    ending = accept.run(part, tmp_path, dict(os.environ), 120)
    assert time.perf_counter() - began < 30
    assert (ending.verdict, ending.why) == ("failed", "gather-float32-33-ordinary: did not end within 15 s")
    assert ending.passed == 2  # what went before it is kept
    words = ["run.py", *map(str, words), "--operations", "gather", "--case-seconds", "5"]
    assert smoke.failure_of(words, tmp_path / "smoke.json", 30).startswith(
        "gather-float32-33-ordinary: did not end"
    )


def test_a_benchmark_that_hangs_names_its_cell(tmp_path):
    library = made("shim-hangs") / "floor" / "_cuda.so"
    words = ("--device", "shim", "--library", library, "--case-seconds", 8)
    part = parts.Part("aggregate-one", parts.program("bench", "aggregate-one", *words), 30, 120)
    ending = accept.run(part, tmp_path, dict(os.environ), 120)
    assert (ending.verdict, ending.why) == ("failed", "rmat6, float32, width 16: did not end within 8 s")


# ---- ended at any instant


PART = """
import json, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from gpu import result
open({runs!r}, "a").write({name!r} + "\\n")
for cases in range(1, 5):
    {between}
    line = {{"cases": cases, "passed": cases, "failures": []}}
    result.write_json(__import__("pathlib").Path(sys.argv[-1]), "mgg-gpu-test", {{"lines": [line]}})
"""
DRIVER = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from gpu import accept, parts
made = [parts.Part(name, ({folder!r} + "/" + name + ".py",), 1.0, 60.0) for name in {names!r}]
accept.parts_of = lambda *_: made
sys.exit(accept.main(["contact", "--device", "shim", "--shim", "none", "--results", {results!r}]))
"""
NAMES = ("one", "two", "three", "four", "five", "six")


def endings(results):
    """How parts ended, as it was written; and the archive is whole."""
    if not (results / "contact.json").exists():
        return {}
    archive = results.with_name(f"{results.name}.tar.gz")
    if archive.exists():
        with tarfile.open(archive) as found:
            assert found.getnames() == ["results.json", "results.md", "results.log"]
            assert json.load(found.extractfile("results.json"))["format"] == "mgg-gpu-results"
    return {part["part"]: part for part in json.loads((results / "contact.json").read_text())["parts"]}


def test_killed_at_ten_instants_it_goes_on_and_loses_nothing(tmp_path, rng):
    runs, results = tmp_path / "runs", tmp_path / "results"
    paths = {
        "tests": str(ROOT / "tests"),
        "root": str(ROOT),
        "folder": str(tmp_path),
        "results": str(results),
    }
    for name in NAMES:
        text = PART.format(**paths, runs=str(runs), name=name, between="time.sleep(0.15)")
        (tmp_path / f"{name}.py").write_text(text)
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(**paths, names=NAMES))
    runs.touch()

    def started():
        return runs.read_text().split()

    passed: dict[str, dict] = {}
    for _ in range(10):
        before = len(started())
        process = subprocess.Popen(
            [sys.executable, driver], start_new_session=True, stdout=subprocess.DEVNULL
        )
        if rng.random() < 0.8:  # not while Python starts, but for a few times
            programs.wait_until(lambda: len(started()) > before or process.poll() is not None, 60)  # noqa: B023
        time.sleep(float(rng.uniform(0, 1.5)))
        with contextlib.suppress(ProcessLookupError):  # it may have done all that was left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        found = endings(results)
        for name, ending in passed.items():
            assert found[name] == ending  # as it was
            assert json.loads((results / f"{name}.json").read_text())["lines"][0]["cases"] == 4
        again = set(started()[before:]) & passed.keys()
        assert not again
        passed = {name: each for name, each in found.items() if each["verdict"] == "passed"}
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(path)]
        programs.wait_until(lambda: not any(map(read, left)), 10)  # noqa: B023
    done = programs.python(driver)
    assert done.returncode == 0, done.stderr
    assert {name: part["verdict"] for name, part in endings(results).items()} == dict.fromkeys(
        NAMES, "passed"
    )


def test_what_a_killed_part_has_written_is_kept_until_it_has_ended(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    paths = {"tests": str(ROOT / "tests"), "root": str(ROOT)}
    until = tmp_path / "until"  # it writes so many cases, and waits
    between = f"time.sleep(60 * (cases > int(open({str(until)!r}).read())))"
    (tmp_path / "one.py").write_text(PART.format(**paths, runs=str(runs), name="one", between=between))
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(**paths, folder=str(tmp_path), results=str(results), names=["one"]))

    def cases(folder):
        return sum(line["cases"] for line in result.lines_of(folder / "one.json"))

    for killed_at, kept in (
        (2, 0),
        (1, 2),
        (3, 2),
        (1, 3),
    ):  # what the call before has left is kept when this one begins
        until.write_text(str(killed_at))
        process = subprocess.Popen([sys.executable, driver], start_new_session=True)
        programs.wait_until(lambda: cases(results / "running") == killed_at, 60)  # noqa: B023
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert cases(results) == kept
    until.write_text("4")
    assert programs.python(driver).returncode == 0
    assert cases(results) == 4 and endings(results)["one"]["cases"] == 4
    assert not list((results / "running").glob("one.*"))


def test_a_part_ends_with_the_command_that_is_killed(tmp_path):
    (tmp_path / "one.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    )
    with (tmp_path / "one.py").open("a") as program:
        program.write("time.sleep(60)\n")
    paths = {"tests": str(ROOT / "tests"), "root": str(ROOT), "folder": str(tmp_path), "names": ["one"]}
    driver = DRIVER.format(**paths, results=str(tmp_path / "results"))
    process = subprocess.Popen([sys.executable, "-c", driver], start_new_session=True)
    programs.wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
    process.kill()
    process.wait()
    programs.wait_until(lambda: not programs.is_running(int((tmp_path / "pid").read_text())), 5)


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


CONTACT = ("smoke", "short-table", parts.CONTACT_BENCH, "processes-2", "training-1")
CONTACT_SECONDS, SMOKE_SECONDS = 300, 60
SHARED = 2  # times as long, where other programs use the same cores


class Contact:
    """`make gpu-contact` over the shim, with all that it writes in one folder."""

    def __init__(self, folder, shim):
        self.folder, self.results = folder, folder / "build" / "results"
        for name in ("modules", "scratch"):
            (folder / name).mkdir()
        (folder / "modules" / "plain").symlink_to(shim.folder)
        self.words = ["make", "gpu-contact", f"PYTHON={sys.executable}", f"GPU_SHIM={folder / 'modules'}"]
        self.words += [f"GPU_BUILD={folder / 'build'}"]
        self.options = {"cwd": ROOT, "env": os.environ | {"TMPDIR": str(folder / "scratch")}}

    def whole(self):
        """Run it to its end; how parts ended."""
        done = programs.run(*self.words, **self.options)
        assert done.returncode == 0, done.stdout + done.stderr
        found = endings(self.results)
        assert found.keys() == set(CONTACT) and all(each["verdict"] == "passed" for each in found.values())
        return found

    def processes(self):
        """Those of the command: each has the folder in its environment."""
        mark = f"TMPDIR={self.folder / 'scratch'}".encode()
        paths = Path("/proc").glob("[0-9]*")
        return [path for path in paths if mark in read(path / "environ").split(b"\0")]

    def killed(self, place, seconds):
        """Start it, and kill it some seconds after a part has begun, or at its end if that comes first."""
        options = self.options | {"start_new_session": True, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(self.words, **options)
        log = self.results / "running" / f"{place}.log"
        old = log.stat().st_mtime_ns if log.exists() else 0

        def there():
            passed = endings(self.results).get(place, {}).get("verdict") == "passed"
            return passed or process.poll() is not None or (log.exists() and log.stat().st_mtime_ns > old)

        try:
            programs.wait_until(there, 400)
            time.sleep(seconds)
        finally:
            mapped = {file for path in self.processes() for file in segments._files_of(path, "/dev/shm/")}
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        programs.wait_until(lambda: not self.processes(), 30)
        for file in mapped:  # what MPI leaves where ranks are killed
            Path(file).unlink(missing_ok=True)

    def cases(self):
        """How many cases of each part have passed by its document, which may be of an interrupted one."""
        folders = (self.results, self.results / "running")
        lines = {name: [result.lines_of(at / f"{name}.json") for at in folders] for name in CONTACT}
        return {name: max(sum(line["passed"] for line in each) for each in of) for name, of in lines.items()}


@pytest.fixture
def contact(shim, tmp_path):
    return Contact(tmp_path, shim)


@pytest.mark.torture
@pytest.mark.trials(10, torture=10)
@pytest.mark.timeout(2400)
def test_the_command_over_the_shim_is_killed_and_goes_on(contact, rng, trials):
    """At instants drawn from its whole way, from the first part to the last."""
    passed: dict[str, dict] = {}
    cases = dict.fromkeys(CONTACT, 0)
    for place in sorted(rng.choice(CONTACT, trials), key=CONTACT.index):
        contact.killed(str(place), float(rng.uniform(0, 6)))
        found, left = endings(contact.results), contact.cases()
        assert all(found[name] == each for name, each in passed.items())
        assert all(found[name]["verdict"] == "passed" for name in CONTACT[: CONTACT.index(place)])
        assert all(left[name] >= count for name, count in cases.items())
        passed = {name: each for name, each in found.items() if each["verdict"] == "passed"}
        cases = left
    found = contact.whole()
    assert all(found[name] == each for name, each in passed.items())
    took = {name: each["seconds"] for name, each in found.items()}
    assert sum(took.values()) < SHARED * CONTACT_SECONDS and took["smoke"] < SHARED * SMOKE_SECONDS


@pytest.mark.torture
@pytest.mark.trials(1, torture=1)
@pytest.mark.timeout(1200)
def test_the_command_over_the_shim_takes_less_than_five_minutes(contact):
    began = time.perf_counter()
    smoke_seconds = contact.whole()["smoke"]["seconds"]
    took = time.perf_counter() - began
    print(f"gpu-contact over the shim took {took:.0f} s, {smoke_seconds:.0f} of them for smoke")
    assert took < CONTACT_SECONDS and smoke_seconds < SMOKE_SECONDS
