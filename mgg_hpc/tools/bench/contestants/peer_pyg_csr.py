"""PyG's GCNConv over a sparse CSR tensor in place of an edge list, without a message an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import peer_pyg
import torch

set_threads = peer_pyg.set_threads
about = peer_pyg.about


def epoch(indptr: str, indices: str, **inputs: Any) -> dict[str, Callable[[], Any]]:
    """The run "pyg-csr"; the norm is computed before the clock starts."""
    edges, weight = peer_pyg.edge_list(indptr, indices)
    count = len(np.load(indptr, mmap_mode="r")) - 1
    # Self loops stand at the end of the list: the way over coordinates sorts them in.
    adjacency = torch.sparse_coo_tensor(edges.flip(0), weight, (count, count)).to_sparse_csr()
    return {"pyg-csr": peer_pyg.gcn_epoch((adjacency,), **inputs)}
