"""Expected degrees that a few published numbers determine, and the weights with which a simple graph has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

TAIL = 0.01  # share of the nodes that the power law of the tail describes
SINGLE = 64  # ranks that are groups of their own
STEPS = 32  # groups while ranks grow e times larger
TURNS, CLOSE = 60, 1e-3  # of the search for weights: most of them, and how near to the degrees is near enough

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Degrees:
    """A distribution of degrees: a lognormal body, above it a power law.

    mean, maximum: of ``nodes`` nodes. median: of the body; with None there is no power law, and the lognormal is the
    one that has this mean and whose largest of ``nodes`` values is the maximum.
    """

    nodes: int
    mean: float
    maximum: float
    median: float | None = None

    def quantile(self, above: Floats) -> Floats:
        """Return the degree that a share ``above`` of the nodes has, or more."""
        return self._values(self._sigma, above)

    @cached_property
    def _sigma(self) -> float:
        """Standard deviation of the logarithms in the body, by bisection."""
        low, high = 0.0, 4.0 if self.median else self._farthest
        starts, ends = groups(self.nodes)
        middle, share = ((starts + ends) / 2) / self.nodes, (ends - starts) / self.nodes
        for _ in range(50):
            sigma = (low + high) / 2
            mean = float(self._values(sigma, middle) @ share)
            # A wider body has a larger mean about its median; about the maximum, which lies far above, a smaller one.
            if (mean < self.mean) == (self.median is not None):
                low = sigma
            else:
                high = sigma
        return (low + high) / 2

    @property
    def _farthest(self) -> float:
        """Standard deviations from the median to the largest of ``nodes`` normal values."""
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
    """Return the first and the last rank plus one of groups of ranks whose degrees differ little, largest first."""
    bounds = list(range(min(SINGLE, count) + 1))
    while bounds[-1] < count:
        bounds.append(min(count, bounds[-1] + max(1, bounds[-1] // STEPS)))
    edges = np.array(bounds, dtype=np.float64)
    return edges[:-1], edges[1:]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of nodes at one end of the edges, within their class and among all nodes.

    quantile: the degree that a share of the nodes has, or more, but for ``factor``, by which degrees are multiplied.
    degrees, weights: of groups of nodes, largest first. inside, room: of an edge's weight a share is for the node's
    class, but for large degrees only so much that the class has ``room``. total_inside, total_outside: of all nodes.
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
        """Return the weights (within the class, among all) of nodes whose degree a share ``above`` has, or more."""
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
    """Return weights of which a simple graph's nodes have these degrees in expectation.

    targets: the quantiles of one distribution (an undirected graph), or of two (out- and in-degrees), each of which is
    multiplied by a factor near 1 so that the nodes have the mean degree. A degree is at most half of the nodes.
    inside, room: as in ``Weights``. Edges are drawn independently, as by Chung and Lu (PNAS 99, 2002); duplicates count
    once, and there are more of them at nodes of large degree. Weights are changed until what is left has the degrees.
    """
    starts, ends = groups(nodes)
    counts, most = ends - starts, max(nodes - 1, 1) / 2
    drawn = [target(((starts + ends) / 2) / nodes) for target in targets]
    factors = [mean * nodes / float(counts @ np.minimum(each, most)) for each in drawn]
    wanted = [np.minimum(factor * each, most) for factor, each in zip(factors, drawn, strict=True)]
    shares = [np.minimum(inside, room / each) for each in wanted]
    weights = [each.copy() for each in wanted]
    for _ in range(TURNS):
        own = [each * share for each, share in zip(weights, shares, strict=True)]
        all_ = [each * (1 - share) for each, share in zip(weights, shares, strict=True)]
        joined = _joined(own, all_, counts, classes)
        found = [joined @ counts - np.diag(joined), joined.T @ counts - np.diag(joined)][: len(targets)]
        ratios = [target / np.maximum(each, 1e-300) for target, each in zip(wanted, found, strict=True)]
        if max(float(np.abs(ratio - 1).max()) for ratio in ratios) < CLOSE:
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
    """Return the probability [K, K] that nodes of two groups are joined, whichever their classes are.

    own, all_: weights [K] within a class and among all nodes, of both ends or of each. counts: nodes of each group.
    """
    near = np.outer(own[0], own[-1]) * (classes / math.sqrt(float(counts @ own[0]) * float(counts @ own[-1])))
    far = np.outer(all_[0], all_[-1]) / math.sqrt(float(counts @ all_[0]) * float(counts @ all_[-1]))
    joined: Floats = -np.expm1(-near - far) / classes - np.expm1(-far) * (1 - 1 / classes)
    return joined
