"""Load each rank's part of a graph, and build its matrices from the part's edges."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.graph import Graph, SparseRows
from ...data.store import GraphFile, GraphSlice, open_graph
from ...errors import InputError
from ...plan import adjacency, workload
from ...plan.row_ranges import bounds_of, edge_balanced
from ...plan.workload import SplitEdges
from ...runtime import exchange, mpi
from .matrix import EdgeOrder, Unplanned, check_order
from .plan_cache import PlanCache

Csr = tuple[NDArray[np.int64], NDArray[np.integer]]  # indptr and indices

# Attributes that a part takes over from its graph.
COPIED = ("name", "nodes", "edges", "features", "classes", "directed", "multilabel", "types")


@dataclass
class Part:
    """One rank's rows of a graph (``slice``), and properties of the whole graph.

    A context manager that closes ``file``. bounds: int64 [P + 1]; rank p owns rows bounds[p] .. bounds[p + 1] -
    1. bounds_source: "file", or "computed" if the file has no bounds for this number of ranks. file: the graph
    file, kept open until its dense features are read, as ``slice`` does not contain these; else None.
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
    types: str
    bounds: NDArray[np.int64]
    bounds_source: str
    slice: GraphSlice
    file: GraphFile | None = None
    edge_data: tuple[
        str, ...
    ] = ()  # names of all data of edges in the graph, including those that were not read
    proved_undirected: bool = False  # the file has a proof that each edge's reverse exists
    nbytes: int = 0  # of the slice as it was read, without its features
    matrix: Unplanned | None = None  # kept by an earlier run; the slice has no edges then

    def __post_init__(self) -> None:
        rows = self.slice
        arrays = (rows.indptr, rows.indices, rows.weight, rows.y, rows.train, rows.val, rows.test, rows.ids)
        self.nbytes = sum(array.nbytes for array in (*arrays, *rows.edge.values()) if array is not None)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the graph file. Dense features that were not read can no longer be."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def take_features(self) -> NDArray[Any] | SparseRows | None:
        """Remove the features from the slice and return them; they are freed with the returned object."""
        taken = self.slice.x
        self.slice = replace(self.slice, x=None)
        return taken


def load_part(
    path: Path, comm: Any, edge_data: Iterable[str] | None = None, plans: PlanCache | None = None
) -> Part:
    """Read and check this rank's part of a graph file, except dense features. Collective.

    edge_data: names of the data of edges to read, if the file has them. [default: all] plans: cache of matrices; a
    matrix found there replaces the edges. Raises InputError, the same on all ranks, that names the defect of the file.
    """
    with ExitStack() as opened:
        with mpi.agree(comm):
            file = opened.enter_context(open_graph(path))
            names = file.edge_data if edge_data is None else set(edge_data).intersection(file.edge_data)
            found = bounds_of(file, comm.size) if comm.rank == 0 else None
        found = comm.bcast(found) if comm.size > 1 else found
        assert found is not None  # rank 0 has found them
        bounds, source = found
        kept = None if plans is None else plans.find(comm, file, bounds)
        with mpi.agree(comm):
            low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
            rows = file.slice(low, high, dense=False, edge_data=names, edges=kept is None)
            proved = file.proved_undirected()
        part = Part(
            path=path,
            uuid=file.uuid,
            bounds=bounds,
            bounds_source=source,
            slice=rows,
            edge_data=file.edge_data,
            proved_undirected=proved,
            matrix=kept,
            **{name: getattr(file, name) for name in COPIED},
        )
        if file.x_dtype is not None:
            opened.pop_all()
            part.file = file
        return part


def sliced(graph: Graph, rank: int = 0, ranks: int = 1) -> Part:
    """Return a rank's part of a graph that every rank has in memory, with edges balanced between ranks."""
    bounds = edge_balanced(graph.indptr, ranks)
    low, high = int(bounds[rank]), int(bounds[rank + 1])
    edges = slice(int(graph.indptr[low]), int(graph.indptr[high]))
    by_row = {name: getattr(graph, name) for name in ("y", "train", "val", "test")}
    rows = GraphSlice(
        indptr=graph.indptr[low : high + 1] - edges.start,
        indices=graph.indices[edges],
        weight=None if graph.weight is None else graph.weight[edges],
        x=_rows_of(graph.x, low, high),
        ids=np.arange(low, high) if graph.permutation is None else graph.permutation[low:high],
        edge={name: values[edges] for name, values in graph.edge.items()},
        **{name: None if each is None else each[low:high] for name, each in by_row.items()},
    )
    return Part(
        path=Path(graph.name),
        uuid="",
        bounds=bounds,
        bounds_source="computed",
        slice=rows,
        edge_data=tuple(graph.edge),
        **{name: getattr(graph, name) for name in COPIED},
    )


def _rows_of(x: NDArray[Any] | SparseRows | None, low: int, high: int) -> NDArray[Any] | SparseRows | None:
    """Return rows low .. high - 1 of features, if there are any."""
    if x is None or not isinstance(x, SparseRows):
        return None if x is None else x[low:high]
    values = slice(int(x.indptr[low]), int(x.indptr[high]))
    indptr = x.indptr[low : high + 1] - values.start
    return SparseRows(indptr, x.indices[values], x.data[values], (high - low, x.shape[1]))


def matrix_of(
    comm: Any,
    part: Part,
    kind: str,
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    keep_edges: bool = False,
    ordered: bool = False,
) -> Unplanned:
    """Build this rank's part of the matrix of a kind, with its in-edges and out-edges. Collective.

    kind: "gcn", "edges" or "attention" (`Matrix`). dtype: dtype of scales and weights, the accumulator of the
    rows' dtype. device: device of scales and weights. keep_edges: True to leave the edges in ``part``, which
    loses them otherwise. ordered: True to keep the order of the edges, which `matrix.ordered` needs; not
    available for "gcn".
    """
    if part.matrix is not None:
        kept, part.matrix = part.matrix, None
        return kept.on(device)
    given, nothing = part.slice, np.zeros(0, dtype=np.int64)
    if not keep_edges:
        part.slice = replace(given, indptr=nothing, indices=nothing, weight=None)
    first = int(part.bounds[comm.rank])
    indptr, indices, weight, factor = weighted_edges(kind, first, given.indptr, given.indices, given.weight)
    rows = None if factor is None else torch.from_numpy(factor).to(device, dtype)

    def split(
        indptr: NDArray[np.int64], indices: NDArray[np.integer], weight: NDArray[np.float32] | None
    ) -> tuple[SplitEdges, Tensor | None]:
        keep = ordered or weight is not None
        edges = workload.split(comm.rank, part.bounds, indptr, indices, keep_edges=keep)
        if weight is None or edges.edge is None:
            return edges, None
        return replace(edges, edge=None), torch.from_numpy(weight[edges.edge]).to(device, dtype)

    forward, forward_weight = split(indptr, indices, weight)
    backward, backward_weight = forward, forward_weight
    if part.directed:
        starts, targets, crossing = exchange.transpose(comm, part.bounds, indptr, indices)
        crossed = None if weight is None else crossing.carry(comm, weight)
        backward, backward_weight = split(starts, targets, crossed)
    order = None
    if ordered:
        order = _order_of(comm, part, kind, (given.indptr, given.indices), (indptr, indices))
    return Unplanned(
        forward=forward,
        backward=backward,
        scale=rows if kind == "gcn" else None,
        forward_weight=forward_weight,
        backward_weight=backward_weight,
        kind=kind,
        inverse_degree=rows if kind == "edges" else None,
        order=order,
    )


def _order_of(comm: Any, part: Part, kind: str, given: Csr, made: Csr) -> EdgeOrder:
    """Return the `EdgeOrder` of a matrix, which maps edge data of the graph file to the matrix's edges.

    Collective. given: (indptr, indices) of this rank's in-edges in the file. made: the same of the matrix,
    which has other self loops with kind "attention".
    """
    check_order(kind)
    first, (indptr, indices) = int(part.bounds[comm.rank]), made
    positions = adjacency.one_self_loop_places(first, *given) if kind == "attention" else None
    crossing = exchange.transpose(comm, part.bounds, indptr, indices)[2]
    if not part.directed:
        # The backward uses the forward's plan: row u lists v, and the edge u -> v is the one whose value crosses.
        # Crossing edges arrive in the order of (u, v); rows may list theirs in another order.
        row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        received = np.empty_like(crossing.received)
        received[np.lexsort((indices, row))] = crossing.received
        crossing = replace(crossing, received=received)
    return EdgeOrder(len(given[1]), positions, crossing)


def edge_data_of(part: Part, name: str) -> NDArray[Any]:
    """Return edge data of this rank's in-edges by name, [E, ...], in the file's order; "weight" for weights.

    Raises InputError, which lists the names that the graph has, for an unknown name.
    """
    held, known = dict(part.slice.edge), [*part.edge_data]
    if part.slice.weight is not None:
        held["weight"] = part.slice.weight
        known.append("weight")
    if name in held:
        return held[name]
    has = f"it has {', '.join(known)}" if known else "it has none"
    raise InputError(f"{part.path}: has no data of edges named {name!r}; {has}")


def weighted_edges(
    kind: str,
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: NDArray[np.float32] | None,
) -> tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float32] | None, NDArray[np.float64] | None]:
    """Return (indptr, indices, weight, factor) of the matrix of a kind, from a rank's in-edge CSR and weights.

    first: number of the rank's first row. factor: [n], D^-1/2 for "gcn", D^-1 for "edges", None for "attention".
    """
    if kind == "gcn":
        indptr, indices, weight = adjacency.with_self_loops(first, indptr, indices, weight)
        return indptr, indices, weight, adjacency.inverse_square_root(adjacency.in_degree(indptr, weight))
    if kind == "edges":
        return indptr, indices, None, adjacency.inverse(adjacency.in_degree(indptr, None))
    if kind == "attention":
        return *adjacency.with_one_self_loop(first, indptr, indices), None, None
    raise ValueError(f"no such kind of adjacency: {kind!r}; known are gcn, edges and attention")


def check_symmetric(comm: Any, part: Part) -> None:
    """Check that a graph marked undirected has every edge in both directions, which gradients rely on.

    Collective. It is skipped if the file has a proof, as reading a slice has compared its digests, or if the
    matrix comes from the plan cache, as the run that wrote it has made the check. Raises InputError, the same
    on all ranks.
    """
    if part.directed or part.proved_undirected or part.matrix is not None:
        return
    edges, first = part.slice, int(part.bounds[comm.rank])
    exchange.check_symmetric(comm, part.path, first, edges.indptr, edges.indices, edges.weight)
