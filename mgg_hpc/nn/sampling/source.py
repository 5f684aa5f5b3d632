"""The edges and input rows that batches are sampled from: edges are shared by the ranks of a node, rows by all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...runtime import mpi
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.sampler import take_csr
from ...runtime.shared_graph import SharedGraph, share
from ..graph.view import rows_over
from ..inputs.host import HostFeatures, Input
from ..inputs.sparse import SparseFeatures
from ..spans import span
from ..workspace import Workspace, as_array, as_tensor, row_format
from .edges import SharedEdges


class Source:
    """The whole graph's edges and the input rows of all ranks. Collective to make and to close.

    edges: of the graph; closed with the source. x: this rank's input rows [n, F], or None. reserve: called before
    symmetric memory of so many bytes is allocated. [default: the backend's own] Raises InputError, the same on all
    ranks, for input rows that batches cannot have, or that a node's memory cannot hold.

    Attributes: x, the same input rows, where other ranks read them: whoever holds ``x`` can hold these instead. kinds,
    of adjacencies that layers have asked blocks for, which are planned with the next blocks.
    """

    def __init__(
        self,
        comm: Any,
        bounds: NDArray[np.int64],
        edges: SharedEdges,
        backend: Backend,
        x: Input | None,
        dtype: torch.dtype,
        *,
        kind: str = "",
        reserve: Callable[[int], None] | None = None,
    ) -> None:
        self.comm, self.backend, self.dtype, self.edges = comm, backend, dtype, edges
        self.device, self.bounds = backend.capabilities.device, bounds
        self.workspace = Workspace(backend, varying=True)
        self._sparse: SharedGraph | None = None
        self._rows: Rows | None = None
        self._columns = 0
        self.kinds = {kind} if kind else set[str]()
        self.x = x
        if x is not None:
            largest = int(np.diff(bounds).argmax())
            self._take(x, reserve or (lambda nbytes: backend.memory.reserve(nbytes, largest)))

    def _take(self, x: Input, reserve: Callable[[int], None]) -> None:
        """Make the features readable by all ranks. Collective."""
        with mpi.agree(self.comm):
            if isinstance(x, HostFeatures):
                raise InputError("features that stay on the host (run.features) are for full-graph training")
            if isinstance(x, Tensor) and x.requires_grad:
                raise InputError("input rows of batches get no gradients: x shall not require one")
        self._columns = x.shape[1]
        if isinstance(x, SparseFeatures):
            indptr, indices = x.pattern
            self._sparse = share(self.comm, self.bounds, indptr, indices, weight=x.values.cpu().numpy())
            return
        assert isinstance(x, Tensor)
        several = self.comm.size > 1
        self._rows = None if several else rows_over(x.detach(), self.backend)
        if self._rows is not None:
            return
        counts, format = np.diff(self.bounds), row_format(x.shape[1], self.dtype)
        if several:
            reserve(int(counts.max()) * format.row_bytes)
        self._rows = self.backend.rows(counts, format, symmetric=several)
        self.x = as_tensor(self._rows.local)
        self.x.copy_(x.detach())
        if several:
            self.backend.publish(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes that a node holds once: of edges, values of nodes, and sparse features."""
        return self.edges.nbytes + (0 if self._sparse is None else self._sparse.nbytes)

    @property
    def heap_bytes(self) -> int:
        """Bytes of this rank's symmetric memory, in which dense features are."""
        return len(self._rows.buffer) if self._rows is not None and self._rows.symmetric else 0

    def input(self, numbers: NDArray[np.int64]) -> Input | None:
        """Return the features of rows of any ranks, [n, F], dense or sparse as the graph's are; None without any.

        Raises ValueError once it is closed.
        """
        with self.edges.used():
            return self._input(numbers)

    def _input(self, numbers: NDArray[np.int64]) -> Input | None:
        if self._sparse is not None:
            held = self._sparse
            assert held.weight is not None
            threads = self.backend.options.threads
            indptr, indices, values = take_csr(
                held.indptr, held.indices, held.weight, numbers, threads=threads
            )
            there = self.there(torch.from_numpy(values))
            return SparseFeatures(
                self.backend, indptr, indices, there, self._columns, self.dtype, self.workspace
            )
        if self._rows is None:
            return None
        with span("gather"):
            out = self.workspace.rows(len(numbers), self._columns, self.dtype)
            ids = as_array(self.there(torch.from_numpy(numbers)))
            first, end = self.bounds[self.comm.rank], self.bounds[self.comm.rank + 1]
            own = int(np.count_nonzero((numbers >= first) & (numbers < end)))
            self.backend.gather(self._rows, self.bounds, ids, as_array(out), own=own)
            return out

    def there(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the backend's device; to a GPU it is copied while the host goes on."""
        return tensor if self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def close(self) -> None:
        """Free what ranks share, once no thread reads it. Collective."""
        self.edges.close()
        if self._sparse is not None:
            self._sparse.close()
