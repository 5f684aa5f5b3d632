"""Neighbour sampling, for the table of cases: the host's samples bit by bit, with edges in any memory."""

from __future__ import annotations

from typing import Any

import cases
import numpy as np

from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampler import Sampled, Sampler

from .engine import Engine

FANOUTS = (1, 2, 3, 7, 31, 33, 70, -1)


def same(found: Sampled, wanted: Sampled) -> None:
    """Compare samples with their edges bit by bit."""
    assert found.nodes.tobytes() == wanted.nodes.tobytes(), "other nodes"
    for one, other in zip(found.hops, wanted.hops, strict=True):
        for name, array in vars(other).items():
            assert getattr(one, name).dtype == array.dtype, f"{name} of another type"
            assert getattr(one, name).tobytes() == array.tobytes(), f"another {name}"


def bound(
    engine: Engine,
    indptr: np.ndarray,
    indices: np.ndarray,
    near: float,
    hottest: np.ndarray | None = None,
    **more: Any,
) -> Sampler:
    """Return a sampler of the device, with a share of the edges near."""
    (device,) = engine.backends(World(1))
    edge_bytes = indices.itemsize + 4 * ("weight" in more)
    host = Sampler(indptr, indices, **more)
    return device.sampling.bind(host, int(near * edge_bytes * len(indices)), hottest)


def samples(engine: Engine, case: cases.Case, entry: object, rng: np.random.Generator) -> float:
    """Evenly and by weight, of which some are 0, from drawn rows and by drawn fanouts, in any order of execution."""
    indices = case.indices.astype(rng.choice([np.int32, np.int64]))
    ids = {"ids": rng.integers(0, 1 << 47, case.nodes)} if rng.random() < 0.5 else {}
    weight = (rng.random(len(indices)) * (rng.random(len(indices)) < 0.8)).astype(np.float32)
    near, hottest = float(rng.choice([0, 0.5, 1])), rng.permutation(case.nodes)
    for more in (ids, {"weight": weight} | ids):
        host = Sampler(case.indptr, indices, **more)
        device = bound(engine, case.indptr, indices, near, hottest, **more)
        seeds = rng.permutation(case.nodes)[: int(rng.integers(0, 9))]
        how = {"seed": int(rng.integers(1 << 62)), "step": int(rng.integers((1 << 32) - 1)), "edges": True}
        fanouts = rng.choice(FANOUTS, 3).tolist()
        engine.seed(int(rng.integers(1 << 60)))
        same(device.sample(seeds, fanouts, **how), host.sample(seeds, fanouts, **how))
    return 0.0
