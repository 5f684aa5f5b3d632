"""Graphs of other libraries: taken from them and given to them, without importing those libraries first."""

from .giving import to_dgl, to_pyg, to_scipy
from .saving import save
from .taking import from_dgl, from_networkx, from_pyg, from_scipy

__all__ = [
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "save",
    "to_dgl",
    "to_pyg",
    "to_scipy",
]
