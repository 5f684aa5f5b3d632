"""Traversals on GPUs: where lists of edges lie (places.py), values that cross (crossing.py), and steps (graph.py)."""
