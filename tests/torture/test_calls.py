"""Checkpoints whose writing ends at any call to the file system: by a kill, an error, or a full disk."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import jobs
import numpy as np
import pytest
from tiers import drawn

from torture import at_call
from torture.launched import assert_same_runs, metrics, saved
from torture.report import recorded

EPOCHS, EVERY = 9, 3
KINDS = {"write", "fsync", "rename", "replace", "unlink", "mkdir", "open"}
WORDS = ["train", "job.toml", "--no-progress"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A folder with a graph, a job file, a run that was not disturbed ("whole"), and the list of its calls."""
    folder = tmp_path_factory.mktemp("calls")
    jobs.write_job(
        folder,
        jobs.blocks(300),
        model={"hidden": 8, "norm": "batch", "dropout": 0.4, "input": "learned", "embedding": 6},
        train={"epochs": EPOCHS, "seed": 7},
        plan={"transfer": "direct"},
        run={"folder": "runs", "resume": "auto", "threads": 1},
        checkpoint={"every_epochs": EVERY, "keep": 1},  # so that the one before is removed
    )
    ended = run(folder, 0, "count")
    assert ended.returncode == 0, ended.stderr
    (folder / "runs").rename(folder / "whole")
    return folder


def run(folder: Path, number: int, action: str) -> subprocess.CompletedProcess[str]:
    """Train, and act on one call that changes something below checkpoints/."""
    log = folder / "calls"
    log.unlink(missing_ok=True)
    return jobs.python(Path(at_call.__file__), "/checkpoints/", number, action, log, *WORDS, folder=folder)


def calls(folder: Path) -> list[str]:
    """Return the names of the calls that the last run made, in order."""
    return [line.split()[1] for line in (folder / "calls").read_text().splitlines()]


def committed(folder: Path) -> int:
    """Return the epoch of the checkpoint that got its name last, by the list of calls; the last of them did nothing."""
    lines = (folder / "calls").read_text().splitlines()[:-1]
    drafts = [line.split()[2] for line in lines if line.split()[1] == "rename"]
    return max((int(draft.split(".")[1].removeprefix("epoch-")) for draft in drafts), default=0)


def chosen(prepared: Path, folder: Path, count: int, rng: np.random.Generator) -> list[int]:
    """Return numbers of calls: all of them, or a sample with as many kinds of calls as there is room for."""
    folder = copied(prepared, folder)
    assert run(folder, 0, "count").returncode == 0
    names = calls(folder)
    assert set(names) - {"rmdir"} == KINDS  # a folder is removed where a checkpoint was pruned
    if count >= len(names):
        return list(range(1, len(names) + 1))
    order = (1 + rng.permutation(len(names))).tolist()
    first = {names[number - 1]: number for number in reversed(order)}
    return sorted({*list(first.values())[:count], *order[: max(0, count - len(first))]})


def copied(prepared: Path, folder: Path) -> Path:
    """Copy graph, job file and the undisturbed run into a new folder."""
    return shutil.copytree(prepared, folder, ignore=shutil.ignore_patterns("runs"))


def check_resumed(folder: Path, *, anew: bool = False) -> None:
    """Check that the next job ends as the run that was not disturbed. anew: it may begin a run of its own."""
    ended = jobs.run(*WORDS, folder=folder)
    assert ended.returncode == 0, ended.stderr
    where = max((folder / "runs").glob("0*")) if anew else folder / "runs" / "001"
    assert metrics(where) == metrics(folder / "whole" / "001")


@pytest.mark.long
@pytest.mark.trials(2, torture=1000)
def test_a_kill_at_any_call_leaves_a_checkpoint_to_go_on_with(prepared, tmp_path, rng, trials):
    numbers = chosen(prepared, tmp_path / "first", trials, rng)
    with recorded("SIGKILL at calls of a checkpoint", len(numbers)):
        for wanted in numbers:
            number = wanted
            folder = copied(prepared, tmp_path / "killed")
            # A checkpoint that is due while another is written waits for it, so that some runs make fewer calls: they
            # are killed at one of those.
            for _ in range(20):
                killed = run(folder, number, ["kill", "torn"][number % 2])
                if killed.returncode != 0:
                    break
                assert len(calls(folder)) < number
                number = int(rng.integers(1, len(calls(folder)) + 1))
                shutil.rmtree(folder / "runs")
            assert killed.returncode == -9, killed.stderr
            where = folder / "runs" / "001"
            assert saved(where) == committed(folder)
            check_resumed(folder)
            assert_same_runs(folder / "whole" / "001", where, EPOCHS)
            assert not list(where.rglob(".*")), "a temporary file or folder is left"
            shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.trials(1, torture=1000)
@pytest.mark.parametrize("action", drawn(["ENOSPC", "ENOSPC+", "EDQUOT+", "EIO"], 1))
def test_an_error_of_any_call_is_one_line_and_leaves_the_last_checkpoint(
    prepared, tmp_path, rng, trials, action
):
    numbers, ends = chosen(prepared, tmp_path / "first", trials, rng), Counter()
    with recorded(f"{action} at calls of a checkpoint", len(numbers)) as found:
        for number in numbers:
            folder = copied(prepared, tmp_path / f"{action}{number}")
            ended = run(folder, number, action)
            check_error(folder, ended, codes=(1, 2) if action == "EIO" else (2,))
            ends[ended.returncode] += 1
            check_resumed(folder)
            shutil.rmtree(folder)
        found["exit_codes"] = dict(ends)


def check_error(folder: Path, ended: subprocess.CompletedProcess[str], codes: tuple[int, ...] = (2,)) -> None:
    """Training went on with warnings of a line each, or ended by one line; what was saved is sound."""
    lines = ended.stderr.splitlines()
    where = folder / "runs" / "001"
    if ended.returncode == 0:
        assert all(line.startswith("mgg: warning: the checkpoint of epoch ") for line in lines), ended.stderr
        assert len(metrics(where)) == EPOCHS
    else:
        assert ended.returncode in codes, ended.stderr
        assert [line for line in lines if not line.startswith("mgg: warning: ")] == lines[-1:], ended.stderr
        assert lines[-1].startswith("mgg: error: ")
    named = [int(epoch) for epoch in re.findall(r"the last one is of epoch (\d+)", ended.stderr)]
    assert saved(where) >= max(named, default=0)
    assert not list(where.rglob(".*.tmp")), "a temporary file or folder is left"


@pytest.fixture
def mounted(require):
    """Train with a file system of these options at runs/, and run a command before it is gone."""
    program = shutil.which("unshare")
    require(program is not None, "no unshare", "apt install util-linux")

    def train(folder: Path, options: str, after: str = "") -> subprocess.CompletedProcess[str]:
        (folder / "runs").mkdir()
        command = f"mount -t tmpfs -o {options} tmpfs runs || exit 77; {jobs.MGG} {' '.join(WORDS)}{after}"
        words = (program, "--mount", "bash", "-c", command)
        ended = jobs.programs.run(*words, cwd=folder, env=jobs.clean_environment())
        require(ended.returncode != 77, "no right to mount a file system: run it as root")
        return ended

    return train


@pytest.mark.long
@pytest.mark.trials(1, torture=40)
def test_a_disk_that_is_full_is_one_line_and_leaves_the_last_checkpoint(prepared, tmp_path, trials, mounted):
    """A small file system, whose space ends at another write in each trial."""
    needed, ends = sum(len(content) for content in jobs.files(prepared / "whole").values()), Counter()
    with recorded("file systems that end at any size", trials) as found:
        for number, size in enumerate(np.linspace(4096, 3 * needed + 65536, trials).astype(int)):
            folder = copied(prepared, tmp_path / f"full{number}")
            ended = mounted(folder, f"size={size // 4096 * 4096}", "; code=$?; cp -a runs kept; exit $code")
            (folder / "runs").rmdir()
            (folder / "kept").rename(folder / "runs")
            if (folder / "runs" / "001").exists():
                check_error(folder, ended)
            else:
                assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
            ends[ended.returncode] += 1
            check_resumed(folder, anew=True)
            shutil.rmtree(folder)
        found["exit_codes"] = dict(ends)


@pytest.mark.long
def test_a_folder_that_cannot_be_written_to_is_one_line(prepared, tmp_path, mounted):
    ended = mounted(copied(prepared, tmp_path / "job"), "ro")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert ended.stderr.startswith("mgg: error: run.folder: runs cannot be written to (")
    assert ended.stderr.rstrip().endswith("name another")
