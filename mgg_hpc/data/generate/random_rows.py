"""Features and labels that have nothing to do with the edges."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import schema
from ..graph import index_dtype
from ..streams import Rows
from .drawn import Draws, Step, spans, split_rows


def random_rows(
    rng: np.random.Generator, nodes: int, *, features: int, classes: int, before: Sequence[Step] = ()
) -> tuple[Draws, dict[str, Rows]]:
    """Return what ``rng`` draws, and datasets of nodes by their paths among it.

    before: what is drawn before. ``features`` columns are standard normal float32. Labels of ``classes`` classes are
    uniform; half of the nodes are for training, a quarter for validation, the rest for testing. 0: without.
    """

    def draw_features(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low, high in spans(nodes, 4 * features):
            yield rng.standard_normal((high - low, features), dtype=np.float32)

    def draw_split(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        parts = np.full(nodes, 2, np.uint8)
        order = np.arange(nodes, dtype=index_dtype(nodes))
        rng.shuffle(order)
        parts[order[: nodes // 2]], parts[order[nodes // 2 : 3 * nodes // 4]] = 0, 1
        yield parts

    def draw_labels(rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        for low, high in spans(nodes, 8):
            yield rng.integers(classes, size=high - low)

    draws = Draws(rng, [*before, *([draw_features] if features else []), draw_split, draw_labels])
    split = len(before) + bool(features)
    rows = {}
    if features:
        layout = schema.Layout(schema.FLOAT32, (nodes, features))
        rows[schema.X] = Rows(layout, lambda: draws.pieces(split - 1))
    if classes:
        parts = functools.cache(lambda: np.concatenate(list(draws.pieces(split))))
        rows |= split_rows(nodes, lambda low, high: parts()[low:high])
        rows[schema.Y] = Rows(schema.Layout(schema.INT64, (nodes,)), lambda: draws.pieces(split + 1))
    return draws, rows


def held_for(nodes: int, classes: int) -> int:
    """Return the bytes that ``random_rows`` takes while the split is drawn."""
    return nodes * (index_dtype(nodes)().itemsize + 1) if classes else 0
