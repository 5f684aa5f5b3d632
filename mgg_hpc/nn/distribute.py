"""From a graph file to each rank's part of it: rows, adjacency, features, ready to aggregate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import symmetry
from ..data.graph import Graph, SparseRows
from ..data.store import GraphSlice, open_graph
from ..errors import InputError
from ..plan import adjacency, workload
from ..plan.ranges import edge_balanced
from ..plan.workload import Plan
from ..runtime import exchange, mpi
from ..runtime.backends.base import Backend
from .features import SparseFeatures
from .graph import Adjacency


@dataclass
class Part:
    """One rank's rows of a graph file, and what is known of the whole.

    bounds: int64 [P + 1]. bounds_source: "file", or "computed" where the file has none for this number of ranks.
    """

    path: Path
    name: str
    uuid: str
    nodes: int
    edges: int
    features: int
    classes: int
    directed: bool
    multilabel: bool
    bounds: NDArray[np.int64]
    bounds_source: str
    slice: GraphSlice
    nbytes: int = 0  # of the slice as it was read, without its features

    def __post_init__(self) -> None:
        rows = self.slice
        arrays = (rows.indptr, rows.indices, rows.weight, rows.y, rows.train, rows.val, rows.test, rows.ids)
        self.nbytes = sum(array.nbytes for array in arrays if array is not None)

    def take_edges(self) -> tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float32] | None]:
        """(indptr, indices, weight) of the slice, which lets go of them: plans replace them."""
        taken = self.slice.indptr, self.slice.indices, self.slice.weight
        nothing = np.zeros(0, dtype=np.int64)
        self.slice = replace(self.slice, indptr=nothing, indices=nothing, weight=None)
        return taken

    def take_features(self) -> NDArray[Any] | SparseRows | None:
        """The slice's features, which it lets go of: the model's input replaces them."""
        taken = self.slice.x
        self.slice = replace(self.slice, x=None)
        return taken


def load_part(path: Path, comm: Any) -> Part:
    """Read this rank's slice, checking what is read. Collective.

    Raises InputError, the same on all ranks, that names what is wrong with the file.
    """
    with mpi.agree(comm), open_graph(path) as file:
        bounds = file.bounds(comm.size)
        source = "file"
        if bounds is None:
            bounds, source = edge_balanced(file.indptr(), comm.size), "computed"
        part = Part(
            path=path,
            name=file.name,
            uuid=file.uuid,
            nodes=file.nodes,
            edges=file.edges,
            features=file.features,
            classes=file.classes,
            directed=file.directed,
            multilabel=file.multilabel,
            bounds=bounds,
            bounds_source=source,
            slice=file.slice(int(bounds[comm.rank]), int(bounds[comm.rank + 1])),
        )
    if not part.directed:
        _check_symmetric(comm, part)
    return part


def whole(graph: Graph) -> Part:
    """A graph in memory as the part of a rank that is alone."""
    rows = GraphSlice(
        indptr=graph.indptr,
        indices=graph.indices,
        weight=graph.weight,
        x=graph.x,
        y=graph.y,
        train=graph.train,
        val=graph.val,
        test=graph.test,
        ids=np.arange(graph.nodes),
    )
    return Part(
        path=Path(graph.name),
        name=graph.name,
        uuid="",
        nodes=graph.nodes,
        edges=graph.edges,
        features=0 if graph.x is None else graph.x.shape[1],
        classes=graph.classes,
        directed=graph.directed,
        multilabel=False,
        bounds=np.array([0, graph.nodes]),
        bounds_source="computed",
        slice=rows,
    )


def gcn_adjacency(comm: Any, part: Part, dtype: torch.dtype, ps: int, device: str = "cpu") -> Adjacency:
    """The normalised adjacency of Kipf and Welling for this rank, with the plans of both directions. Collective.

    device: the backend's. Takes the edges out of ``part``.
    """
    first = int(part.bounds[comm.rank])
    indptr, indices, weight = adjacency.with_self_loops(first, *part.take_edges())
    degree = adjacency.in_degree(indptr, weight)
    scale = torch.from_numpy(adjacency.inverse_square_root(degree)).to(device, dtype)
    forward, forward_weight = _planned(comm, part, indptr, indices, weight, ps, (device, dtype))
    if not part.directed:
        return Adjacency(forward, forward, scale, forward_weight, forward_weight)
    indptr, indices, weight = exchange.transpose(comm, part.bounds, indptr, indices, weight)
    backward, backward_weight = _planned(comm, part, indptr, indices, weight, ps, (device, dtype))
    return Adjacency(forward, backward, scale, forward_weight, backward_weight)


def _planned(
    comm: Any,
    part: Part,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: NDArray[np.float32] | None,
    ps: int,
    kind: tuple[str, torch.dtype],
) -> tuple[Plan, Tensor | None]:
    """A plan, and the edge weights in its order. kind: their device and dtype, which are the rows'."""
    plan = workload.build(comm.rank, part.bounds, indptr, indices, ps, keep_edges=weight is not None)
    if weight is None or plan.edge is None:
        return plan, None
    return replace(plan, edge=None), torch.from_numpy(weight[plan.edge]).to(*kind)


def input_features(
    part: Part, backend: Backend, dtype: torch.dtype, normalize: str
) -> torch.Tensor | SparseFeatures:
    """This rank's input rows, [n, F], dense or sparse as the file has them; "row" divides each by its sum.

    Takes the features out of ``part``. Raises InputError if the file has none.
    """
    x = part.take_features()
    if x is None:
        raise InputError(f"{part.path}: has no node features (/node/x); import the graph with features")
    if isinstance(x, SparseRows):
        values = torch.from_numpy(x.data).to(dtype)
        if normalize == "row":
            values /= torch.from_numpy(_row_sums(values.numpy(), x.indptr))
        return SparseFeatures(backend, x.indptr, x.indices, values.to(backend.device), x.shape[1])
    dense = torch.from_numpy(x).to(backend.device, dtype)
    if normalize == "row":
        total = dense.sum(1, keepdim=True)
        dense.div_(torch.where(total == 0, torch.ones_like(total), total))
    return dense


def _row_sums(values: NDArray[Any], indptr: NDArray[np.int64]) -> NDArray[Any]:
    """For each stored value the sum of its row, or 1 where that is 0."""
    degree = np.diff(indptr)
    row = np.repeat(np.arange(len(degree)), degree)
    total = np.bincount(row, values, minlength=len(degree)).astype(values.dtype)
    return np.where(total == 0, 1, total)[row]


def _check_symmetric(comm: Any, part: Part) -> None:
    """A graph that calls itself undirected must have every edge in both directions, or its gradients are wrong."""
    first, edges = int(part.bounds[comm.rank]), part.slice
    mine, low, rows = 0, 0, len(edges.indptr) - 1
    while low < rows:  # a block at a time: hashes take many times the edges' own memory
        high = int(np.searchsorted(edges.indptr, edges.indptr[low] + workload.BLOCK_EDGES, side="right")) - 1
        high = min(max(high, low + 1), rows)
        run = slice(int(edges.indptr[low]), int(edges.indptr[high]))
        destinations = np.repeat(np.arange(first + low, first + high), np.diff(edges.indptr[low : high + 1]))
        weight = None if edges.weight is None else edges.weight[run]
        mine += symmetry.imbalance(symmetry.EdgeSlice(run.start, destinations, edges.indices[run], weight))
        low = high
    total = np.array([mine % 2**64], dtype=np.uint64).view(np.int64)
    mpi.sum_in_rank_order(comm, total)
    if total[0] != 0:
        raise InputError(
            f"{part.path}: says directed=false, but some edge has no equal one in the other direction; "
            f"'mgg verify {part.path}' names it"
        )
