"""DGL: programs by its operators along edges, with all products at vertices, for int32 and int64 ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import peer_dgl
import torch
from peer_dgl import dgl
from torch import Tensor
from torch.nn.functional import linear

from .task import Run, Task, targets_of

set_threads = peer_dgl.set_threads
about = peer_dgl.about

IDS = {"int32": torch.int32, "int64": torch.int64}


def _graph(indptr: str, sources: Tensor, count: int, ids: torch.dtype) -> Any:
    """Return the edges from ``count`` sources in all forms that operators take."""
    pointers = np.load(indptr)
    targets = torch.from_numpy(targets_of(pointers))
    ends = {"source": count, "target": len(pointers) - 1}
    edges = {("source", "to", "target"): (sources.to(ids), targets.to(ids))}
    graph = dgl.heterograph(edges, num_nodes_dict=ends)
    graph = graph.formats(["coo", "csc", "csr"])
    graph.create_formats_()
    return graph


def propagate(indptr: str, indices: str, file: object, **inputs: Any) -> dict[str, Run]:
    """Return the runs "dgl int32" and "dgl int64"."""
    task, runs = Task(**inputs), {}
    for name, ids in IDS.items():
        x, weights = task.leaves()
        sources, count = torch.from_numpy(np.load(indices)).long(), len(x)
        if task.program == "typed":
            forward = _typed(task, indptr, sources, ids, x, weights["matrix"])
        else:
            forward = _gated(task, _graph(indptr, sources, count, ids), x, weights)
        runs[f"dgl {name}"] = task.run(forward, [x, *weights.values()])
    return runs


def _gated(task: Task, graph: Any, x: Tensor, weights: dict[str, Tensor]) -> Any:
    def forward() -> Tensor:
        gate = torch.sigmoid(dgl.ops.u_add_v(graph, linear(x, weights["far"]), linear(x, weights["near"])))
        if task.program == "gated":
            return dgl.ops.u_mul_e_sum(graph, x, gate)
        most = dgl.ops.u_mul_e_max(graph, x, gate)
        return most.masked_fill(torch.isinf(most), 0)  # of rows without edges, as update_all does

    return forward


def _typed(task: Task, indptr: str, sources: Tensor, ids: torch.dtype, x: Tensor, matrix: Tensor) -> Any:
    """Return the sum over edges from the products of each vertex with all matrices, which are sources of their own."""
    types = torch.from_numpy(np.load(task.types))
    count = len(x) * len(matrix)
    graph = _graph(indptr, sources * len(matrix) + types, count, ids)

    def forward() -> Tensor:
        products = linear(x, matrix.reshape(-1, matrix.shape[2]))
        return dgl.ops.copy_u_sum(graph, products.reshape(count, -1))

    return forward
