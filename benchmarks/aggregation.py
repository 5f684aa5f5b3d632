"""Aggregation against torch's sparse CSR product: the same graph, the same rows, taking turns."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mgg_hpc.data.graph import Graph
from mgg_hpc.plan import workload
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.base import Options
from mgg_hpc.runtime.backends.host import padded
from mgg_hpc.runtime.backends.serial import SerialBackend, World

FLOAT32 = np.dtype(np.float32)


class Pair:
    """One graph, summed by this package on one rank and by torch, with as many threads each."""

    def __init__(self, graph: Graph, threads: int, *, weighted: bool) -> None:
        rng = np.random.default_rng(0)
        torch.set_num_threads(threads)
        self.graph, self.weighted = graph, weighted
        bounds = np.array([0, graph.nodes], dtype=np.int64)
        ps = DEFAULT_GEOMETRY.ps
        self.plan = workload.build(0, bounds, graph.indptr, graph.indices, ps, keep_edges=weighted)
        self.backend = SerialBackend(0, World(1), Options(DEFAULT_GEOMETRY, threads))
        weight = rng.uniform(0.1, 1, graph.edges).astype(np.float32)
        self.edge = weight[self.plan.edge] if weighted else None
        # torch multiplies by values in any case; int64 offsets and indices, as it makes them itself.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # sparse CSR counts as beta
            self.matrix = torch.sparse_csr_tensor(
                torch.tensor(graph.indptr),
                torch.tensor(graph.indices, dtype=torch.int64),
                torch.from_numpy(weight) if weighted else torch.ones(graph.edges),
                (graph.nodes, graph.nodes),
                check_invariants=True,
            )

    def measure(self, width: int, turns: int) -> dict[str, Any]:
        """Medians and spreads in ms over alternating turns, and the median of the turns' ratios."""
        format, counts = RowFormat(FLOAT32, width), np.array([self.graph.nodes], dtype=np.int64)
        rows = self.backend.rows(counts, format, symmetric=True)
        x = torch.randn(self.graph.nodes, width, generator=torch.Generator().manual_seed(0))
        rows.local[:] = x.numpy()
        out = padded(self.graph.nodes, format)
        op = "mul" if self.weighted else "copy"

        def ours() -> None:
            self.backend.aggregate(self.plan, op, "sum", rows, out, edge=self.edge)

        def torchs() -> torch.Tensor:
            return self.matrix @ x

        ours()
        self._check(out, torchs(), x)
        mine, theirs = [], []
        for _ in range(turns):
            mine.append(_milliseconds(ours))
            theirs.append(_milliseconds(torchs))
        ratios = [t / m for m, t in zip(mine, theirs, strict=True)]
        return {
            "width": width,
            "weighted": self.weighted,
            "ours_ms": _spread(mine),
            "torch_ms": _spread(theirs),
            "ratio": _spread(ratios),
        }

    def _check(self, out: np.ndarray, expected: torch.Tensor, x: torch.Tensor) -> None:
        """Each may err by eps sqrt(degree) sum |w x|; together by twice that."""
        magnitude = (self.matrix @ x.abs()).numpy()
        degree = np.sqrt(np.diff(self.graph.indptr))[:, None]
        allowed = 2 * np.finfo(np.float32).eps * degree * magnitude
        wrong = int((np.abs(out - expected.numpy()) > allowed).sum())
        if wrong:
            raise AssertionError(f"aggregation differs from torch's in {wrong} values")


def _milliseconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
