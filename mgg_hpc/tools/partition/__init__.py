"""`mgg partition`: divide the rows of a graph file among ranks, and renumber them."""

from .process import process_partition

__all__ = ["process_partition"]
