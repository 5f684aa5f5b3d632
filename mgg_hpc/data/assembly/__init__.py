"""Make graph files from streams of edges, in bounded memory: runs, then pieces of rows, then the file."""

from .graph import build_graph
from .work import Progress

__all__ = ["Progress", "build_graph"]
