"""Edges as an array of NumPy (.npy): integers [2, E], sources and destinations, or [E, 2]."""

from __future__ import annotations

from pathlib import Path

from ..edge_stream import Imported
from . import npy
from .arrays.edges import PairedEdges, pair_of


def open_edge_arrays(path: Path, *, nodes: int | None = None, counted: str = "") -> Imported:
    """Open an array of edges as a stream; whether it is undirected is for the build to find out.

    nodes: their number. [default: the largest id plus one] counted: where it is from, for messages.

    Raises InputError for an array of another type or shape; reading raises it for a negative id.
    """
    edges = npy.open_array(path)
    name = path.name.removesuffix(".npy") or "graph"
    return Imported(name, PairedEdges(str(path), pair_of(edges), nodes, counted=counted), directed=None)
