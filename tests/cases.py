"""The hard cases that every backend passes: small graphs of awkward shape, and the widths to run them at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import reference

WIDTHS = [1, 7, 16, 31, 32, 33, 127, 128, 129, 513]


@dataclass(frozen=True)
class Case:
    """A directed graph as sorted in-edge CSR, and row bounds [P + 1]."""

    indptr: np.ndarray
    indices: np.ndarray
    bounds: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_list(self) -> tuple[np.ndarray, np.ndarray]:
        """(sources, destinations) of all edges."""
        return reference.edge_list(self.indptr, self.indices)

    def rows(self, rank: int) -> slice:
        """Which rows a rank owns."""
        return slice(int(self.bounds[rank]), int(self.bounds[rank + 1]))

    def part(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, indices) of one rank's rows."""
        low, high = self.bounds[rank], self.bounds[rank + 1]
        start, end = self.indptr[low], self.indptr[high]
        return self.indptr[low : high + 1] - start, self.indices[start:end]

    def edges(self, rank: int) -> slice:
        """Where a rank's edges lie among all."""
        return slice(int(self.indptr[self.bounds[rank]]), int(self.indptr[self.bounds[rank + 1]]))


def csr(source: np.ndarray, destination: np.ndarray, nodes: int, bounds: np.ndarray) -> Case:
    order = np.lexsort((source, destination))
    counts = np.bincount(destination, minlength=nodes) if len(destination) else np.zeros(nodes, np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Case(indptr, source[order].astype(np.int32), bounds.astype(np.int64))


def even(nodes: int, ranks: int) -> np.ndarray:
    return np.arange(ranks + 1) * nodes // ranks


def _random(rng, nodes, edges):
    return rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)


def ordinary(rng, ranks):
    return csr(*_random(rng, 97, 700), 97, even(97, ranks))


def empty_rows(rng, ranks):
    """Two thirds of the rows have no edges, the first and the last among them."""
    source, destination = _random(rng, 90, 300)
    return csr(source, destination // 3 * 3 + 1, 90, even(90, ranks))


def rank_without_rows(rng, ranks):
    """With two ranks the second owns all; with more the first and the last own nothing."""
    bounds = even(60, ranks)
    if ranks > 1:
        bounds[1] = 0
    if ranks > 2:
        bounds[-2] = 60
    return csr(*_random(rng, 60, 400), 60, bounds)


def all_remote(rng, ranks):
    """No edge has both ends on one rank (with one rank: all have)."""
    bounds = even(80, ranks)
    source, destination = _random(rng, 80, 600)
    owner = np.searchsorted(bounds, source, side="right") - 1
    mine = np.searchsorted(bounds, destination, side="right") - 1
    keep = (owner != mine) | (ranks == 1)
    return csr(source[keep], destination[keep], 80, bounds)


def one_way(rng, ranks):
    """Every remote edge comes from a lower rank: the first only sends, the last only receives."""
    bounds = even(70, ranks)
    source, destination = _random(rng, 70, 500)
    owner = np.searchsorted(bounds, source, side="right")
    mine = np.searchsorted(bounds, destination, side="right")
    keep = owner <= mine
    return csr(source[keep], destination[keep], 70, bounds)


def hub(rng, ranks):
    """One node receives half of all edges, many more than a schedule's block; every fourth fifty or so."""
    source, destination = _random(rng, 120, 3000)
    of_hub = rng.random(3000) < 0.5
    return csr(source, np.where(of_hub, 71, destination // 4 * 4), 120, even(120, ranks))


def duplicates(rng, ranks):
    """Every edge three times."""
    source, destination = _random(rng, 50, 150)
    return csr(np.tile(source, 3), np.tile(destination, 3), 50, even(50, ranks))


def self_loops(rng, ranks):
    """Every node points to itself, and some twice."""
    source, destination = _random(rng, 40, 100)
    loops = np.concatenate([np.arange(40), np.arange(0, 40, 3)])
    return csr(np.append(source, loops), np.append(destination, loops), 40, even(40, ranks))


def one_node(rng, ranks):
    """A single node with a loop: all ranks but one own nothing."""
    return csr(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, even(1, ranks))


def no_edges(rng, ranks):
    nothing = np.zeros(0, np.int64)
    return csr(nothing, nothing, 33, even(33, ranks))


def no_nodes(rng, ranks):
    nothing = np.zeros(0, np.int64)
    return csr(nothing, nothing, 0, even(0, ranks))


CASES: dict[str, Callable[[np.random.Generator, int], Case]] = {
    make.__name__: make
    for make in (
        ordinary,
        empty_rows,
        rank_without_rows,
        all_remote,
        one_way,
        hub,
        duplicates,
        self_loops,
        one_node,
        no_edges,
        no_nodes,
    )
}


def without_half(rng: np.random.Generator) -> str:
    """What chooses tests (pytest -k) that have to do with the other half of the cases, or with none."""
    left_out = rng.permutation(list(CASES))[: len(CASES) // 2]
    return " and ".join(f"not {name}" for name in left_out)
