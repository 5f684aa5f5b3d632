"""PyG: its sparse product (utils.spmm over torch's CSR), and GCNConv over an edge list."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gcn
import numpy as np
import peer_torch
import torch
import torch_geometric
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import spmm

set_threads = peer_torch.set_threads
# torch warns that sparse CSR is in beta each time that a layer makes one.
warnings.filterwarnings("ignore", category=UserWarning)


def about() -> str:
    """Versions."""
    return f"pyg {torch_geometric.__version__} (torch {torch.__version__})"


def aggregate(ahead: object, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """The run "pyg"."""
    adjacency, rows = peer_torch.operands(**inputs)
    return {"pyg": lambda: spmm(adjacency, rows, "sum")}


def edge_list(indptr: str, indices: str) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [2, E'] (source, destination) with self loops, by destination, and GCN's norm [E']."""
    pointers, sources = np.load(indptr), np.load(indices).astype(np.int64)
    destinations = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return gcn_norm(torch.from_numpy(np.stack([sources, destinations])), num_nodes=len(pointers) - 1)


def gcn_epoch(
    graph: tuple[Any, ...], features: int, hidden: int, classes: int, dropout: float, **files: Any
) -> Callable[[], Any]:
    """An epoch of two GCNConv, which are called with x and ``graph``."""
    first, second = GCNConv(features, hidden, normalize=False), GCNConv(hidden, classes, normalize=False)
    arrays = {name: files[name] for name in ("x", "y", "train")}
    return gcn.epoch(first, second, lambda layer, x: layer(x, *graph), dropout=dropout, **arrays)


def epoch(indptr: str, indices: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """The run "pyg": GCNConv over an edge list, its default; the norm is computed before the clock starts."""
    return {"pyg": gcn_epoch(edge_list(indptr, indices), **inputs)}
