"""What batches are drawn from: a graph's edges, which the ranks of a node share, and all ranks' input rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...runtime import mpi
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.sampling.gather import take_csr
from ...runtime.sampling.sampler import Sampler
from ...runtime.sampling.structure import Structure, share
from ..graph.loading import Part, edge_data_of, weighted_edges
from ..graph.view import rows_over
from ..inputs.host import HostFeatures, Input
from ..inputs.sparse import SparseFeatures
from ..spans import span
from ..workspace import Workspace, as_array, as_tensor, row_format

SCALE, LOOP = "gcn scale", "has a self loop"


class Source:
    """The whole graph's edges and the input rows of all ranks. Collective to make and to close.

    part: this rank's, whose slice still has its edges. x: this rank's input rows [n, F], or None. edge_data: names of
    data of edges that layers will ask blocks for. kind: of the only adjacency that layers will ask for. [default: any]
    reserve: called before symmetric memory of so many bytes is allocated. [default: the backend's own]
    Raises InputError, the same on all ranks, for a graph without such data, or too large for a node's memory.

    Attributes: x, the same input rows, where other ranks read them: whoever holds ``x`` can hold these instead. kinds,
    of adjacencies that layers have asked blocks for, which are planned with the next blocks.
    """

    def __init__(
        self,
        comm: Any,
        part: Part,
        backend: Backend,
        x: Input | None,
        dtype: torch.dtype,
        *,
        edge_data: Iterable[str] = (),
        kind: str = "",
        reserve: Callable[[int], None] | None = None,
    ) -> None:
        self.comm, self.backend, self.dtype, self._path = comm, backend, dtype, part.path
        self.device, self.bounds = backend.capabilities.device, part.bounds
        self.workspace = Workspace(backend, varying=True)
        self._structure = _structure(comm, part, edge_data=edge_data, kind=kind)
        self.has_edges = bool(self._structure.edges) or self._structure.weight is not None
        self._sparse: Structure | None = None
        self._rows: Rows | None = None
        self._columns = 0
        self.kinds = {kind} if kind else set[str]()
        self.x = x
        if x is not None:
            largest = int(np.diff(part.bounds).argmax())
            self._take(x, reserve or (lambda nbytes: backend.memory.reserve(nbytes, largest)))

    def _take(self, x: Input, reserve: Callable[[int], None]) -> None:
        """Make the features readable by all ranks. Collective."""
        with mpi.agree(self.comm):
            if isinstance(x, HostFeatures):
                raise InputError("features that stay on the host (run.features) are for full-graph training")
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
        return self._structure.nbytes + (0 if self._sparse is None else self._sparse.nbytes)

    @property
    def heap_bytes(self) -> int:
        """Bytes of this rank's symmetric memory, in which dense features are."""
        return len(self._rows.buffer) if self._rows is not None and self._rows.symmetric else 0

    def sampler(self, *, weighted: bool) -> Sampler:
        """Return a sampler of the edges; weighted: by their weights. Raises InputError where they have none."""
        held = self._structure
        if weighted and held.weight is None:
            raise InputError(
                f"{self._path}: has no weights of edges (/graph/weight), by which they could be drawn"
            )
        return Sampler(held.indptr, held.indices, weight=held.weight if weighted else None, ids=held.ids)

    @property
    def weight(self) -> NDArray[np.floating] | None:
        """Weights of all edges, [E], or None."""
        return self._structure.weight

    def input(self, numbers: NDArray[np.int64]) -> Input | None:
        """Return the features of rows of any ranks, [n, F], dense or sparse as the graph's are; None without any."""
        if self._sparse is not None:
            held = self._sparse
            assert held.weight is not None
            threads = self.backend.options.threads
            indptr, indices, values = take_csr(
                held.indptr, held.indices, held.weight, numbers, threads=threads
            )
            there = self.there(torch.from_numpy(values))
            return SparseFeatures(self.backend, indptr, indices, there, self._columns, self.dtype)
        if self._rows is None:
            return None
        with span("gather"):
            out = self.workspace.rows(len(numbers), self._columns, self.dtype)
            ids = as_array(self.there(torch.from_numpy(numbers)))
            first, end = self.bounds[self.comm.rank], self.bounds[self.comm.rank + 1]
            own = int(np.count_nonzero((numbers >= first) & (numbers < end)))
            self.backend.gather(self._rows, self.bounds, ids, as_array(out), own=own)
            return out

    def ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the original ids of rows."""
        return numbers if self._structure.ids is None else self._structure.ids[numbers]

    def gcn_scale(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return D^-1/2 of rows, D of the whole graph with self loops."""
        return self._structure.nodes[SCALE][numbers]

    def has_loop(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return whether rows have a self loop among their in-edges."""
        return self._structure.nodes[LOOP][numbers]

    def edge_data(self, name: str) -> NDArray[Any]:
        """Return data of all edges by name. Raises ValueError for data that are not held."""
        held = self._structure
        if name == "weight" and held.weight is not None:
            return held.weight
        if name not in held.edges:
            known = ", ".join(held.edges) or "none"
            raise ValueError(f"these batches have data of edges {known}, and not {name!r} (edge_data=)")
        return held.edges[name]

    def there(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the backend's device; to a GPU it is copied while the host goes on."""
        return tensor if self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def close(self) -> None:
        """Free what ranks share. Collective."""
        self._structure.close()
        if self._sparse is not None:
            self._sparse.close()


def _structure(comm: Any, part: Part, *, edge_data: Iterable[str], kind: str) -> Structure:
    """Share the edges of a graph, and what adjacencies of a kind, or of any, take of its nodes. Collective."""
    rows = part.slice
    names = [name for name in dict.fromkeys(edge_data) if name != "weight"]
    first = int(part.bounds[comm.rank])
    with mpi.agree(comm):
        edges = {name: edge_data_of(part, name) for name in names}
        if "weight" in edge_data:
            edge_data_of(part, "weight")
        nodes: dict[str, NDArray[Any]] = {}
        if kind in ("", "gcn"):
            indptr, _, _, scale = weighted_edges("gcn", first, rows.indptr, rows.indices, rows.weight)
            assert scale is not None  # of a "gcn" matrix
            nodes = {SCALE: scale, LOOP: (np.diff(indptr) == np.diff(rows.indptr)).astype(np.uint8)}
        numbered = bool((rows.ids == np.arange(first, first + len(rows.ids))).all())
    weights = kind in ("", "gcn") or "weight" in edge_data
    return share(
        comm,
        part.bounds,
        rows.indptr,
        rows.indices,
        weight=rows.weight if weights else None,
        ids=None if all(comm.allgather(numbered)) else rows.ids,
        nodes=nodes,
        edges=edges,
    )
