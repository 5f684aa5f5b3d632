"""Differentiable layers and models over distributed graphs.

Layers have PyG's names and are called as conv(x, graph) with this rank's rows. The module `aggregation` has the
operations that layers are made of; `saga` has layers that are written as programs on nodes and edges.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import saga
    from .autograd import aggregation
    from .embedding.bag import ShardedEmbeddingBag
    from .embedding.collection import ShardedEmbeddingBagCollection, TableConfig
    from .embedding.optimizers import SGD, Adagrad, RowWiseAdagrad
    from .layers.attention import GATConv
    from .layers.conv import GCNConv, GINConv, SAGEConv
    from .layers.networks import MLP, BatchNorm
    from .layers.random import Dropout

__all__ = [
    "MLP",
    "SGD",
    "Adagrad",
    "BatchNorm",
    "Dropout",
    "GATConv",
    "GCNConv",
    "GINConv",
    "RowWiseAdagrad",
    "SAGEConv",
    "ShardedEmbeddingBag",
    "ShardedEmbeddingBagCollection",
    "TableConfig",
    "aggregation",
    "saga",
]

_MODULES = {
    "MLP": "layers.networks",
    "SGD": "embedding.optimizers",
    "Adagrad": "embedding.optimizers",
    "RowWiseAdagrad": "embedding.optimizers",
    "ShardedEmbeddingBag": "embedding.bag",
    "ShardedEmbeddingBagCollection": "embedding.collection",
    "TableConfig": "embedding.collection",
    "BatchNorm": "layers.networks",
    "Dropout": "layers.random",
    "GATConv": "layers.attention",
    "GCNConv": "layers.conv",
    "GINConv": "layers.conv",
    "SAGEConv": "layers.conv",
    "aggregation": "autograd.aggregation",
    "saga": "saga",
}


def __getattr__(name: str) -> Any:
    """Load the module of a layer, or a module, when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    return module if _MODULES[name].endswith(name) else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
