"""Graphs of other libraries: taken from them and given to them, without importing those libraries first."""

from .taking import from_dgl, from_networkx, from_pyg, from_scipy

__all__ = ["from_dgl", "from_networkx", "from_pyg", "from_scipy"]
