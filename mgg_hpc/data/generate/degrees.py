"""Distributions of degrees from a few published numbers, weights of nodes for them, and tables to draw nodes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAIL = 0.01  # share of the nodes in the power-law tail
SINGLE = 64  # number of the first ranks that are groups by themselves
STEPS = 32  # groups per factor e of the rank
ITERATIONS, TOLERANCE = 60, 1e-3  # of the search for weights; tolerance relative to the degrees

Floats = NDArray[np.float64]
# As native code takes it: (limit, alias) of all columns for edges among all nodes, then for edges within a class;
# (limit, alias) of each class's columns for the latter; first rows, numbers of rows.
Table = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Degrees:
    """A distribution of degrees: a lognormal body with a power-law tail.

    mean, maximum: of the degrees of ``nodes`` nodes. median: of the body. Without a median there is no tail, and the
    lognormal has this mean and an expected largest value of ``maximum``.
    """

    nodes: int
    mean: float
    maximum: float
    median: float | None = None

    def quantile(self, above: Floats) -> Floats:
        """Return the degree that a share ``above`` of the nodes reaches or exceeds."""
        return self._values(self._sigma, above)

    @cached_property
    def _sigma(self) -> float:
        """Standard deviation of the logarithm of the body, found by bisection."""
        low, high = 0.0, 4.0 if self.median else self._farthest
        starts, ends = groups(self.nodes)
        middle, share = ((starts + ends) / 2) / self.nodes, (ends - starts) / self.nodes
        for _ in range(50):
            sigma = (low + high) / 2
            mean = float(self._values(sigma, middle) @ share)
            # A wider body has a larger mean if its median is fixed, and a smaller one if its maximum is.
            if (mean < self.mean) == (self.median is not None):
                low = sigma
            else:
                high = sigma
        return (low + high) / 2

    @property
    def _farthest(self) -> float:
        """Expected largest of ``nodes`` standard normal values."""
        return -NormalDist().inv_cdf(0.5 / self.nodes)

    def _values(self, sigma: float, above: Floats) -> Floats:
        centre = math.log(self.median) if self.median else math.log(self.maximum) - sigma * self._farthest
        normal = np.array([-NormalDist().inv_cdf(each) for each in above.tolist()])
        body = np.exp(centre + sigma * normal)
        if not self.median:
            return np.minimum(body, self.maximum)
        start = min(math.exp(centre - sigma * NormalDist().inv_cdf(TAIL)), self.maximum)
        steepness = math.log(self.maximum / start) / math.log(TAIL * 2 * self.nodes)
        tail = start * (np.minimum(above, TAIL) / TAIL) ** -steepness
        return np.where(above < TAIL, np.minimum(tail, self.maximum), np.minimum(body, start))


def groups(count: int) -> tuple[Floats, Floats]:
    """Return first ranks, and last ranks + 1, of groups of ranks with similar degrees; rank 0 is the largest."""
    bounds = list(range(min(SINGLE, count) + 1))
    while bounds[-1] < count:
        bounds.append(min(count, bounds[-1] + max(1, bounds[-1] // STEPS)))
    edges = np.array(bounds, dtype=np.float64)
    return edges[:-1], edges[1:]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of nodes as one end of an edge, for edges within a class and among all nodes.

    Attributes:
        quantile: the degree that a share of the nodes reaches or exceeds, before it is multiplied by ``factor``.
        degrees, weights: of groups of nodes, largest first.
        inside, room: share of a node's weight for edges within its class, but at most ``room`` / degree.
        total_inside, total_outside: sums of the weights of all nodes.
    """

    quantile: Callable[[Floats], Floats]
    factor: float
    degrees: Floats
    weights: Floats
    inside: float
    room: float
    total_inside: float
    total_outside: float

    def __call__(self, above: Floats) -> tuple[Floats, Floats]:
        """Return weights (within the class, among all) of nodes with degree ``quantile(above)``."""
        degrees = self.factor * self.quantile(above)
        ratio = np.interp(degrees, self.degrees[::-1], (self.weights / self.degrees)[::-1])
        weights = np.minimum(degrees, self.degrees[0]) * ratio
        shares = np.minimum(self.inside, self.room / degrees)
        return weights * shares, weights * (1 - shares)


def fitted(
    nodes: int,
    classes: int,
    *,
    inside: float,
    room: float,
    mean: float,
    targets: Sequence[Callable[[Floats], Floats]],
) -> list[Weights]:
    """Return weights with which the nodes of a simple graph have these expected degrees.

    Edges are drawn independently in proportion to the weights (Chung and Lu, PNAS 99, 2002). Duplicates, which are
    dropped, are more frequent at nodes of large degree, so the weights are iterated until the remaining edges have the
    degrees. A degree is at most half of the nodes.

    Args:
        inside, room: as in `Weights`.
        mean: mean degree, for which quantiles are multiplied by a factor near 1.
        targets: quantiles of one distribution (undirected graph) or of two (out- and in-degrees).
    """
    starts, ends = groups(nodes)
    counts, most = ends - starts, max(nodes - 1, 1) / 2
    drawn = [target(((starts + ends) / 2) / nodes) for target in targets]
    factors = [mean * nodes / float(counts @ np.minimum(each, most)) for each in drawn]
    wanted = [np.minimum(factor * each, most) for factor, each in zip(factors, drawn, strict=True)]
    shares = [np.minimum(inside, room / each) for each in wanted]
    weights = [each.copy() for each in wanted]
    for _ in range(ITERATIONS):
        own = [each * share for each, share in zip(weights, shares, strict=True)]
        all_ = [each * (1 - share) for each, share in zip(weights, shares, strict=True)]
        joined = _joined(own, all_, counts, classes)
        found = [joined @ counts - np.diag(joined), joined.T @ counts - np.diag(joined)][: len(targets)]
        ratios = [target / np.maximum(each, 1e-300) for target, each in zip(wanted, found, strict=True)]
        if max(float(np.abs(ratio - 1).max()) for ratio in ratios) < TOLERANCE:
            break
        weights = [each * np.clip(ratio, 0.5, 2) for each, ratio in zip(weights, ratios, strict=True)]
    totals = [(float(counts @ mine), float(counts @ others)) for mine, others in zip(own, all_, strict=True)]
    return [
        Weights(target, factor, degrees, each, inside, room, *total)
        for target, factor, degrees, each, total in zip(
            targets, factors, wanted, weights, totals, strict=True
        )
    ]


def _joined(own: Sequence[Floats], all_: Sequence[Floats], counts: Floats, classes: int) -> Floats:
    """Return the probability [K, K] that nodes of two groups are joined, averaged over their classes.

    own, all_: weights [K] within a class and among all nodes, for both ends or for each. counts: nodes of each group.
    """
    near = np.outer(own[0], own[-1]) * (classes / math.sqrt(float(counts @ own[0]) * float(counts @ own[-1])))
    far = np.outer(all_[0], all_[-1]) / math.sqrt(float(counts @ all_[0]) * float(counts @ all_[-1]))
    joined: Floats = -np.expm1(-near - far) / classes - np.expm1(-far) * (1 - 1 / classes)
    return joined


# --- alias tables


def table_of(nodes: int, classes: int, weights: Weights) -> Table:
    """Return the table to draw nodes from; rank r belongs to class r modulo ``classes``.

    A column is a group of rows of a class that are equally likely; row r of class c is rank r * classes + c.
    """
    starts, ends = groups(-(-nodes // classes))
    label = np.arange(classes, dtype=np.float64)[:, None]
    rows = (nodes - label - 1) // classes + 1  # of each class
    sizes = np.clip(np.minimum(ends, rows) - starts, 0, None)
    middle = (starts + (np.maximum(sizes, 1) - 1) / 2) * classes + label
    ranks = np.minimum((middle + 0.5) / nodes, 1 - 0.5 / nodes)
    inside, outside = (sizes * each.reshape(sizes.shape) for each in weights(ranks.reshape(-1)))
    limits, others = zip(*map(alias, inside), strict=True)
    first = np.minimum(starts, rows - 1).reshape(-1).astype(np.int64)
    own = np.concatenate(limits), np.concatenate(others)
    both = (*alias(outside.reshape(-1)), *alias(inside.reshape(-1)))
    return (*both, *own, first, sizes.reshape(-1).astype(np.int64))


def alias(mass: Floats) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return an alias table: limits and aliases (Vose, IEEE Transactions on Software Engineering 17, 1991).

    A draw takes a column uniformly, keeps it with probability (limit + 1) / 2**64, and else takes its alias.
    """
    kept = (mass * (len(mass) / mass.sum())).tolist()
    other = list(range(len(kept)))
    small = [column for column, each in enumerate(kept) if each < 1]
    large = [column for column, each in enumerate(kept) if each >= 1]
    while small and large:
        column, donor = small.pop(), large[-1]
        other[column] = donor
        kept[donor] -= 1 - kept[column]
        if kept[donor] < 1:
            small.append(large.pop())
    for column in (*small, *large):  # left over by rounding
        kept[column] = 1.0
    limit = np.array([min(int(each * 2**64), 2**64 - 1) for each in kept], dtype=np.uint64)
    return limit, np.array(other, dtype=np.uint32)
