"""Plans of the hard cases as files that schedules.cpp reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import reference
from world import plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry

TRANSFERS = ("direct", "get", "halo")


def write(
    path: Path, case, rng: np.random.Generator, transfer: str, width: int, calls: int, geometry: Geometry
) -> Path:
    """A case's rows of whole numbers, its sums and every rank's plan: arrays, each behind its number of bytes."""
    format = RowFormat(np.dtype(np.float32), width)
    x = np.zeros((case.nodes, format.stride), np.float32)
    x[:, :width] = rng.integers(-100, 100, (case.nodes, width))
    plans = plans_of(case, transfer)
    lists = plans[0].lists
    meta = [len(plans), TRANSFERS.index(transfer), calls, format.stride]
    meta += [lists.rounds, lists.capacity] if lists else [0, 0]
    arrays = [
        np.array(meta),
        np.array([geometry.ps, geometry.dist, geometry.wpb]),
        case.bounds,
        x,
        reference.aggregate(*case.edge_list, case.nodes, x).astype(np.float32),
        np.diff(case.indptr),
    ]
    for plan in plans:
        arrays += [plan.chunks, plan.segments, plan.indices]
        if plan.lists:
            sent = plan.lists
            arrays += [sent.send_rows, sent.send_counts, sent.send_places, sent.receive_counts]
    with path.open("wb") as file:
        for array in arrays:
            file.write(np.int64(array.nbytes).tobytes())
            file.write(np.ascontiguousarray(array).tobytes())
    return path
