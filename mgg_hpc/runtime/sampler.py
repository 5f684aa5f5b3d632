"""Neighbour sampling without replacement (Hamilton, Ying and Leskovec, NeurIPS 2017), and gathers of sparse rows.

The sample of a row depends only on the seed, the step, the hop and the original id of its node (Philox4x32-10, see
semantics.h), so a batch is the same on any number of threads and ranks. `tests/reference.py` draws the same a second
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import native


@dataclass(frozen=True, eq=False)
class Hop:
    """Sampled in-edges of the first d rows of `Sampled.nodes`.

    indptr: int64 [d + 1]. indices: int32 [E], indices of the sources in `Sampled.nodes`. factor: float64, 1 /
    p(sampled) of each edge [E] where edges are drawn by their weights; of each row [d] where they are drawn uniformly.
    edge: int64 [E], indices into the graph's CSR, or None.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    factor: NDArray[np.float64]
    edge: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Sampled:
    """A sample. nodes: int64, its rows in the order in which they were found, seeds first. hops: from the seeds on."""

    nodes: NDArray[np.int64]
    hops: list[Hop]


class Sampler:
    """Draws in-edges of a graph; several threads may call it at a time.

    indptr: int64 [N + 1], indices: int32 or int64 [E], an in-edge CSR of checked indices. weight: float32 [E], to which
    probabilities of edges are proportional; edges of weight 0 are never drawn. [default: edges are drawn uniformly]
    ids: int64 [N], original ids of the rows. [default: their numbers] Raises ValueError for arrays that do not fit, and
    for weights that are negative or not finite.

    Attributes: indptr, indices, weight, ids, as given. device_bytes: of a GPU's memory, 0 on the host. scratch_bytes:
    most that a call has needed there so far. place: description of what draws, and why no GPU does.
    """

    device_bytes = scratch_bytes = 0
    place = "CPU"

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.integer],
        *,
        weight: NDArray[np.floating] | None = None,
        ids: NDArray[np.int64] | None = None,
    ) -> None:
        module: Any = native.load()
        kind = module.Sampler32 if indices.dtype == np.int32 else module.Sampler64
        self._native = kind(indptr, indices, weight, ids)
        self.indptr, self.indices, self.weight, self.ids = indptr, indices, weight, ids

    def sample(
        self,
        seeds: NDArray[np.int64],
        fanouts: Sequence[int],
        *,
        seed: int,
        step: int,
        edges: bool = False,
        on_host: bool = False,
    ) -> Sampled:
        """Return sampled in-edges of ``seeds``, then of all rows found so far, and so on: a hop for each fanout.

        seeds: int64 [n], distinct rows. fanouts: number of edges to draw of each row, -1 for all; of a row with fewer
        edges all are taken. Uniformly: each set of so many edges is as likely as any other (Floyd's algorithm). By
        weights: the edges with the smallest Exp(1) / weight (Efraimidis and Spirakis, IPL 2006), whose factors are
        Cohen and Kaplan's (PODC 2007, rank conditioning); edges of weight 0 are left out also where all are taken.
        seed: 0 .. 2^64 - 1. step: 0 .. 2^32 - 2. edges: return `Hop.edge`. on_host: draw on the host, even if a
        GPU has the graph too. Raises ValueError for rows that are not there or come twice, and for other fanouts.
        """
        draw = Sampler._sampled if on_host else type(self)._sampled
        return draw(self, seeds, list(fanouts), seed, step, edges)

    def _sampled(self, seeds: NDArray[np.int64], fanouts: list[int], *how: int) -> Sampled:
        """Return what `sample` does. how: seed, step, edges."""
        nodes, hops = self._native.sample(seeds, fanouts, *how)
        return Sampled(nodes, [Hop(*hop) for hop in hops])

    def close(self) -> None:
        """Let go of the graph's arrays, and of their copies. No thread may sample then or later."""
        vars(self).clear()


def shuffled(ids: NDArray[np.int64], seed: int, epoch: int, threads: int = 1) -> NDArray[np.int64]:
    """Return a permutation of 0 .. n - 1, int64 [n], that sorts ids [n] by draws of (seed, epoch, id).

    epoch: 1 .. 2^32 - 1. threads: number of threads that draw. Raises ValueError for another epoch. Memory: 40 bytes
    an id.
    """
    order: NDArray[np.int64] = native.load().shuffled(ids, seed, epoch, threads)
    return order


def take_csr(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    values: NDArray[np.floating],
    rows: NDArray[np.int64],
    *,
    threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.floating]]:
    """Return rows of a CSR matrix, in the order of ``rows``, which may repeat.

    indptr: int64 [N + 1]. indices: int32 [nnz]. values: float32 or float64 [nnz]. rows: int64 [n]. The result has the
    same form, of n rows. threads: number of threads that share a large copy. Raises ValueError for a row that is not
    there.
    """
    module: Any = native.load()
    out_indptr = np.empty(len(rows) + 1, np.int64)
    module.csr_offsets(indptr, len(indices), rows, out_indptr)
    out_indices = np.empty(int(out_indptr[-1]), np.int32)
    out_values = np.empty(len(out_indices), values.dtype)
    copy = getattr(module, f"gather_csr_{values.dtype.name}")
    copy(indptr, indices, values, rows, out_indptr, out_indices, out_values, threads)
    return out_indptr, out_indices, out_values
