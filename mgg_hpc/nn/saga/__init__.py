"""Layers of one's own, written as programs on vertices and edges (NGra: SAGA-NN)."""

from .layer import Layer
from .operators import typed_linear
from .tracing import Edge

__all__ = ["Edge", "Layer", "typed_linear"]
