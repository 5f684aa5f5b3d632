"""The process of a library: python worker.py NAME THREADS PAGES DEVICE, then a request a line, and a reply to each.

NAME is the name of a module in peers/, with a variant after a hyphen ("pyg-csr"). The module has a function for each
task, which takes the task's inputs and returns the runs by name. A run takes no arguments and returns an array or None,
or ``(seconds, array)`` if it has a clock of its own. It may return a function that makes the array, if making it takes
time.

    {"do": "about"}                                         -> {"about": "dgl 1.1.3"}
    {"do": "prepare", "task": "aggregate", "inputs": {...}} -> {"runs": ["dgl"]}
    {"do": "run", "name": "dgl"}                            -> {"ms": 12.3}
    {"do": "result", "name": "dgl", "file": "out.npy"}      -> {}: what that run returned last, as float32
    {"do": "memory"}                                        -> {"peak": bytes}: of the process, or of the GPU by it
    {"do": "forget"}                                        -> {}: the peak counts from here on

Any of them may be answered by {"failed": "one line"} instead; {"missing": "one line"} comes before all else if the
module does not import. The process ends with its stdin. Only the standard library and NumPy are imported here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

import peers  # noqa: E402

PR_SET_THP_DISABLE = 41


class Server:
    """A server that answers requests with one module's runs."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.runs: dict[str, Callable[[], Any]] = {}
        self.results: dict[str, Any] = {}
        self.outside_bytes = 0  # of the GPU, that this process has taken without torch

    def about(self) -> dict[str, Any]:
        return {"about": self.module.ABOUT}

    def prepare(self, task: str, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs, self.results = {}, {}  # what was held before is given back first
        self.runs = getattr(self.module, task)(**inputs)
        return {"runs": list(self.runs)}

    def run(self, name: str) -> dict[str, Any]:
        self.results.pop(name, None)  # frees the last output before the new one is made
        seconds, result = peers.timed(self.runs[name], peers.cuda())
        if isinstance(result, tuple):
            seconds, result = result
        self.results[name] = result
        return {"ms": seconds * 1e3}

    def result(self, name: str, file: str) -> dict[str, Any]:
        import numpy as np

        found = self.results[name]
        found = found() if callable(found) else found
        # NumPy knows neither bfloat16 of torch's nor memory of GPUs.
        np.save(file, np.asarray(found.float().cpu() if hasattr(found, "float") else found, dtype=np.float32))
        return {}

    def memory(self) -> dict[str, Any]:
        if cuda := peers.cuda():
            return {"peak": cuda.max_memory_allocated() + self.outside_bytes}
        (peak,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        return {"peak": int(peak) * 1024}

    def forget(self) -> dict[str, Any]:
        Path("/proc/self/clear_refs").write_text("5")  # of proc(5): the peak is what is resident now
        if cuda := peers.cuda():
            cuda.reset_peak_memory_stats()
        return {}

    def outside(self) -> int:
        """Return the bytes in use on the GPU that torch of this process has not allocated; 0 on a CPU.

        A plan is made without torch. While a request is answered, no other process takes memory.
        """
        if not (cuda := peers.cuda()):
            return 0
        free, total = cuda.mem_get_info()
        return int(total - free - cuda.memory_reserved())


def main(name: str, threads: str, pages: str, device: str) -> None:
    """Answer requests until stdin ends."""
    if pages == "small" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    peers.NAME, peers.THREADS, peers.DEVICE = name, int(threads), device
    try:
        server = Server(importlib.import_module(f"peers.{_library()}"))
    except (ImportError, OSError) as error:  # OSError: a shared library is not there
        print(json.dumps({"missing": _line(error)}), file=replies, flush=True)
        return
    for text in sys.stdin:
        request = json.loads(text)
        try:
            before = server.outside()
            reply = getattr(server, request.pop("do"))(**request)
            server.outside_bytes += server.outside() - before
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {_line(error)}"}
        print(json.dumps(reply), file=replies, flush=True)


def _library() -> str:
    """Return the library's name without its variant."""
    return peers.NAME.partition("-")[0]


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
