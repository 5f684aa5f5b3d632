"""The edges and input rows that batches are sampled from: the ranks of a node share edges, all ranks read all rows."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...plan import adjacency, scores
from ...runtime import mpi
from ...runtime.backends.arguments import Rows, TieredRows
from ...runtime.backends.base import Backend
from ...runtime.sampler import Sampler, take_csr
from ...runtime.shared_graph import SharedGraph, share
from ..graph.loading import Part, edge_data_of, weighted_edges
from ..graph.view import wrap_rows
from ..inputs.host import Input
from ..inputs.sparse import SparseFeatures
from ..inputs.tiered import TieredFeatures
from ..spans import span
from ..workspace import Workspace, as_array, as_tensor, row_format

# Names of values of nodes: D^-1/2 of the whole graph with self loops, float64; and uint8. Of edges, if rows have many
# self loops: weights in the normalised matrix, 0 for all self loops but the last.
SCALE, LOOP, WEIGHT = "gcn scale", "has a self loop", "gcn weight"
NEAR_SHARE = 1 / 8  # of a GPU's free memory for edges, unless bytes are given; batches need more
MOST_SHARE = 3 / 8  # of it, for all that a sampler holds, which takes twice as much while it crosses
COUNTED = 1 << 26  # edges whose sources are counted at a time


class SharedEdges:
    """The in-edges of a whole graph, with values of nodes and edges. Collective to make and to close.

    part: this rank's part of the graph, with its edges. edge_data: names of data of edges to include. kind: the only
    kind of adjacency that layers will use. [default: any] Raises InputError, the same on all ranks, if the graph lacks
    the data, or is too large for a node's memory. Methods raise ValueError once it is closed.
    """

    def __init__(self, comm: Any, part: Part, *, edge_data: Iterable[str] = (), kind: str = "") -> None:
        self._path, self.names = part.path, frozenset(edge_data)
        self._structure = _structure(comm, part, names=self.names, kind=kind)
        self._changed, self._users, self._closed = threading.Condition(), 0, False
        self._samplers = weakref.WeakSet[Sampler]()

    @contextmanager
    def used(self) -> Iterator[SharedGraph]:
        """Yield the shared arrays; `close` waits for the end of the context. Any thread may use it."""
        with self._changed:
            if self._closed:
                raise ValueError("the graph is closed, and its batches with it")
            self._users += 1
        try:
            yield self._structure
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory on each node."""
        return self._structure.nbytes

    @property
    def keeps_places(self) -> bool:
        """Whether samples need the positions of their edges, because there are data of edges or weights."""
        return bool(self._structure.edges) or self._structure.weight is not None

    def sampler(
        self,
        backend: Backend,
        *,
        weighted: bool,
        near_bytes: int = 0,
        score: NDArray[np.floating] | None = None,
    ) -> Sampler:
        """Return a sampler, to be called within `used`, by any thread. weighted: draw edges by their weights.

        It draws on the backend's GPU if there is one with enough room; else its ``place`` says why not.
        near_bytes: bytes of edges to keep in the GPU's memory, at most as many as fit; others are read from the
        host's memory. [default: a share of the free memory] score: [N]; the edges of the rows with the highest
        scores are kept there. [default: out-degrees] Raises InputError if it is weighted and the graph has no
        weights, or negative ones.
        """
        with self.used() as held:
            if weighted and held.weight is None:
                raise InputError(
                    f"{self._path}: has no weights of edges (/graph/weight), by which they could be drawn"
                )
            weight = held.weight if weighted else None
            try:
                made = Sampler(held.indptr, held.indices, weight=weight, ids=held.ids)
            except ValueError as error:
                raise InputError(f"{self._path}: edges cannot be drawn by their weights: {error}") from error
            if backend.sampling is not None:
                free = backend.memory.free() or 0
                of_rows = 2 * held.indptr.nbytes + (0 if held.ids is None else held.ids.nbytes)
                fits = max(0, int(MOST_SHARE * free) - of_rows)
                near_bytes = min(near_bytes or int(NEAR_SHARE * free), fits)
                hottest = None
                if held.indices.nbytes + (0 if weight is None else weight.nbytes) > near_bytes:
                    hottest = scores.order(_out_degrees(held) if score is None else score)
                try:
                    made = backend.sampling.bind(made, near_bytes, hottest)
                except InputError as error:  # a GPU without room, or pages that cannot be locked
                    made.place = f"{made.place} ({error})"
            self._samplers.add(made)
            return made

    def ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the original ids of rows. numbers: of the rows in the whole graph."""
        with self.used() as held:
            return numbers if held.ids is None else held.ids[numbers]

    def edge_data(self, name: str, edge: NDArray[np.int64]) -> NDArray[Any]:
        """Return data of the edges at these positions by name. Raises ValueError for data that were not included."""
        with self.used() as held:
            if name == "weight" and held.weight is not None:
                return held.weight[edge]
            if name not in self.names:
                known = ", ".join(sorted(self.names)) or "none"
                raise ValueError(f"these batches have data of edges {known}, and not {name!r} (edge_data=)")
            return held.edges[name][edge]

    def close(self) -> None:
        """Free the memory once no thread reads it, unless done before. Collective."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            while self._users:
                self._changed.wait()
        for each in self._samplers:
            each.close()  # which may have locked pages of the arrays
        self._structure.close()


def _out_degrees(graph: SharedGraph) -> NDArray[np.int64]:
    """Return the number of edges from each row, [N]: in how many lists of in-edges it occurs."""
    found = np.zeros(len(graph.indptr) - 1, np.int64)
    for first in range(0, len(graph.indices), COUNTED):
        found += np.bincount(graph.indices[first : first + COUNTED], minlength=len(found))
    return found


def _structure(comm: Any, part: Part, *, names: frozenset[str], kind: str) -> SharedGraph:
    """Share a graph's edges, data of edges, and the values of nodes that adjacencies of a kind need. Collective."""
    rows, first = part.slice, int(part.bounds[comm.rank])
    with mpi.agree(comm):
        given = {name: edge_data_of(part, name) for name in sorted(names)}
        nodes: dict[str, NDArray[Any]] = {}
        several = False  # whether a row has several self loops
        if kind in ("", "gcn"):
            indptr, _, _, scale = weighted_edges("gcn", first, rows.indptr, rows.indices, rows.weight)
            assert scale is not None  # of a "gcn" matrix
            nodes = {SCALE: scale, LOOP: (np.diff(indptr) <= np.diff(rows.indptr)).astype(np.uint8)}
            several = bool((np.diff(indptr) < np.diff(rows.indptr)).any())
        numbered = bool((rows.ids == np.arange(first, first + len(rows.ids))).all())
    edges = {name: values for name, values in given.items() if name != "weight"}
    if any(comm.allgather(several)):
        edges[WEIGHT] = np.ones(len(rows.indices), np.float32) if rows.weight is None else rows.weight.copy()
        edges[WEIGHT][adjacency.earlier_self_loops(first, rows.indptr, rows.indices)] = 0
    return share(
        comm,
        part.bounds,
        rows.indptr,
        rows.indices,
        weight=rows.weight if kind in ("", "gcn") or "weight" in names else None,
        ids=None if all(comm.allgather(numbered)) else rows.ids,
        nodes=nodes,
        edges=edges,
    )


class Source:
    """The edges of a whole graph and the input rows of all ranks. Collective to make and to close.

    edges: of the graph; closed with the source. x: this rank's input rows [n, F], or None. kind: kind of
    adjacency that blocks are planned for from the start. reserve: called with a number of bytes before as much
    symmetric memory is allocated. [default: the backend's] Raises InputError, the same on all ranks, for rows
    that batches cannot use, or that do not fit in a node's memory.

    Attributes: x: the input rows, perhaps copied to where other ranks read them; the caller can drop its own.
    kinds: kinds of adjacencies that layers have requested so far; threads plan new blocks for these ahead.
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
        self._table: TieredRows | None = None
        self._columns = 0 if x is None else x.shape[1]
        self.kinds = {kind} if kind else set[str]()
        self.x = x
        with mpi.agree(comm):
            if isinstance(x, Tensor) and x.requires_grad:
                raise InputError("input rows of batches get no gradients: x shall not require one")
        if isinstance(x, SparseFeatures):
            indptr, indices = x.pattern
            self._sparse = share(comm, bounds, indptr, indices, weight=x.values.cpu().numpy())
        elif isinstance(x, Tensor):
            self._table = TieredRows.of_ranks(self._readable(x.detach(), reserve), bounds)
        elif isinstance(x, TieredFeatures):
            x.place(reserve)

    def _readable(self, x: Tensor, reserve: Callable[[int], None] | None) -> Rows:
        """Return rows with the values of x that all ranks can read. Collective."""
        counts, format = np.diff(self.bounds), row_format(x.shape[1], self.dtype)
        several = self.comm.size > 1
        rows = None if several else wrap_rows(x, self.backend)
        if rows is not None:
            return rows
        if several:
            nbytes = int(counts.max()) * format.row_bytes
            if reserve is None:
                self.backend.memory.reserve(nbytes, int(counts.argmax()))
            else:
                reserve(nbytes)
        rows = self.backend.rows(counts, format, symmetric=several)
        self.x = as_tensor(rows.local)
        self.x.copy_(x)
        if several:
            self.backend.publish(rows)
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory on each node: edges, values of nodes, and sparse features."""
        return self.edges.nbytes + (0 if self._sparse is None else self._sparse.nbytes)

    @property
    def heap_bytes(self) -> int:
        """Bytes of this rank's symmetric memory, which holds dense features."""
        rows = None if self._table is None else self._table.tiers[0].kept
        return len(rows.buffer) if rows is not None and rows.symmetric else 0

    @property
    def gathers_beside(self) -> bool:
        """Whether a second stream may gather input rows: a GPU does, from tiers, and reads all rows by itself.

        Rows in tiers are never written. If a transport fetched some of them, it would use a buffer that
        evaluations use on the other stream at the same time.
        """
        reads_host, reaches = self.backend.memory.holds_stores, self.backend.capabilities.reaches_peers
        return isinstance(self.x, TieredFeatures) and reaches and not reads_host

    def ahead(self, numbers: NDArray[np.int64]) -> Input | None:
        """Return what `input` returns, if any thread may gather (`TieredFeatures.by_pointers`), else None."""
        if isinstance(self.x, TieredFeatures) and self.x.by_pointers:
            with self.edges.used():
                return self.x.gather(numbers, self.workspace)
        return None

    def input(self, numbers: NDArray[np.int64]) -> Input | None:
        """Return the features [k, F] of rows of any ranks, dense or sparse as the graph's; None if there are none.

        numbers: int64 [k], of the rows in the whole graph. Raises ValueError once it is closed.
        """
        with self.edges.used():
            if self._sparse is not None:
                held, threads = self._sparse, self.backend.options.threads
                assert held.weight is not None
                indptr, indices, values = take_csr(
                    held.indptr, held.indices, held.weight, numbers, threads=threads
                )
                there, workspace = self.there(torch.from_numpy(values)), self.workspace
                return SparseFeatures(
                    self.backend, indptr, indices, there, self._columns, self.dtype, workspace
                )
            if isinstance(self.x, TieredFeatures):
                with span("gather"):
                    return self.x.gather(numbers, self.workspace)
            if self._table is None:
                return None
            with span("gather"):
                out = self.workspace.rows(len(numbers), self._columns, self.dtype)
                self.backend.gather(self._table, numbers, as_array(out))
                return out

    def gather_on_host(self, numbers: NDArray[np.int64]) -> Tensor | None:
        """Return input rows on the host for `sent`, if a GPU trains but holds none of them, else None."""
        with self.edges.used():
            return self.x.gather_on_host(numbers) if isinstance(self.x, TieredFeatures) else None

    def sent(self, rows: Tensor) -> Tensor:
        """Return a copy on the device of input rows from `gather_on_host` or, on CPUs, from `input`."""
        if isinstance(self.x, TieredFeatures) and not self.backend.memory.holds_stores:
            return self.x.sent(rows, self.workspace)
        copied = self.workspace.rows(len(rows), rows.shape[1], rows.dtype)
        np.copyto(as_array(copied), as_array(rows))  # by this thread alone
        return copied

    def there(self, tensor: Tensor) -> Tensor:
        """Return a host tensor on the backend's device; copies to a GPU are asynchronous."""
        return tensor if self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def close(self) -> None:
        """Free the memory that ranks share, once no thread reads it. Collective."""
        self.edges.close()
        if self._sparse is not None:
            self._sparse.close()
        if isinstance(self.x, TieredFeatures):
            self.x.close()
