"""The shim as what benchmarks of a GPU run on."""

from __future__ import annotations

import itertools
from typing import Any

from mgg_hpc.tools.bench.harness import gpu
from mgg_hpc.tools.bench.harness.gpu import Device

from .engine import Engine, HostArrays


def shim_device(engine: Engine, seed: int = 0) -> Device:
    """Several PEs at once, each time in another order; and slow memory that is the host's too."""
    engine.seed(seed)
    seeds = itertools.count(seed)

    def together(world: Any, calls: Any) -> None:
        engine.seed(next(seeds))
        with engine.together(world) as of:
            for rank, call in enumerate(calls):
                with of(rank):
                    call()

    slow = {"pinned": HostArrays(), "managed": HostArrays()}
    return Device(engine.module, engine.arrays, gpu.HostClock(), 1 << 16, together, slow)
