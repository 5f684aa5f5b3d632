"""Stochastic Kronecker graphs, and the recursive-matrix graphs of Graph500 among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import native
from ..graph import index_dtype
from ..streams import Imported
from .drawn import MOST_NODES, Drawn, DrawnEdges, Ends
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
    return _draw(
        f"rmat{scale}",
        2,
        ends,
        scale,
        edge_factor,
        seed,
        symmetric=symmetric,
        features=features,
        classes=classes,
    )


def draw_kronecker(
    scale: int,
    edge_factor: int,
    seed: int,
    *,
    initiator: Sequence[float],
    symmetric: bool = True,
    features: int = 0,
    classes: int = 0,
) -> Drawn:
    """Draw a stochastic Kronecker graph (Leskovec et al., JMLR 11, 2010).

    initiator: k x k cells, k = 2 or 3, row (source) by row; only their ratios count. k**scale nodes and ``edge_factor``
    times as many edges, each of which falls into a cell of the initiator, then into one of that cell's, and so on,
    ``scale`` times (the paper's section 3.6). The rest is as with ``draw_rmat``, which has the cells a, b, c and d.
    """
    base = math.isqrt(len(initiator))
    if base not in (2, 3) or base * base != len(initiator):
        raise InputError(
            f"an initiator of {len(initiator)} numbers; expected 4 (2 x 2 cells) or 9 (3 x 3 cells)"
        )
    cells = np.asarray(initiator, dtype=np.float64)
    with np.errstate(over="ignore"):
        total = float(cells.sum())
    if not (cells.min() >= 0 and 0 < total < math.inf):
        raise InputError(
            f"the initiator {', '.join(map(str, initiator))}: expected finite numbers with a finite sum, none of them "
            "negative, and not all 0"
        )
    if not (scale >= 0 and base**scale <= MOST_NODES) or edge_factor < 0:
        raise InputError(
            f"{base}**{scale} nodes and edge factor {edge_factor}: expected 2**40 nodes at most, and 0 or more"
        )
    ends = [end / total for end in accumulate(cells[:-1].tolist())]
    return _draw(
        f"kronecker{scale}",
        base,
        ends,
        scale,
        edge_factor,
        seed,
        symmetric=symmetric,
        features=features,
        classes=classes,
    )


def _draw(
    name: str,
    base: int,
    ends: Sequence[float],
    levels: int,
    edge_factor: int,
    seed: int,
    *,
    symmetric: bool,
    features: int,
    classes: int,
) -> Drawn:
    """Draw a graph of base**levels nodes. ends: those of the initiator's cells but the last, in the unit interval."""
    nodes, total = base**levels, edge_factor * base**levels
    draws, rows = random_rows(
        behind(seed, total * levels),
        nodes,
        features=features,
        classes=classes,
        before=[partial(_names, nodes)],
    )
    names = cache(lambda: np.concatenate(list(draws.pieces(0))))
    edges = DrawnEdges(name, nodes, total, partial(_edges, seed, ends, levels, names))
    held = nodes * index_dtype(nodes)().itemsize + held_for(nodes, classes)
    return Drawn(Imported(name, edges, rows, classes), symmetric, total, held)


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
    native.load().kronecker_edges(
        state["key"], state["counter"], low * levels, levels, bounds, given, sources, destinations
    )
    return sources, destinations
