"""`mgg partition`: divide the rows of a graph file among ranks, renumber them, and compare ways to do so."""

from .process import process_partition
from .verb import process_verb

__all__ = ["process_partition", "process_verb"]
