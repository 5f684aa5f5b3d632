"""Write graphs of other libraries as graph files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..graph import Graph
from ..writer import write
from .taking import from_dgl, from_networkx, from_pyg, from_scipy

TAKERS: dict[str, Callable[[Any], Graph]] = {
    "torch_geometric": from_pyg,
    "dgl": from_dgl,
    "networkx": from_networkx,
    "scipy": from_scipy,
}


def save(graph: Any, path: str | os.PathLike[str], *, force: bool = False, name: str | None = None) -> None:
    """Write a graph as a graph file: of this package, a PyG Data, a DGL or networkx graph, or a SciPy sparse matrix.

    force: whether to replace a file. name: the graph's. [default: its own, or the file's] Raises InputError for other
    objects, and where the file cannot be written.
    """
    taken = graph if isinstance(graph, Graph) else _taker(graph)(graph)
    own = taken.name if isinstance(graph, Graph) else Path(path).stem
    write(path, replace(taken, name=own if name is None else name), force=force)


def _taker(graph: Any) -> Callable[[Any], Graph]:
    """Return the function that takes a graph of the library which its class, or one that it is made of, is from."""
    for base in type(graph).__mro__:
        found = TAKERS.get(base.__module__.partition(".")[0])
        if found is not None:
            return found
    raise InputError(
        f"save: got {type(graph).__name__}; expected a Graph, a PyG Data, a DGL or networkx graph, or a SciPy matrix"
    )
