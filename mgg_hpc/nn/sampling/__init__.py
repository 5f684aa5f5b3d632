"""Mini-batches: blocks of sampled edges that layers take as they take a graph, and the batches of a split."""
