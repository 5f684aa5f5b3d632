"""What benchmarks share: graphs, turns, documents, drawing."""
