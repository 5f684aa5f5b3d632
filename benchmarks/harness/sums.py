"""Compare sums of rows with SciPy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from scipy import sparse

from mgg_hpc.data.graph import Graph

SAMPLE = 1024  # rows whose sums are compared


class Reference:
    """Sums of a graph's rows by SciPy in float64: all of a small graph; else of drawn rows and the largest hub.

    x: [N, dim]. weight: [E]. [default: ones] low, high: destinations whose sums are compared. [default: all]
    """

    def __init__(
        self,
        graph: Graph,
        x: np.ndarray,
        weight: np.ndarray | None = None,
        low: int = 0,
        high: int | None = None,
    ) -> None:
        degree = np.diff(graph.indptr)[low:high]
        self._picked = np.arange(len(degree))
        if len(degree) > SAMPLE:
            drawn = np.random.default_rng(0).integers(len(degree), size=SAMPLE)
            self._picked = np.unique([int(degree.argmax()), *drawn.tolist()])

        def product(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
            shape = (graph.nodes, graph.nodes)
            matrix = sparse.csr_matrix((values, graph.indices, graph.indptr), shape)
            return np.asarray(matrix[low + self._picked] @ rows)

        values = np.ones(graph.edges, np.float32) if weight is None else weight
        self._expected = product(x.astype(np.float64), values)
        # Two right sums lie apart by twice eps sqrt(degree) sum |w x| at most, each one's bound. Half rows, weights and
        # results are rounded to their type: an eps of it is added for each.
        rounding = 3 * float(ml_dtypes.finfo(x.dtype).eps) if x.dtype.itemsize == 2 else 0.0
        each = 2 * (np.finfo(np.float32).eps * np.sqrt(degree[self._picked]) + rounding).astype(np.float32)
        self._limit = product(np.abs(x.astype(np.float32)), np.abs(values)) * each[:, None]

    def differing(self, found: np.ndarray) -> str:
        """Return how many sums [n, dim] differ by more than rounding (a NaN does), in words; "" if none does."""
        near = np.abs(self._expected - found[self._picked]) <= self._limit
        wrong = near.size - int(np.count_nonzero(near))
        return f"{wrong} of {near.size} sums differ" if wrong else ""

    def check(self, name: str, found: np.ndarray) -> None:
        """Raise AssertionError where rows of ``found`` are NaN, or sums differ."""
        if np.isnan(found).any():
            raise AssertionError(f"{name}: some rows were not summed")
        if wrong := self.differing(found):
            raise AssertionError(f"{name}: {wrong}")
