"""From a graph file to each rank's part of it: rows, adjacency, features, ready to aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from ...plan.adjacency import one_self_loop_places
from ...plan.row_ranges import bounds_of, edge_balanced
from ...plan.workload import SplitEdges
from ...runtime import exchange, mpi
from ...runtime.backends.base import Backend
from ..inputs import blocks, nodes
from ..inputs.host import HostFeatures, Input
from ..inputs.sparse import SparseFeatures
from ..workspace import accumulator
from .edge_data import EdgeOrder
from .matrix import Unplanned
from .plan_cache import PlanCache


@dataclass
class Part:
    """One rank's rows of a graph file, and what is known of the whole.

    bounds: int64 [P + 1]. bounds_source: "file", or "computed" where the file has none for this number of ranks.
    file: open while it has dense features that were not read, which the slice has not then. The part is a context
    manager, which closes it.
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
    file: GraphFile | None = None
    edge_data: tuple[str, ...] = ()  # names that the graph has, also of what was not read
    proved_undirected: bool = False  # each edge's reverse was found to be there when the file was written
    nbytes: int = 0  # of the slice as it was read, without its features
    matrix: Unplanned | None = None  # kept by an earlier run: the slice has no edges then

    def __post_init__(self) -> None:
        rows = self.slice
        arrays = (rows.indptr, rows.indices, rows.weight, rows.y, rows.train, rows.val, rows.test, rows.ids)
        self.nbytes = sum(array.nbytes for array in (*arrays, *rows.edge.values()) if array is not None)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the graph file; dense features that were not read are gone then."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def take_edges(self) -> tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float32] | None]:
        """Return (indptr, indices, weight) of the slice and remove them from it: plans replace them."""
        taken = self.slice.indptr, self.slice.indices, self.slice.weight
        nothing = np.zeros(0, dtype=np.int64)
        self.slice = replace(self.slice, indptr=nothing, indices=nothing, weight=None)
        return taken

    def take_features(self) -> NDArray[Any] | SparseRows | None:
        """Return the slice's features and remove them from it: the model's input replaces them."""
        taken = self.slice.x
        self.slice = replace(self.slice, x=None)
        return taken


def load_part(
    path: Path, comm: Any, edge_data: Iterable[str] | None = None, plans: PlanCache | None = None
) -> Part:
    """Read this rank's slice, all but dense features, checking what is read. Collective.

    edge_data: names of the data of edges to read, of those that the file has. [default: all] plans: where a matrix may
    be kept, which is taken instead of the edges. Raises InputError, the same on all ranks, that names what is wrong
    with the file.
    """
    with ExitStack() as opened:
        with mpi.agree(comm):
            file = opened.enter_context(open_graph(path))
            names = file.edge_data if edge_data is None else set(edge_data).intersection(file.edge_data)
            found = bounds_of(file, comm.size) if comm.rank == 0 else None
        told = comm.bcast(found) if comm.size > 1 else found
        assert told is not None  # rank 0 has found them
        bounds, source = told
        kept = None if plans is None else plans.find(comm, file, bounds)
        with mpi.agree(comm):
            low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
            rows = file.slice(low, high, dense=False, edge_data=names, edges=kept is None)
            proved = file.proved_undirected()
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
            slice=rows,
            edge_data=file.edge_data,
            proved_undirected=proved,
            matrix=kept,
        )
        if file.x_dtype is not None:
            opened.pop_all()
            part.file = file
        return part


def whole(graph: Graph) -> Part:
    """Return a graph in memory as the part of the only rank."""
    return sliced(graph, 0, 1)


def sliced(graph: Graph, rank: int, ranks: int) -> Part:
    """Return a rank's part of a graph that each rank has in memory, with edges balanced between ranks."""
    bounds = edge_balanced(graph.indptr, ranks)
    low, high = int(bounds[rank]), int(bounds[rank + 1])
    edges = slice(int(graph.indptr[low]), int(graph.indptr[high]))
    own = slice(low, high)
    rows = GraphSlice(
        indptr=graph.indptr[low : high + 1] - edges.start,
        indices=graph.indices[edges],
        weight=None if graph.weight is None else graph.weight[edges],
        x=_rows_of(graph.x, low, high),
        y=None if graph.y is None else graph.y[own],
        train=None if graph.train is None else graph.train[own],
        val=None if graph.val is None else graph.val[own],
        test=None if graph.test is None else graph.test[own],
        ids=np.arange(low, high) if graph.permutation is None else graph.permutation[own],
        edge={name: values[edges] for name, values in graph.edge.items()},
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
        multilabel=graph.multilabel,
        bounds=bounds,
        bounds_source="computed",
        slice=rows,
        edge_data=tuple(graph.edge),
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
    """Build this rank's matrix of a kind, with its edges in both directions. Collective.

    kind: "gcn", "edges" or "attention" (`Matrix`). dtype: of scales and weights, which is the rows' accumulator.
    device: the backend's. keep_edges: leave the edges in ``part``, which lets go of them otherwise. ordered: keep the
    order of edges, by which `edge_data.ordered` brings their data into that of plans; not of "gcn".
    """
    if part.matrix is not None:
        kept, part.matrix = part.matrix, None
        return kept.on(device)
    given = part.slice
    taken = (given.indptr, given.indices, given.weight) if keep_edges else part.take_edges()
    indptr, indices, weight, factor = weighted_edges(kind, int(part.bounds[comm.rank]), *taken)
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
        backward, backward_weight = split(*exchange.transpose(comm, part.bounds, indptr, indices, weight))
    return Unplanned(
        forward=forward,
        backward=backward,
        scale=rows if kind == "gcn" else None,
        forward_weight=forward_weight,
        backward_weight=backward_weight,
        kind=kind,
        inverse_degree=rows if kind == "edges" else None,
        order=_order_of(comm, part, kind, (given.indptr, given.indices), (indptr, indices))
        if ordered
        else None,
    )


def _order_of(
    comm: Any,
    part: Part,
    kind: str,
    given: tuple[NDArray[np.int64], NDArray[np.integer]],
    made: tuple[NDArray[np.int64], NDArray[np.integer]],
) -> EdgeOrder:
    """Return the order of the edges of a matrix: CSR as the part has them, and as the matrix sums them. Collective."""
    if kind == "gcn":
        raise ValueError("data of edges have no order in an adjacency of kind 'gcn'")
    indptr, indices = made
    at = one_self_loop_places(int(part.bounds[comm.rank]), *given) if kind == "attention" else None
    crossing = exchange.transposed(comm, part.bounds, indptr, indices)[2]
    if not part.directed:
        # The backward sums over the forward's own plan: row u lists v, and the edge u -> v is the one that crosses.
        # Crossing edges come in the order of (u, v); rows may list theirs in another one.
        row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        received = np.empty_like(crossing.received)
        received[np.lexsort((indices, row))] = crossing.received
        crossing = replace(crossing, received=received)
    return EdgeOrder(len(given[1]), at, crossing)


def edge_data_of(part: Part, name: str) -> NDArray[Any]:
    """Return data of the edges of this rank's rows, [E, ...]; "weight": the weights.

    Raises InputError that names what the graph has where it has not this.
    """
    held = dict(part.slice.edge) | ({} if part.slice.weight is None else {"weight": part.slice.weight})
    if name in held:
        return held[name]
    known = [*part.edge_data, *(["weight"] if part.slice.weight is not None else [])]
    has = f"it has {', '.join(known)}" if known else "it has none"
    raise InputError(f"{part.path}: has no data of edges named {name!r}; {has}")


def weighted_edges(
    kind: str,
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    weight: NDArray[np.float32] | None,
) -> tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float32] | None, NDArray[np.float64] | None]:
    """Return the in-edge CSR and weights of a kind's matrix, and the factor of rows: D^-1/2, D^-1 or None."""
    if kind == "gcn":
        indptr, indices, weight = adjacency.with_self_loops(first, indptr, indices, weight)
        return indptr, indices, weight, adjacency.inverse_square_root(adjacency.in_degree(indptr, weight))
    if kind == "edges":
        return indptr, indices, None, adjacency.inverse(adjacency.in_degree(indptr, None))
    if kind == "attention":
        return *adjacency.with_one_self_loop(first, indptr, indices), None, None
    raise ValueError(f"no such kind of adjacency: {kind!r}; known are gcn, edges and attention")


def without_features(part: Part, kind: str, columns: int) -> None:
    """Replace the part's features by the input that model.input = ``kind`` makes of its nodes.

    "degree": sparse rows (`nodes.degree_rows`). "learned": none yet (`nodes.learned_rows` makes them), but so many
    ``columns``.
    """
    x = nodes.degree_rows(part.slice.indptr) if kind == "degree" else None
    part.slice = replace(part.slice, x=x)
    part.close()
    part.features = columns if x is None else x.shape[1]


def input_features(
    part: Part, backend: Backend, dtype: torch.dtype, normalize: str, *, on_host: bool = False
) -> Input:
    """Return this rank's input rows, [n, F], dense or sparse as the file has them; "row" divides each by its sum.

    on_host: dense rows stay in the host's memory. Takes the features out of ``part``, or reads them from its file, in
    blocks, and closes it. Raises InputError if there are none, or the file is damaged.
    """
    x = part.take_features()
    if isinstance(x, SparseRows):
        values = torch.from_numpy(x.data).to(accumulator(dtype))
        if normalize == "row":
            values /= torch.from_numpy(_row_sums(values.numpy(), x.indptr))
        return SparseFeatures(
            backend, x.indptr, x.indices, values.to(backend.capabilities.device), x.shape[1], dtype
        )
    if x is None and part.file is None:
        raise InputError(
            f"{part.path}: has no node features (/node/x); import the graph with features, "
            'or make an input: model.input = "learned" or "degree"'
        )
    rows, columns = len(part.slice.ids), part.features if x is None else x.shape[1]
    finish = divide_by_sums if normalize == "row" else _leave
    if on_host:
        held = HostFeatures(backend, rows, columns, dtype)
        _fill(held.blocks, "cpu", finish, part, x, backend.collectives.rank)
        return held
    dense = blocks.empty(rows, columns, dtype, backend.capabilities.device)
    cut = dense.split(blocks.lengths(rows, columns * dtype.itemsize))
    _fill(cut, backend.capabilities.device, finish, part, x, backend.collectives.rank)
    return dense


def _fill(
    cut: Sequence[Tensor], device: str, finish: blocks.Finish, part: Part, x: NDArray[Any] | None, rank: int
) -> None:
    """Copy dense features of a rank, from memory or else from the file, into blocks on a device."""
    if part.file is not None:
        blocks.read(part.file, int(part.bounds[rank]), cut, device, finish)
        part.close()
    elif x is not None:
        for block, values in zip(cut, torch.from_numpy(x).split([len(each) for each in cut]), strict=True):
            block.copy_(values)
            finish(block)


def _leave(rows: Tensor) -> None:
    """Leave rows as they are."""


def divide_by_sums(rows: Tensor) -> None:
    """Divide each row by its sum, in place, unless that is 0."""
    total = rows.sum(1, keepdim=True, dtype=accumulator(rows.dtype))
    rows.div_(torch.where(total == 0, torch.ones_like(total), total))


def _row_sums(values: NDArray[Any], indptr: NDArray[np.int64]) -> NDArray[Any]:
    """Return for each stored value the sum of its row, or 1 where that is 0."""
    degree = np.diff(indptr)
    row = np.repeat(np.arange(len(degree)), degree)
    total = np.bincount(row, values, minlength=len(degree)).astype(values.dtype)
    return np.where(total == 0, 1, total)[row]


def check_symmetric(comm: Any, part: Part) -> None:
    """Check that a graph marked undirected has every edge in both directions, since gradients rely on it.

    A file that has the proof is taken at its word: each slice was compared with the digests that the proof is about.
    So is a matrix that was kept after this check. Collective. Raises InputError, the same on all ranks.
    """
    if part.directed or part.proved_undirected or part.matrix is not None:
        return
    edges = part.slice
    first = int(part.bounds[comm.rank])
    exchange.check_symmetric(comm, part.path, first, edges.indptr, edges.indices, edges.weight)
