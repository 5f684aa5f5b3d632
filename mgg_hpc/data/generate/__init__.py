"""Synthetic graphs, seeded: the same seed gives the same graph on every machine.

``draw_*`` give a graph piece by piece, of any size; ``rmat`` and ``sbm`` the whole of a small one in memory.
"""

from __future__ import annotations

from typing import Any

from ..graph import Graph
from .drawn import Drawn, DrawnEdges
from .like import draw_like
from .rmat import draw_rmat
from .sbm import draw_sbm
from .uniform import draw_grid, draw_uniform

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
    """Return the graph of ``draw_rmat``."""
    return draw_rmat(scale, edge_factor, seed, **options).graph()


def sbm(nodes: int, **options: Any) -> Graph:
    """Return the graph of ``draw_sbm``."""
    return draw_sbm(nodes, **options).graph()
