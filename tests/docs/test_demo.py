"""The demo, by the commands of `make demo`: its time, its table, its progress bar."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
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


def cells(text: str) -> dict[str, str]:
    """The result table: name -> value."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1] for row in rows if len(row) == 2}


@pytest.mark.long
def test_make_demo_runs_these_commands():
    text = programs.run("make", "-n", "demo", cwd=ROOT).stdout
    assert f"mgg {' '.join(TRAIN)} inputs/digits.toml" in text
    rule = "inputs/digits.h5: | setup\n\t@$(BIN)/mgg import digits -o $@\n"
    assert rule in (ROOT / "Makefile").read_text()


def processor_seconds() -> float:
    """Return the processor time of all ended children, which other work on the machine hardly lengthens."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_the_demo_is_short_and_ends_with_its_table(inputs, tmp_path):
    before = processor_seconds()
    assert programs.python("-c", "import torch, mgg_hpc.training.train").returncode == 0
    began = processor_seconds()
    imported = run("import", "digits", "-o", tmp_path / "digits.h5")
    done = run(*TRAIN, inputs / "digits.toml", folder=tmp_path)
    assert (imported.returncode, done.returncode) == (0, 0), imported.stderr + done.stderr
    assert processor_seconds() - began < IMPORTS * (began - before)
    assert done.stderr == ""  # no bar where nobody looks
    assert "\x1b" not in done.stdout
    table = cells(done.stdout)
    assert float(table["test accuracy"]) >= 0.95
    assert re.match(r"\d+\.\d+ ms \(min ", table["epoch"])
    assert re.match(r"[\d,]+ remote rows an epoch \(", table["rows moved"])
    assert len(re.findall(r"\d+\.\d MiB", table["memory per rank"])) >= 2
    summary = json.loads((tmp_path / table["summary"]).read_text())
    assert table["run folder"] == str(Path(table["summary"]).parent)
    assert summary["ranks"] == 2
    assert table["test accuracy"] == f"{summary['test_accuracy']:.4f}"
    assert f"{summary['remote_rows']:,} remote rows" in table["rows moved"]
    assert done.stdout.rstrip().splitlines()[-1].startswith("└")


@pytest.mark.long
def test_a_terminal_shows_the_bar_and_the_whole_table(inputs, tmp_path):
    code, shown = in_terminal([MGG, *TRAIN, inputs / "digits.toml"], tmp_path)
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    frames = re.findall(r"training (━[━╸╺]*)\s+(\d+)/200", plain)
    counts = [int(count) for _, count in frames]
    assert len(frames) >= 3
    assert counts == sorted(counts)
    assert counts[-1] == 200
    assert float(cells(plain)["test accuracy"]) >= 0.95
    assert "\x1b[?25h" in shown  # the cursor is back
    lines = [line for part in plain.split("\n") for line in part.split("\r")]
    assert max(len(line) for line in lines if line.startswith(("training", "│", "┌"))) <= COLUMNS


@pytest.mark.long
def test_a_long_path_is_shown_whole_and_the_bar_can_be_asked_for(inputs, tmp_path):
    """Paths are there to be copied: the table folds them, drops nothing, and takes no part of them for a colour."""
    runs = tmp_path / ("folder-" * 12) / "[red]:smile:runs"
    job = [inputs / "digits.toml", "--set", f"run.folder={runs}", "--set", "train.epochs=3"]
    done = run("train", *job, "--progress", folder=tmp_path)
    assert done.returncode == 0 and "3/3" in done.stderr, done.stderr
    joined = "".join(line.split("│")[2].strip() for line in done.stdout.splitlines() if line.count("│") == 3)
    assert str(runs / "001" / "summary.json") in joined
    code, shown = in_terminal([MGG, "train", *job, "--no-progress"], tmp_path)
    assert code == 0 and "3/3" not in shown
