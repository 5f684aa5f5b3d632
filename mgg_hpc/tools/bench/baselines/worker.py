"""A worker's process: python worker.py MODULE THREADS PAGES, then a request a line on stdin, a reply on stdout.

MODULE has ``about() -> str`` (what it is, its versions) and, for each task that it knows, a function of that name
which takes the task's inputs and returns the runs by name: a run takes nothing and returns an array (or None), or
``(seconds, array)`` where it has a clock of its own. In place of the array it may return a function that makes it.

    {"do": "about"}                                         -> {"about": "dgl 1.1.3"}
    {"do": "prepare", "task": "aggregate", "inputs": {...}} -> {"runs": ["dgl"]}
    {"do": "run", "name": "dgl"}                            -> {"ms": 12.3}
    {"do": "result", "name": "dgl", "file": "out.npy"}      -> {}: what that run returned last, as float32
    {"do": "memory"}                                        -> {"peak": bytes, "anonymous": bytes, "huge": bytes}
    {"do": "resident"}                                      -> {"resident": bytes}; and the peak counts from here on

Any of them may be answered by {"failed": "one line"} instead; {"missing": "one line"} comes before all else if the
module does not import. The process ends with its stdin. Only the standard library and NumPy are imported here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_THP_DISABLE = 41


class Server:
    """A server that answers requests with one module's runs."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.runs: dict[str, Callable[[], Any]] = {}
        self.results: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        return {"about": self.module.about()}

    def prepare(self, task: str, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs, self.results = {}, {}  # what was held before is given back first
        self.runs = getattr(self.module, task)(**inputs)
        return {"runs": list(self.runs)}

    def run(self, name: str) -> dict[str, Any]:
        self.results.pop(name, None)  # an output of the last turn is not kept beside the new one
        began = time.perf_counter()
        result = self.runs[name]()
        seconds = time.perf_counter() - began
        if isinstance(result, tuple):
            seconds, result = result
        self.results[name] = result
        return {"ms": seconds * 1e3}

    def result(self, name: str, file: str) -> dict[str, Any]:
        import numpy as np

        found = self.results[name]
        found = found() if callable(found) else found
        # NumPy knows no bfloat16 of torch's.
        np.save(file, np.asarray(found.float() if hasattr(found, "float") else found, dtype=np.float32))
        return {}

    def memory(self) -> dict[str, Any]:
        held = _fields(Path("/proc/self/smaps_rollup"))
        peak = _fields(Path("/proc/self/status"))["VmHWM"]
        return {"peak": peak, "anonymous": held["Anonymous"], "huge": held["AnonHugePages"]}

    def resident(self) -> dict[str, Any]:
        Path("/proc/self/clear_refs").write_text("5")  # of proc(5): the peak is what is resident now
        return {"resident": _fields(Path("/proc/self/status"))["VmHWM"]}


def _fields(path: Path) -> dict[str, int]:
    """Return the lines ``Name:  123 kB`` of a file by name, in bytes."""
    words = [line.split() for line in path.read_text().splitlines()]
    return {w[0].rstrip(":"): int(w[1]) * 1024 for w in words if len(w) == 3 and w[2] == "kB"}


def main(module: str, threads: str, pages: str) -> None:
    """Answer requests until stdin ends."""
    if pages == "small" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    try:
        chosen = importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library is not there
        print(json.dumps({"missing": _line(error)}), file=replies, flush=True)
        return
    chosen.set_threads(int(threads))
    server = Server(chosen)
    for text in sys.stdin:
        request = json.loads(text)
        try:
            reply = getattr(server, request.pop("do"))(**request)
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {_line(error)}"}
        print(json.dumps(reply), file=replies, flush=True)


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
