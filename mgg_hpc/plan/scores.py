"""Scores of nodes by how often mini-batches will read their rows, computed before training.

Rows with the highest scores belong into the nearest memory (data tiering: Min, "Fine-grained memory access over I/O
interconnect for efficient remote sparse data access", dissertation, University of Illinois, 2022, chapter 4). Each is a
few steps of one operation, ``pull``: pull(f)[u] = sum of f[v] over the edges u -> v, the transposed aggregation of
values [n] or [n, k].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..data import native
from ..errors import InputError

Values = NDArray[np.float64]
Pull = Callable[[Values], Values]
Total = Callable[[float], float]

DAMPING = 0.85
TRAINING_STEPS = 5  # of `training_pagerank`
MOST_STEPS, TOLERANCE = 200, 1e-6
GROUPS = 4  # of training nodes, in `visits`
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiples spread evenly (Knuth)


def puller(
    rows: int, blocks: Callable[[], Iterable[tuple[int, NDArray[np.int64], NDArray[np.integer]]]]
) -> Pull:
    """Return the ``pull`` of a graph that is read block by block.

    rows: N. blocks: called for each pull; yields the first row, indptr int64 [n + 1] from 0, and sources [e] of the
    in-edges of consecutive rows. Raises InputError if the native module does not load.
    """
    module = native.load()

    def pull(values: Values) -> Values:
        out, columns = np.zeros((rows, *values.shape[1:])), math.prod(values.shape[1:])
        for first, indptr, sources in blocks():
            part = values[first : first + len(indptr) - 1].reshape(-1)
            module.pull(indptr, np.ascontiguousarray(sources), part, columns, out.reshape(-1))
        return out

    return pull


def out_degree(pull: Pull, nodes: int) -> Values:
    """Return the number of out-edges of each of ``nodes`` rows: in how many neighbourhoods a node is."""
    return pull(np.ones(nodes))


def reverse_pagerank(
    pull: Pull, in_degree: NDArray[np.integer], *, total: Total = float, damping: float = DAMPING
) -> Values:
    """Return score[u] = (1 - d) / N + d * sum of score[v] / in_degree[v] over edges u -> v, to convergence.

    in_degree: [n] of these rows. total: sums a number over all ranks. Steps end where the scores change by less than
    TOLERANCE in all. Min, section 4.2.
    """
    nodes = total(float(len(in_degree)))
    score = np.full(len(in_degree), 1 / max(1.0, nodes))
    for _ in range(MOST_STEPS):
        before, score = score, _step(pull, score, in_degree, nodes, damping)
        if total(float(np.abs(score - before).sum())) < TOLERANCE:
            break
    return score


def training_pagerank(
    pull: Pull,
    in_degree: NDArray[np.integer],
    train: NDArray[np.bool_],
    *,
    total: Total = float,
    damping: float = DAMPING,
) -> Values:
    """Return reverse PageRank after TRAINING_STEPS steps from 1 / N, and from 1 / |train| at training nodes.

    The other terms are those of `reverse_pagerank`. train: [n], whether rows are training nodes. Min, Algorithm 2.
    Raises InputError without training nodes.
    """
    nodes = total(float(len(in_degree)))
    score = np.where(train, 1 / _count(train, total), 1 / max(1.0, nodes))
    for _ in range(TRAINING_STEPS):
        score = _step(pull, score, in_degree, nodes, damping)
    return score


def _step(pull: Pull, score: Values, in_degree: NDArray[np.integer], nodes: float, damping: float) -> Values:
    return (1 - damping) / nodes + damping * pull(score / np.maximum(in_degree, 1))


def visits(
    pull: Pull,
    in_degree: NDArray[np.integer],
    train: NDArray[np.bool_],
    fanouts: Sequence[int],
    batch: int,
    *,
    ids: NDArray[np.int64],
    total: Total = float,
) -> Values:
    """Return the probability that a batch reads each row (vertex-inclusion probability; SALIENT++, MLSys '23).

    A batch begins with training nodes. Each hop draws ``fanout`` in-edges of all rows met so far, as the sampler does:
    p'(u) = 1 - (1 - p(u)) * product of 1 - min(1, fanout / in_degree(v)) p(v) over edges u -> v, as if draws were
    independent. They are not where neighbours are met together, because one training node is in the batch. So a batch
    is taken to be from one of GROUPS parts of the training nodes, of each as likely as it is large.

    fanouts: as train.fanouts, -1 for all edges. batch: number of training nodes in a batch. ids: [n], the user's
    numbers of these rows, by which training nodes are divided. Raises InputError without training nodes.
    """
    count = _count(train, total)
    groups = min(GROUPS, -(-int(count) // batch))  # no more than batches of an epoch
    group = (ids.astype(np.uint64) * GOLDEN >> np.uint64(32)) % np.uint64(groups)
    chosen = train[:, None] & (group[:, None] == np.arange(groups, dtype=np.uint64))
    nodes = np.array([total(float(each)) for each in np.count_nonzero(chosen, axis=0)])
    read = chosen * np.minimum(1.0, batch / np.maximum(nodes, 1))
    for fanout in fanouts:
        drawn = np.ones(len(read)) if fanout < 0 else np.minimum(1.0, fanout / np.maximum(in_degree, 1))
        read = -np.expm1(_missed(read) + pull(_missed(drawn[:, None] * read)))
    return read @ (nodes / count)


def _missed(chance: Values) -> Values:
    """Return the logarithm of one minus a chance, finite also for 1: infinities in a sum over ranks may become NaN."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log1p(-chance), -745.0)


def _count(train: NDArray[np.bool_], total: Total) -> float:
    """Return the number of training nodes of all ranks. Raises InputError if there are none."""
    count = total(float(np.count_nonzero(train)))
    if not count:
        raise InputError(
            "a score of training nodes is asked for, and the graph has none: give it a split (train)"
        )
    return count


def order(score: NDArray[np.floating] | NDArray[np.integer]) -> NDArray[np.int64]:
    """Return rows by descending score; rows of one score keep their order. int64 [N]."""
    backwards = np.argsort(score[::-1], kind="stable")[::-1]  # numbers without a sign cannot be negated
    return (len(score) - 1 - backwards).astype(np.int64, copy=False)
