"""Child processes that read damaged files, and are watched while they do: for signals, for hangs, for other errors.

A worker (`serve`) reads one path after the other from its standard input, so that thousands take seconds. One that dies
or does not answer in time is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mgg_hpc.errors import InputError

LIMIT = 20.0  # seconds for one file
ROOM = 2 << 30  # bytes of address space beyond what a worker has when it begins
TESTS = Path(__file__).parents[1]


class Answer(NamedTuple):
    """Outcome of reading a file. kind: "taken", "refused" (in one line that names it), or else a failure."""

    kind: str
    said: str


class Worker:
    """A child process that runs a module of tests with these arguments, and `serve` in it; a context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-X", "faulthandler", "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the worker end by itself, since MPI removes its files in /dev/shm then; end it if it does not."""
        if self._process is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LIMIT)
            self._end()

    def ask(self, path: Path, limit: float = LIMIT) -> Answer:
        """Return what becomes of a file within ``limit`` seconds."""
        process = self.start()
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], limit)
        if line := process.stdout.readline() if ready else "":
            return Answer(*json.loads(line))
        code = process.wait() if ready else None
        self._end()
        return Answer("crash", f"exit code {code}") if ready else Answer("hang", f"no answer in {limit} s")

    def start(self) -> subprocess.Popen[str]:
        """Start the process, if it is not there, and wait until it can read."""
        if self._process is not None:
            return self._process
        paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, env=environment, text=True, **pipes)
        assert self._process.stdout.readline() == "ready\n"
        return self._process

    def _end(self) -> None:
        with self._process:
            self._process.kill()
        Path(f"/dev/shm/mpich_shm_{self._process.pid:x}_0").unlink(missing_ok=True)  # of a killed process
        self._process = None


def serve(check: Callable[[Path], str | None]) -> None:
    """Answer for the paths of standard input until it ends.

    check: reads a file, and may return text about its contents. Raises InputError for a damaged file.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        try:
            answer = ("taken", check(path) or "")
        except InputError as error:
            named = "\n" not in str(error) and str(path) in str(error)
            answer = ("refused" if named else "unnamed", str(error))
        except BaseException:
            answer = ("error", traceback.format_exc())
        print(json.dumps(answer), file=answers, flush=True)
