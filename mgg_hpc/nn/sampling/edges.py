"""The edges of a whole graph, which the ranks of a node share and threads sample from."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...runtime import mpi
from ...runtime.sampler import Sampler
from ...runtime.shared_graph import SharedGraph, share
from ..graph.loading import Part, edge_data_of, weighted_edges

SCALE, LOOP = "gcn scale", "has a self loop"


class SharedEdges:
    """A graph's in-edges, and what adjacencies take of its nodes and edges. Collective to make and to close.

    part: this rank's, whose slice still has its edges. edge_data: names of data of edges to hold. kind: of the only
    adjacency that layers will ask for. [default: any] Raises InputError, the same on all ranks, for a graph without
    such data, or too large for a node's memory. Once closed, everything that reads the memory raises ValueError.
    """

    def __init__(self, comm: Any, part: Part, *, edge_data: Iterable[str] = (), kind: str = "") -> None:
        self._path, self.names = part.path, frozenset(edge_data)
        self._structure = _structure(comm, part, names=self.names, kind=kind)
        self._changed, self._users, self._closed = threading.Condition(), 0, False

    @contextmanager
    def used(self) -> Iterator[SharedGraph]:
        """Yield the arrays, which `close` leaves until the context ends. For any thread.

        Raises ValueError once they are closed.
        """
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
        """Bytes that a node holds once."""
        return self._structure.nbytes

    @property
    def keeps_places(self) -> bool:
        """Whether samples need the places of their edges: there are data of edges, or weights."""
        return bool(self._structure.edges) or self._structure.weight is not None

    def sampler(self, *, weighted: bool) -> Sampler:
        """Return a sampler, to be called within `used`; weighted: of edges by their weights.

        Raises InputError for a graph without weights, or with negative ones.
        """
        with self.used() as held:
            if weighted and held.weight is None:
                raise InputError(
                    f"{self._path}: has no weights of edges (/graph/weight), by which they could be drawn"
                )
            weight = held.weight if weighted else None
            try:
                return Sampler(held.indptr, held.indices, weight=weight, ids=held.ids)
            except ValueError as error:
                raise InputError(f"{self._path}: edges cannot be drawn by their weights: {error}") from error

    def weight(self) -> NDArray[np.floating] | None:
        """Return the weights of all edges, [E], or None; to be read within `used`."""
        return self._structure.weight

    def ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the original ids of rows."""
        with self.used() as held:
            return numbers if held.ids is None else held.ids[numbers]

    def gcn_scale(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return D^-1/2 of rows, D of the whole graph with self loops."""
        with self.used() as held:
            return held.nodes[SCALE][numbers]

    def has_loop(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return whether rows have a self loop among their in-edges."""
        with self.used() as held:
            return held.nodes[LOOP][numbers]

    def edge_data(self, name: str, edge: NDArray[np.int64]) -> NDArray[Any]:
        """Return data of edges by name, of those at these places. Raises ValueError for data that are not held."""
        with self.used() as held:
            if name == "weight" and held.weight is not None:
                return held.weight[edge]
            if name not in held.edges:
                known = ", ".join(held.edges) or "none"
                raise ValueError(f"these batches have data of edges {known}, and not {name!r} (edge_data=)")
            return held.edges[name][edge]

    def close(self) -> None:
        """Free the memory, once no thread reads it. Collective."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            while self._users:
                self._changed.wait()
        self._structure.close()


def _structure(comm: Any, part: Part, *, names: frozenset[str], kind: str) -> SharedGraph:
    """Share the edges of a graph, and what adjacencies of a kind, or of any, take of its nodes. Collective."""
    rows = part.slice
    first = int(part.bounds[comm.rank])
    with mpi.agree(comm):
        given = {name: edge_data_of(part, name) for name in sorted(names)}
        edges = {name: values for name, values in given.items() if name != "weight"}
        nodes: dict[str, NDArray[Any]] = {}
        if kind in ("", "gcn"):
            indptr, _, _, scale = weighted_edges("gcn", first, rows.indptr, rows.indices, rows.weight)
            assert scale is not None  # of a "gcn" matrix
            nodes = {SCALE: scale, LOOP: (np.diff(indptr) == np.diff(rows.indptr)).astype(np.uint8)}
        numbered = bool((rows.ids == np.arange(first, first + len(rows.ids))).all())
    weights = kind in ("", "gcn") or "weight" in names
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
