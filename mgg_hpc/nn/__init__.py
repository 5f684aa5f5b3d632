"""Distributed aggregation made differentiable: layers and models.

Layers are named as PyG names them, and take this rank's rows and the graph: conv(x, graph). Module `aggregation` has
what layers are made of, and `saga` layers that are written as programs on vertices and edges.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import saga
    from .autograd import aggregation
    from .layers.attention import GATConv
    from .layers.conv import GCNConv, GINConv, SAGEConv
    from .layers.networks import MLP, BatchNorm
    from .layers.random import Dropout

__all__ = ["MLP", "BatchNorm", "Dropout", "GATConv", "GCNConv", "GINConv", "SAGEConv", "aggregation", "saga"]

_MODULES = {
    "MLP": "layers.networks",
    "BatchNorm": "layers.networks",
    "Dropout": "layers.random",
    "GATConv": "layers.attention",
    "GCNConv": "layers.conv",
    "GINConv": "layers.conv",
    "SAGEConv": "layers.conv",
}


def __getattr__(name: str) -> Any:
    """Load a layer's module when it is first used (PEP 562)."""
    if name == "aggregation":
        return importlib.import_module(".autograd.aggregation", __name__)
    if name == "saga":
        return importlib.import_module(".saga", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
