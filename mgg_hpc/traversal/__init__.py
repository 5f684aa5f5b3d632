"""Breadth-first search, shortest paths, connected components and PageRank of graph files, on any number of ranks."""
