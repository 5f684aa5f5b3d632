"""PyG's convolutions over a sparse CSR tensor in place of an edge list: sums without a message an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import peer_pyg
import torch
from nets import Task

set_threads = peer_pyg.set_threads
about = peer_pyg.about


def epoch(
    indptr: str, indices: str, weight: None, file: object, **inputs: Any
) -> dict[str, Callable[[], Any]]:
    """Return the runs "pyg-csr" and "untrained"."""
    task = Task(**inputs)
    (sources, rows), values = peer_pyg.edge_list(task.model, indptr, indices)
    count = len(np.load(indptr, mmap_mode="r")) - 1
    order = torch.argsort(rows * count + sources)  # self loops stood at the end
    pointers = torch.nn.functional.pad(torch.bincount(rows, minlength=count).cumsum(0), (1, 0))
    # MKL sums with int32 indices. With these torch's gradient of a mean is wrong in large graphs, and PyG's softmax
    # takes none.
    kind = torch.int32 if task.model in ("gcn", "gin") else torch.int64
    of_edges = torch.ones(len(order)) if values is None else values[order]
    adjacency = torch.sparse_csr_tensor(pointers.to(kind), sources[order].to(kind), of_edges, (count, count))
    return peer_pyg.trained("pyg-csr", (adjacency,), task)
