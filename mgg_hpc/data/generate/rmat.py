"""Recursive-matrix graphs, those of Graph500 among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..graph import index_dtype
from ..streams import Imported
from .drawn import Drawn, DrawnEdges, Ends
from .random_rows import held_for, random_rows
from .random_state import behind


def draw_rmat(
    scale: int,
    edge_factor: int,
    seed: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    symmetric: bool = True,
    features: int = 0,
    classes: int = 0,
) -> Drawn:
    """Draw a recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, SDM '04) with Graph500's probabilities.

    2**scale nodes and ``edge_factor`` times as many drawn edges, whose ends choose a half of the ids bit
    by bit: both low with probability ``a``, a high destination ``b``, a high source ``c``, both high the
    rest. Ids are then shuffled, self loops and duplicates dropped, and reverses added if ``symmetric``.
    ``features`` columns are standard normal float32; labels of ``classes`` classes are uniform, split in
    halves and quarters.
    """
    if not all(each >= 0 for each in (a, b, c, 1.0 - a - b - c)):  # nor are they NaN
        raise InputError(f"the probabilities a={a}, b={b}, c={c} must not be negative nor sum to more than 1")
    if not 0 <= scale <= 40 or edge_factor < 0:
        raise InputError(f"scale {scale} and edge factor {edge_factor}: expected 0 .. 40, and 0 or more")
    ends = [a, a + b, a + b + c]
    nodes, total = 2**scale, edge_factor * 2**scale
    before = [partial(_names, nodes)]
    draws, rows = random_rows(
        behind(seed, total * scale), nodes, features=features, classes=classes, before=before
    )
    names = cache(lambda: np.concatenate(list(draws.pieces(0))))
    edges = DrawnEdges(f"rmat{scale}", nodes, total, partial(_edges, seed, ends, scale, names))
    held = nodes * index_dtype(nodes)().itemsize + held_for(nodes, classes)
    return Drawn(Imported(f"rmat{scale}", edges, rows, classes), symmetric, total, held)


def _names(nodes: int, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    """Draw the id of each node, int32 or int64 [nodes]: with the values of ``rng.permutation``, in half its memory."""
    names = np.arange(nodes, dtype=index_dtype(nodes))
    rng.shuffle(names)
    yield names


def _edges(
    seed: int, ends: Sequence[float], levels: int, names: Callable[[], NDArray[Any]], low: int, high: int
) -> Ends:
    """Draw a block of edges: one double for each level of each edge, level after level.

    They are the doubles that a Generator of Philox(seed) would give, so a block lies behind those before it.
    """
    state = np.random.Philox(seed).state["state"]
    bounds = np.array([math.ceil(min(end, 1.0) * 2**53) for end in ends], dtype=np.uint64)
    given = names()
    sources, destinations = np.empty((2, high - low), given.dtype)
    native.load().rmat_edges(
        state["key"], state["counter"], low * levels, levels, bounds, given, sources, destinations
    )
    return sources, destinations
