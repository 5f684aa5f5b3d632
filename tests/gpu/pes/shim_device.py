"""The shim as what benchmarks of a GPU run on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from mgg_hpc.tools.bench.harness.gpu import Call, Device

from .engine import Engine, HostArrays


class HostClock:
    """A clock for calls that have ended when they return, as the shim's have."""

    def ms(self, calls: Sequence[Call]) -> float:
        """See Clock."""
        began = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - began) * 1e3 / len(calls)


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
    return Device(engine.module, engine.arrays, HostClock(), 1 << 16, together, slow)
