"""GNN training on whole graphs or mini-batches, over many GPUs and CPUs (implements MGG, OSDI '23).

For training loops of one's own: `open` and `from_pyg`, `from_dgl`, `from_networkx`, `from_scipy` give this rank's part
of a graph, `nn` has the layers, `NeighborLoader` makes mini-batches for them, `Streaming` says how graphs stream that
are larger than memory, `allreduce_gradients` sums gradients of a loss of one's own over ranks, `manual_seed` seeds all
draws, `recomputed` keeps nothing of a part of a model, `checkpointed` saves a loop's state and goes on from it. `save`
writes a graph of another library to a graph file, and `to_pyg`, `to_dgl` and `to_scipy` give a graph file to one. They
load torch and MPI when they are first asked for: the command line may not need them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn
    from .data.libraries import save, to_dgl, to_pyg, to_scipy
    from .errors import InputError
    from .nn.api import allreduce_gradients, from_dgl, from_networkx, from_pyg, from_scipy
    from .nn.api import open_graph as open
    from .nn.autograd.recompute import recomputed
    from .nn.convert.check import check
    from .nn.convert.convert import convert
    from .nn.convert.fused import explain
    from .nn.graph.dist_graph import DistGraph, extend
    from .nn.layers.random import manual_seed
    from .nn.sampling.loader import NeighborLoader
    from .nn.streaming.graph import Streaming
    from .nn.tiered import TieredTensor, expected_visits
    from .training.checkpoints.loop import checkpointed

__version__ = "0.1.0"

__all__ = [
    "DistGraph",
    "InputError",
    "NeighborLoader",
    "Streaming",
    "TieredTensor",
    "allreduce_gradients",
    "check",
    "checkpointed",
    "convert",
    "expected_visits",
    "explain",
    "extend",
    "from_dgl",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "manual_seed",
    "nn",
    "open",
    "recomputed",
    "save",
    "to_dgl",
    "to_pyg",
    "to_scipy",
]

# Where each name is, and what it is called there.
_PLACES = {
    "InputError": ("errors", "InputError"),
    "NeighborLoader": ("nn.sampling.loader", "NeighborLoader"),
    "Streaming": ("nn.streaming.graph", "Streaming"),
    "TieredTensor": ("nn.tiered", "TieredTensor"),
    "DistGraph": ("nn.graph.dist_graph", "DistGraph"),
    "allreduce_gradients": ("nn.api", "allreduce_gradients"),
    "checkpointed": ("training.checkpoints.loop", "checkpointed"),
    "check": ("nn.convert.check", "check"),
    "convert": ("nn.convert.convert", "convert"),
    "expected_visits": ("nn.tiered", "expected_visits"),
    "explain": ("nn.convert.fused", "explain"),
    "extend": ("nn.graph.dist_graph", "extend"),
    "from_dgl": ("nn.api", "from_dgl"),
    "from_networkx": ("nn.api", "from_networkx"),
    "from_pyg": ("nn.api", "from_pyg"),
    "from_scipy": ("nn.api", "from_scipy"),
    "manual_seed": ("nn.layers.random", "manual_seed"),
    "open": ("nn.api", "open_graph"),
    "recomputed": ("nn.autograd.recompute", "recomputed"),
    "save": ("data.libraries", "save"),
    "to_dgl": ("data.libraries", "to_dgl"),
    "to_pyg": ("data.libraries", "to_pyg"),
    "to_scipy": ("data.libraries", "to_scipy"),
}


def __getattr__(name: str) -> Any:
    """PEP 562: a name's module is loaded when it is first asked for."""
    if name == "nn":
        return importlib.import_module(".nn", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
