"""Programs that tests and their tools start: run to the end, or ended with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgg_hpc.runtime.launch import end_with_parent

GRACE = 5.0  # seconds between asking a program to end and ending it


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. What it writes is kept as text; its exit code is the caller's to check."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments, as `run` does."""
    return run(sys.executable, *arguments, **options)


def end(process: subprocess.Popen[Any], *signals: signal.Signals, seconds: float) -> None:
    """End the session that a process leads. It is asked by each signal first, and has so many seconds to end."""
    for number in (*signals, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
    with contextlib.suppress(ProcessLookupError):  # what it left behind
        os.killpg(process.pid, signal.SIGKILL)


def run_limited(*command: object, seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a session of its own, which is ended after so many seconds, or with this process.

    Raises subprocess.TimeoutExpired, with what was said so far.

    What it writes goes to files, since a pipe stays open as long as anything that it has started.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it makes one system call
            **options,
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            end(process, signal.SIGTERM, seconds=GRACE)
            out.seek(0)
            error.output = out.read()
            raise
        finally:
            end(process, seconds=GRACE)
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


def wait_until(condition: Callable[[], object], seconds: float, why: Callable[[], str] = str) -> None:
    """Wait for a condition that comes within ``seconds`` on a quiet machine.

    Raises AssertionError with ``why()`` after ten times as long without it.
    """
    deadline = time.monotonic() + 10 * seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


def is_running(number: int) -> bool:
    """Return whether a process of this number has not ended."""
    try:
        return Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_files(folder: Path) -> list[str]:
    """Return the names of files in a folder that this process has open, removed ones too."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the list's own
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(f"{folder.resolve()}/")]
