"""DGL: copy_u_sum (u_mul_e_sum with weights) on a graph in in-edge CSR alone, int32 ids; and GraphConv."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import packaging.version
import torch

# DGL 1.1 takes this from setuptools, which no longer brings it.
sys.modules.setdefault("setuptools.extern", types.ModuleType("setuptools.extern"))
sys.modules.setdefault("setuptools.extern.packaging", packaging)

import dgl  # noqa: E402 - after what it looks for
import dgl.nn  # noqa: E402
import gcn  # noqa: E402


def set_threads(count: int) -> None:
    """Of every run after this."""
    torch.set_num_threads(count)


def about() -> str:
    """Versions."""
    return f"dgl {dgl.__version__} (torch {torch.__version__})"


def _graph(indptr: str, indices: str) -> Any:
    pointers = torch.from_numpy(np.load(indptr).astype(np.int32))
    edges = torch.empty(0, dtype=torch.int32)  # numbered as they are stored
    return dgl.graph(
        ("csc", (pointers, torch.from_numpy(np.load(indices)), edges)), num_nodes=len(pointers) - 1
    )


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str, **_: Any
) -> dict[str, Callable[[], Any]]:
    """The run "dgl"."""
    kind = getattr(torch, dtype)
    graph, rows = _graph(indptr, indices).formats("csc"), torch.from_numpy(np.load(x)).to(kind)
    if weight is None:
        return {"dgl": lambda: dgl.ops.copy_u_sum(graph, rows)}
    edge = torch.from_numpy(np.load(weight))[:, None].to(kind)
    return {"dgl": lambda: dgl.ops.u_mul_e_sum(graph, rows, edge)}


def epoch(
    indptr: str, indices: str, features: int, hidden: int, classes: int, dropout: float, **files: Any
) -> dict[str, Callable[[], Any]]:
    """The run "dgl": GraphConv with both norms; self loops are added before the clock starts."""
    graph = dgl.add_self_loop(_graph(indptr, indices)).formats(["csc", "csr"])
    graph.create_formats_()
    first = dgl.nn.GraphConv(features, hidden, norm="both")
    second = dgl.nn.GraphConv(hidden, classes, norm="both")
    arrays = {name: files[name] for name in ("x", "y", "train")}
    return {
        "dgl": gcn.epoch(
            first, second, lambda convolution, x: convolution(graph, x), dropout=dropout, **arrays
        )
    }
