"""The parts that all benchmarks share: graphs, turns, documents, drawing."""
