"""Synthetic graphs. The same seed gives the same graph on every machine.

``draw_*`` return a stream of any size; `rmat` and `sbm` return a graph in memory.
"""

from __future__ import annotations

from typing import Any

from ..graph import Graph
from .drawn import Drawn, DrawnEdges
from .like import draw_like
from .random_graphs import draw_grid, draw_rmat, draw_uniform
from .sbm import draw_sbm

__all__ = [
    "Drawn",
    "DrawnEdges",
    "draw_grid",
    "draw_like",
    "draw_rmat",
    "draw_sbm",
    "draw_uniform",
    "rmat",
    "sbm",
]


def rmat(scale: int, edge_factor: int, seed: int, **options: Any) -> Graph:
    """Return the graph of `draw_rmat` in memory."""
    return draw_rmat(scale, edge_factor, seed, **options).graph()


def sbm(nodes: int, **options: Any) -> Graph:
    """Return the graph of `draw_sbm` in memory."""
    return draw_sbm(nodes, **options).graph()
