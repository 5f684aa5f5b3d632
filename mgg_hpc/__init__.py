"""Full-graph GNN training over many GPUs and CPUs (an implementation of MGG, OSDI '23)."""

__version__ = "0.1.0"
