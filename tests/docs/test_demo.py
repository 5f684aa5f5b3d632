"""The demo, by the commands of `make demo`: its time, its scores, its progress bar."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import shlex
import shutil
import struct
import subprocess
import termios
from pathlib import Path

import programs
import pytest
from jobs import MGG, clean_environment, run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
COLUMNS = 96
IMPORTS = 8  # twice the processor time of the demo, in times of importing what it trains with
TRAIN = ["launch", "-n", "2", "--mpi", "auto", "train"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """The demo's job file and graph."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copy(ROOT / "inputs" / "digits.toml", folder)
    assert run("import", "digits", "-o", folder / "digits.h5").returncode == 0
    return folder


def in_terminal(command: list, folder: Path) -> tuple[int, str]:
    """Run a command on a terminal of COLUMNS columns; returns its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = clean_environment() | {"TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(60), shown.decode()


def facts(text: str) -> dict[str, str]:
    """The lines of facts: name -> value."""
    return dict(re.findall(r"^(\w[\w ]*?)  +(\S.*?)\s*$", text, re.MULTILINE))


def processor_seconds() -> float:
    """Return the processor time of all ended children, which other work on the machine hardly lengthens."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_the_demo_is_short_and_ends_with_its_scores(inputs, tmp_path):
    before = processor_seconds()
    assert programs.python("-c", "import torch, mgg_hpc.training.train").returncode == 0
    began = processor_seconds()
    imported = run("import", "digits", "-o", tmp_path / "digits.h5")
    done = run(*TRAIN, inputs / "digits.toml", folder=tmp_path)
    assert (imported.returncode, done.returncode) == (0, 0), imported.stderr + done.stderr
    assert processor_seconds() - began < IMPORTS * (began - before)
    assert done.stderr == ""  # no bar where nobody looks
    assert "\x1b" not in done.stdout
    found = facts(done.stdout)
    assert float(found["test accuracy"]) >= 0.95
    assert re.fullmatch(r"\d+\.\d MiB at the peak, of \d+\.\d GiB free", found["memory"])
    summary = json.loads((tmp_path / found["run"] / "summary.json").read_text())
    assert summary["ranks"] == 2
    for name in ("test", "validation", "training"):
        score = summary[{"validation": "val", "training": "train"}.get(name, name) + "_accuracy"]
        assert found[f"{name} accuracy"].split(",")[0] == f"{score:.4f}"
    for line in done.stdout.splitlines()[-2:]:  # what to do next, as it stands there
        command = shlex.split(line.removeprefix("  mgg "))
        assert line.startswith("  mgg ") and run(*command, folder=tmp_path).returncode == 0
    assert (tmp_path / "predictions.csv").exists() and list(tmp_path.rglob("report.html"))


@pytest.mark.long
def test_a_terminal_shows_the_bar_and_the_scores(inputs, tmp_path):
    code, shown = in_terminal([MGG, *TRAIN, inputs / "digits.toml"], tmp_path)
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    lines = [line for part in plain.split("\n") for line in part.split("\r")]
    frames = [line for line in lines if line.startswith("epoch ") and "━" in line]
    counts = [int(re.match(r"epoch +(\d+)/200", line)[1]) for line in frames]
    assert len(frames) >= 3
    assert counts == sorted(counts)
    assert counts[-1] == 200
    assert re.search(r"loss 0\.\d{4}  validation 0\.\d{4}", frames[-1])
    assert float(facts("\n".join(lines))["test accuracy"]) >= 0.95
    assert "\x1b[?25h" in shown  # the cursor is back
    assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)


@pytest.mark.long
def test_a_long_path_is_shown_whole_and_the_bar_can_be_asked_for(inputs, tmp_path):
    """Paths are there to be copied: none is broken, and no part of them is taken for a colour."""
    runs = tmp_path / ("folder-" * 12) / "[red]:smile:runs"
    job = [inputs / "digits.toml", "--set", f"run.folder={runs}", "--set", "train.epochs=3"]
    done = run("train", *job, "--progress", folder=tmp_path)
    assert done.returncode == 0 and "3/3" in done.stderr, done.stderr
    nearby = runs.relative_to(tmp_path)
    assert facts(done.stdout)["run"] == str(nearby / "001")
    code, shown = in_terminal([MGG, "train", *job, "--no-progress"], tmp_path)
    assert code == 0 and "3/3" not in shown and str(nearby / "002") in shown
