"""The description of the machine on which a benchmark runs."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ...runtime import cores
from ...runtime.backends.native import instruction_set

PAGE_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe(gpu: bool = False) -> dict[str, Any]:
    """Return CPU, cores, instruction set, caches, memory, page policy, load and versions; gpu: and the first GPU."""
    return {
        "cpu": cores.processor(),
        "cores": cores.available(),
        "instruction_set": instruction_set(),
        "caches": _caches(),
        "memory_gib": round(cores.memory_total() / 2**30, 1),
        "huge_pages": _page_policy(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "mgg": __version__,
        **({"gpu": _gpu()} if gpu else {}),
    }


def _gpu() -> str:
    """Return the name of the first GPU; empty where there is none."""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


def _caches() -> str:
    """Return the sizes of the first core's data caches, "L1 48K, L2 2048K"; empty where the kernel lists none."""
    found = []
    for entry in sorted(CACHES.glob("index*")):
        kind, level, size = ((entry / name).read_text().strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _page_policy() -> str:
    """Return always, madvise or never: the word in brackets."""
    try:
        return PAGE_POLICY.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"
