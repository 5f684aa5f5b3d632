"""Layers and models: modules of torch that take this rank's rows and the graph."""
