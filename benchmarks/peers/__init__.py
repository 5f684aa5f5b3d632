"""Libraries that are measured, a module each; `harness/worker.py` runs one in a process of its own.

Only the modules of this package import mgg_hpc, which the environment of other libraries may not have. A module has
``ABOUT``, the library's versions, and a function for each task, which returns the task's runs by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

NAME = ""  # of the library, with a variant after a hyphen: "pyg-csr"
THREADS = 1  # of each library
DEVICE = "cpu"  # or "cuda"
BUSY_CYCLES = 2_000_000  # about a millisecond


def cuda() -> Any:
    """Return torch.cuda where the library runs on a GPU; over the shim there is none."""
    if DEVICE != "cuda":
        return None
    import torch

    return torch.cuda if torch.cuda.is_available() else None


def timed(call: Callable[[], Any], gpu: Any) -> tuple[float, Any]:
    """Return the seconds of a call and its result. gpu: torch.cuda, for events of the current stream, or None."""
    if gpu is None:
        began = time.perf_counter()
        result = call()
        return time.perf_counter() - began, result
    first, last = (gpu.Event(enable_timing=True) for _ in range(2))
    # The GPU waits while the call is made, so that the time in which Python launches it is not measured.
    gpu._sleep(BUSY_CYCLES)
    first.record()
    result = call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3, result
