"""Tables from which nodes are drawn in proportion to their weights, in constant time (Walker's alias method)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .degrees import Floats, Weights, groups

# As native code takes it: (limit, alias) of all columns for edges among all nodes, then for those within a class;
# (limit, alias) of each class's columns for the latter; first rows, numbers of rows.
Table = tuple[NDArray[Any], ...]


def table_of(nodes: int, classes: int, weights: Weights) -> Table:
    """Return the table of a graph's nodes, whose ranks are dealt to the classes in turn.

    A column is a group of rows of a class that are equally likely; its rows r are the ranks r * classes + c.
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
    """Return an alias table (Vose, IEEE Transactions on Software Engineering 17, 1991).

    A column is chosen uniformly, and kept with a probability of (limit + 1) / 2**64; else it is its alias.
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
    for column in (*small, *large):  # what rounding has left is full
        kept[column] = 1.0
    limit = np.array([min(int(each * 2**64), 2**64 - 1) for each in kept], dtype=np.uint64)
    return limit, np.array(other, dtype=np.uint32)
