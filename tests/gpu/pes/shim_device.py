"""The shim as the GPU that plays two PEs for benchmarks (benchmarks/harness/pes.py)."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from .engine import Engine, HostArrays

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from harness.pes import Call, Device


def host_ms(call: Call) -> float:
    """Return the milliseconds of a call that has ended when it returns, as the shim's have."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def shim_device(engine: Engine, seed: int = 0) -> Device:
    """Return a device whose PEs run at once, each time in another order; far memory is the host's too."""
    engine.seed(seed)
    seeds = itertools.count(seed)

    def together(world: Any, calls: Any) -> None:
        engine.seed(next(seeds))
        engine.together(world, [calls])

    return Device(engine.module, engine.arrays, HostArrays(), host_ms, together)
