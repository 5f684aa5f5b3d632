"""Distributed aggregation made differentiable: layers and models.

Layers are named as PyG names them, and take this rank's rows and the graph: conv(x, graph).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conv import GATConv, GCNConv, GINConv, SAGEConv
    from .norms import BatchNorm
    from .perceptron import MLP
    from .random import Dropout

__all__ = ["MLP", "BatchNorm", "Dropout", "GATConv", "GCNConv", "GINConv", "SAGEConv"]

_MODULES = {
    "MLP": "perceptron",
    "BatchNorm": "norms",
    "Dropout": "random",
    "GATConv": "conv",
    "GCNConv": "conv",
    "GINConv": "conv",
    "SAGEConv": "conv",
}


def __getattr__(name: str) -> Any:
    """PEP 562: a layer's module is loaded when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
