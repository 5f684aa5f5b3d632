"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

PAGE_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def describe() -> dict[str, Any]:
    """CPU, cores, instruction set, page policy, load and versions."""
    import torch

    from mgg_hpc import __version__
    from mgg_hpc.runtime import cores
    from mgg_hpc.runtime.backends import host

    return {
        "cpu": _cpu(),
        "cores": cores.available(),
        "instruction_set": host.load().instruction_set(),
        "huge_pages": _page_policy(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mgg": __version__,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _page_policy() -> str:
    """always, madvise or never: what stands in brackets."""
    try:
        return PAGE_POLICY.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"
