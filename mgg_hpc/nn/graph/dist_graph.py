"""`DistGraph`, the graph of a program that has its own training loop; `extend`, its rows for other libraries."""

from __future__ import annotations

import atexit
import functools
import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, autograd

from ...errors import InputError
from ...plan import workload
from ...plan.workload import Plan, prefix_sum
from ...runtime import cores, exchange, mpi
from ...runtime.backends.base import Backend
from ...runtime.watchdog import collective
from ...sizes import counted
from .. import spans
from ..autograd.losses import check_classes, loss_of, mean_of_all, totals
from ..inputs.features import input_features
from ..inputs.host import Input
from ..spans import first_order, span
from ..workspace import accumulator, row_format
from .handle import GraphHandle
from .loading import Part, edge_data_of, matrix_of, weighted_edges
from .matrix import Adjacency, Unplanned
from .transfer import planned
from .types import EdgeType, Types

TRANSFERS = ("auto", "direct", "get", "halo")
SPLITS = ("train", "val", "test")
TRIMMED = 32  # losses after which freed memory is given back, which otherwise grows by megabytes a step
# What `dir` lists: what programs use, of all that layers and backends need.
PUBLIC = (
    *("x", "y", *SPLITS, "ids", "rows", "num_nodes", "num_edges", "num_features", "num_classes"),
    *("rank", "ranks", "comm", "device", "dtype", "adjacency", "edge_index", "edge_weight", "edge_data"),
    *("edge_values", "loss", "accuracy", "gather", "close"),
)
TYPED = ("types", "x_dict", "edge_index_dict", "joined")  # and of a graph that has types
SPARE = 4  # a heap that cannot grow (OpenSHMEM's) has room for so many times two buffers of the widest rows

open_graphs: list[DistGraph] = []  # in the order of opening


def _close_all() -> None:
    for graph in reversed(open_graphs.copy()):
        graph.close()


def _close_at_exit() -> None:
    """Close graphs when the program ends, before the runtimes that have started so far: MPI, OpenSHMEM, NVSHMEM."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)


class DistGraph(GraphHandle):
    """This rank's part of a graph; layers take it together with the rank's rows.

    Its construction, `close` and methods that say so are collective: all ranks call them in the same order.

    x: this rank's features [n, F], a tensor, or SparseFeatures if the file has sparse ones; None if there are none.
    y: labels, int64 [n] with -1 for unlabelled rows, or float32 [n, C] of 0 and 1; None if there are none. train, val,
    test: masks, bool [n]. x, y and the masks may be replaced. ids: int64 [n], the user's numbers of these rows. part:
    the rank's part of the graph as it was loaded.
    """

    def __init__(
        self, comm: Any, part: Part, backend: Backend, dtype: torch.dtype, transfer: str, widest: int
    ):
        counts = np.diff(part.bounds)
        if backend.memory.grows:  # NVSHMEM knows which ranks pointers reach once it runs
            buffers = 2 * int(counts.max()) * row_format(widest, dtype).row_bytes
            backend.memory.reserve(buffers, int(counts.argmax()))
        reaches = backend.capabilities.reaches_peers
        with mpi.agree(comm):
            if transfer not in TRANSFERS:
                raise InputError(f"transfer: {transfer!r} is none of {', '.join(TRANSFERS)}")
            if transfer == "direct" and not reaches:
                raise InputError(
                    'transfer is "direct", but memory of some ranks is out of reach of pointers; '
                    'use "halo", "get" or "auto"'
                )
        self._transfer = transfer if transfer != "auto" else "direct" if reaches else "halo"
        self.part, self._closed = part, False
        self._losses = 0  # number of calls of `loss`
        publishes = self._transfer != "halo"
        self._ends: list[Callable[[], None]] = []
        self._widest = widest
        self._edge_index: dict[str, Tensor] = {}  # by kind
        self._edge_weight: dict[str, Tensor | None] = {}
        with torch.inference_mode(False):
            super().__init__(
                backend,
                counts,
                part.slice.ids,
                (),
                dtype=dtype,
                widest=widest,
                publishes=publishes,
                comm=comm,
            )
            self.x = self._input()
            rows, device = part.slice, self.device
            self.y = None if rows.y is None else torch.from_numpy(rows.y).to(device)
            self.train, self.val, self.test = (
                torch.from_numpy(np.zeros(self.rows, bool) if mask is None else mask).to(device)
                for mask in (rows.train, rows.val, rows.test)
            )
        open_graphs.append(self)
        _close_at_exit()

    def _input(self) -> Input | None:
        """Return this rank's features, or None if there are none. Collective."""
        with mpi.agree(self.comm):
            return input_features(self.part, self.backend, self.dtype, "none") if self.part.features else None

    def __enter__(self) -> DistGraph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All ranks raise the same InputError; after another error some may not come here, unless there is one rank.
        if self.ranks == 1 or kind is None or issubclass(kind, InputError):
            self.close()

    def close(self) -> None:
        """Free the memory that ranks share, unless done before; the end of the program does so too. Collective."""
        if not self._closed:
            self._closed = True
            open_graphs.remove(self)
            while self._ends:
                self._ends.pop()()
            self.backend.memory.close()

    def on_close(self, end: Callable[[], None]) -> None:
        """Let `close` call ``end`` before it frees the memory that ranks share."""
        self._ends.append(end)
        _close_at_exit()

    def check_open(self) -> None:
        """Raise ValueError once the graph is closed."""
        if self._closed:
            raise ValueError("the graph is closed")

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        self.check_open()
        return super().adjacency(kind, ordered=ordered)

    def __dir__(self) -> list[str]:
        return sorted([*PUBLIC, *(TYPED if self.part.types else ()), *dir(object)])

    def __repr__(self) -> str:
        x = "" if self.x is None else f", x={list(self.x.shape)}"
        sizes = f"{counted(self.num_nodes, 'node')}, {counted(self.num_edges, 'edge')}{x}"
        return f"Graph({sizes}, rank {self.rank} of {self.ranks}{', closed' * self._closed})"

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole graph; of an undirected one, twice that of its pairs."""
        return self.part.edges

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph."""
        return self.part.nodes

    @property
    def num_features(self) -> int:
        """Number of columns of x; 0 without features."""
        return self.part.features

    @property
    def num_classes(self) -> int:
        """Number of classes of the labels in the file; 0 without labels."""
        return self.part.classes

    def reserve(self, nbytes: int, released: int = 0) -> None:
        if not nbytes:
            return
        if not self.heap_bytes and not self.backend.memory.grows:
            largest, widest = int(self.counts.argmax()), row_format(self._widest, self.dtype)
            buffers = 2 * int(self.counts[largest]) * widest.row_bytes
            self.backend.memory.reserve(SPARE * max(nbytes, buffers), largest)
        super().reserve(nbytes, released)
        _close_at_exit()

    def _planned(self, kind: str, ordered: bool) -> Adjacency:
        wide, device = accumulator(self.dtype), self.device
        matrix = matrix_of(self.comm, self.part, kind, wide, device, keep_edges=True, ordered=ordered)
        rounds = 1 if kind == "attention" else self.backend.capabilities.halo_rounds  # as jobs do
        return planned(self.comm, matrix, [self._transfer], rounds)[0]

    def halo(self) -> NDArray[np.int64]:
        """Return the numbers of the remote rows that this rank's edges need, ascending: int64 [H]. Collective."""
        if self.ranks == 1:
            return np.zeros(0, np.int64)
        return halo_ids(self.adjacency("edges").forward, prefix_sum(self.counts))

    def edge_index(self, kind: str = "edges") -> Tensor:
        """Return the edges to this rank's rows, int64 [2, E]: rows of `extend`'s result, and rows of this rank.

        A layer of another library takes (extend(x, graph), x) as its sources and destinations with these edges. kind:
        as in `Matrix`; "gcn" gives the edges without the weights. Collective at the first call.
        """
        if kind in self._edge_index:
            return self._edge_index[kind]
        edges, bounds = self.part.slice, prefix_sum(self.counts)
        low = int(bounds[self.rank])
        indptr, indices = weighted_edges(kind, low, edges.indptr, edges.indices, edges.weight)[:2]
        halo = self.halo()
        own = (indices >= low) & (indices < low + self.rows)
        source = np.where(own, indices - low, self.rows + np.searchsorted(halo, indices))
        destination = np.repeat(np.arange(self.rows), np.diff(indptr))
        with torch.inference_mode(False):
            listed = torch.from_numpy(np.stack([source, destination]).astype(np.int64))
            return self._edge_index.setdefault(kind, listed.to(self.device))

    def edge_weight(self, kind: str = "edges") -> Tensor | None:
        """Return the weights of `edge_index`'s edges, float32 [E], before they are normalised; None if all are 1.

        kind: "edges" or "gcn".
        """
        edges = self.part.slice
        if kind == "edges":
            return None if edges.weight is None else torch.from_numpy(edges.weight).to(self.device)
        if kind not in self._edge_weight:
            low = int(self.part.bounds[self.rank])
            weight = weighted_edges(kind, low, edges.indptr, edges.indices, edges.weight)[2]
            with torch.inference_mode(False):
                self._edge_weight[kind] = None if weight is None else torch.from_numpy(weight).to(self.device)
        return self._edge_weight[kind]

    def edge_data(self, name: str) -> Tensor:
        """Return data of `edge_index`'s edges by name, [E, ...]; "weight" are the weights.

        The type is the file's, but int64 for unsigned integers of more than 8 bits, which torch lacks. Raises
        InputError for a name that the graph does not have.
        """
        return self._edge_data(name).to(self.device)

    def _edge_data(self, name: str) -> Tensor:
        values = edge_data_of(self.part, name)
        values = values.astype(np.int64) if values.dtype.name in ("uint16", "uint32", "uint64") else values
        return torch.from_numpy(values)

    @functools.cached_property
    def types(self) -> Types:
        """This rank's nodes and edges by type, of a graph that was a HeteroData. Collective at the first call."""
        with torch.inference_mode(False):
            return Types(self)

    @property
    def x_dict(self) -> dict[str, Tensor]:
        """Features of this rank's nodes by type, [n_t, F_t], of those that have some. Collective at the first call."""
        x, columns = self.x, self.types.columns
        if not isinstance(x, Tensor):
            return {}
        return {name: x[rows, : columns[name]] for name, rows in self.types.nodes.items() if columns[name]}

    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        """Return the edges to this rank's nodes by type, int64 [2, E_t]: places among the rows of both types.

        Sources are numbered on in the halo, as by `edge_index`. Collective at the first call.
        """
        return dict(self.types.index)

    def joined(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return rows of nodes by type [n_t, C], as a model returns them, in one tensor [n, C], as `loss` takes it.

        Nodes of other types get 0. Raises InputError for other numbers of rows.
        """
        return self.types.joined(rows, "graph.joined")

    @collective("graph.loss")
    def loss(self, out: Tensor, fn: Callable[..., Tensor], split: str = "train") -> Tensor:
        """Return the mean of a loss over the labels of a split on all ranks, a scalar. Collective.

        out: [n, ...], outputs for this rank's rows. fn: a function of torch.nn.functional, a partial of one, a loss
        module, or another function with a keyword ``reduction``, a sum of terms of rows; not called on a rank without
        labelled rows. The mean is torch's over the rows of all ranks, by weights of classes too; with reduction="sum"
        in a partial or a module it is the sum. split: "train", "val" or "test". The value is the same on every rank.
        Each backward of it sums the gradients of all parameters over ranks; a term that each rank adds to it, such as a
        penalty on weights, counts once a rank: divide it by ``ranks``. Raises InputError if no rank has labels in the
        split that count, the labels have more classes than ``out``, ``fn`` does not sum, or parameters differ between
        ranks (compared at call 1, 2, 4, 8 and so on).
        """
        self.check_open()
        self._losses += 1
        if self._losses % TRIMMED == 0:
            cores.trim_memory()
        with mpi.agree(self.comm):
            chosen, y = self._labelled(out, split, "graph.loss")
            loss = loss_of(fn, "graph.loss")
            mine, divisor = loss.summed(chosen, y, "graph.loss")
        mean, terms = mean_of_all(mine, divisor, self, "graph.loss", rows=self.rows, reduction=loss.reduction)
        self._check_count(terms, split)
        return mean

    @collective("graph.accuracy")
    @torch.no_grad()
    def accuracy(self, out: Tensor, split: str = "val") -> float:
        """Return the fraction of a split's labels on all ranks that ``out`` [n, C] predicts. Collective.

        The predicted class of a row is its largest output; if y is [n, C], each class with a positive output is
        predicted. Raises InputError as `loss` does.
        """
        self.check_open()
        with mpi.agree(self.comm):
            chosen, y = self._labelled(out, split, "graph.accuracy")
            check_classes(chosen, y, "graph.accuracy")
        right = (chosen.argmax(1) == y) if y.dim() == 1 else ((chosen > 0) == (y > 0))
        hits, count = totals(right.sum(), y.numel(), collectives=self.backend.collectives).tolist()
        self._check_count(count, split)
        return float(hits / count)

    @collective("graph.gather")
    def gather(self, rows: Tensor, *, everywhere: bool = False) -> Tensor | None:
        """Return all ranks' rows [n, ...] as one host tensor [N, ...] in the user's numbering. Collective.

        everywhere: return it on all ranks. [default: on rank 0, and None on the others]
        """
        from mpi4py import MPI

        self.check_open()
        mine = rows.detach().cpu().contiguous()
        width = math.prod(mine.shape[1:]) * mine.element_size()
        ids = torch.as_tensor(self.ids).cpu().view(torch.uint8).reshape(self.rows, 8)
        packed = torch.cat([ids, mine.view(torch.uint8).reshape(self.rows, width)], 1).numpy()
        wanted = everywhere or self.rank == 0
        every = np.empty((self.num_nodes, 8 + width), np.uint8) if wanted else None
        row = MPI.BYTE.Create_contiguous(8 + width).Commit()  # MPI counts rows: numbers of bytes may not fit
        into = None if every is None else [every, (self.counts, prefix_sum(self.counts)[:-1]), row]
        if everywhere:
            self.comm.Allgatherv([packed, self.rows, row], into)
        else:
            self.comm.Gatherv([packed, self.rows, row], into)
        row.Free()
        if every is None:
            return None
        whole = torch.empty(self.num_nodes, *mine.shape[1:], dtype=mine.dtype)
        order = np.ascontiguousarray(every[:, :8]).view(np.int64)[:, 0]
        whole.view(torch.uint8).numpy().reshape(self.num_nodes, width)[order] = every[:, 8:]
        return whole

    def _labelled(self, out: Tensor, split: str, where: str) -> tuple[Tensor, Tensor]:
        """Return this rank's labelled rows of ``out`` in a split, in the accumulator's type, and their labels.

        where: begins messages. Raises InputError for tensors of the wrong shape or type.
        """
        if split not in SPLITS:
            raise ValueError(f"no such split: {split!r}; there are {', '.join(SPLITS)}")
        if self.y is None:
            raise InputError(f"{self.part.path}: has no labels (/node/y); a loss needs them")
        mask: Tensor = getattr(self, split)
        for name, rows in (("out", out), ("graph.y", self.y), (f"graph.{split}", mask)):
            if not isinstance(rows, Tensor):
                raise InputError(f"{where}: {name} is a {type(rows).__name__}; expected a tensor [n, ...]")
            if rows.dim() == 0 or len(rows) != self.rows:
                raise InputError(
                    f"{where}: {name} is {list(rows.shape)}, and this rank has {self.rows} nodes of the graph"
                )
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise InputError(f"{where}: graph.{split} is {mask.dtype} {list(mask.shape)}; expected bool [n]")
        y = self.y
        if y.dim() == 1:
            if y.is_floating_point() or y.dtype == torch.bool:
                raise InputError(
                    f"{where}: graph.y is {y.dtype} [n]; expected integers [n] or numbers [n, C]"
                )
            y, mask = y.long(), mask & (y >= 0)
        elif y.shape != out.shape:
            raise InputError(
                f"{where}: out is {list(out.shape)}, and graph.y {list(y.shape)}; expected the same"
            )
        chosen = mask.nonzero().reshape(-1)
        labels = y.index_select(0, chosen)
        return out.index_select(0, chosen).to(accumulator(out.dtype)), labels

    def _check_count(self, count: float, split: str) -> None:
        """Raise InputError for a split without labelled rows."""
        if count == 0:
            raise InputError(
                f"{self.part.path}: no rank has labelled nodes of the split {split!r} (/node/{split}) that count; "
                "import the graph with --split-random 0.6 0.2, or set the mask"
            )


# ---- rows of a rank and of its halo, for layers of other libraries
#
# Such a layer sees a bipartite graph: its sources are the extended rows [n + H], its destinations this rank's rows [n].
# Extending is a sum in which each destination has one edge. Its adjoint, which returns the gradients of the halo to
# their owners, is the sum over the transposed plan; so both run on any backend, by any transfer.


class Extension(NamedTuple):
    """adjacency: from rows [n] to extended rows. counts: int64 [P], the extended rows of each rank. rows: places of
    those rows that are extended, the rows of a type. [default: all]
    """

    adjacency: Adjacency
    counts: NDArray[np.int64]
    rows: Tensor | None = None


_extensions: WeakKeyDictionary[Plan, Extension] = WeakKeyDictionary()  # of a plan's halo


def halo_ids(plan: Plan, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct remote rows that a plan sums, as global numbers, ascending: int64 [H]."""
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(plan.halo_bounds))
    return plan.halo + bounds[owner]


def extension(graph: GraphHandle, plan: Plan, source: NDArray[np.int64], rows: Tensor | None) -> Extension:
    """Plan the extension by a plan's transfer. source: global numbers of the extended rows. Collective."""
    comm, backend = graph.comm, graph.backend
    if comm is None:
        raise ValueError("extend: the graph's handle was made without the communicator of its ranks (comm=)")
    bounds, rank = prefix_sum(graph.counts), graph.rank
    indptr = np.arange(len(source) + 1)
    counts = np.array(comm.allgather(len(source)))
    extended = prefix_sum(counts)
    forward = workload.split(rank, bounds, indptr, source)
    indptr, copies, _ = exchange.transpose(comm, bounds, indptr, source, extended)
    both = Unplanned(forward, workload.split(rank, extended, indptr, copies), None, kind="extension")
    return Extension(planned(comm, both, [plan.transfer], backend.capabilities.halo_rounds)[0], counts, rows)


class _Copies(autograd.Function):
    """Extend rows by the halo; or the adjoint, sum the copies at their owners: the own one first, then other ranks' in
    a fixed order. The backward of either is the other.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, graph: GraphHandle, adjacency: Adjacency, counts: NDArray[np.int64], fold: bool
    ) -> Tensor:
        ctx.call, ctx.layer = (graph, adjacency, counts, fold), spans.current()
        with span("forward: extend"):
            return _copied(x, graph, adjacency, counts, fold)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        graph, adjacency, counts, fold = ctx.call
        with span("backward: extend"):
            return _copied(gradient, graph, adjacency, counts, not fold), None, None, None, None


def _copied(
    x: Tensor, graph: GraphHandle, adjacency: Adjacency, counts: NDArray[np.int64], fold: bool
) -> Tensor:
    rows, local = graph.exchange(x.shape[1], counts=counts if fold else None)
    local.copy_(x)
    return graph.aggregate(adjacency, rows, backward=fold)


def _extended(graph: GraphHandle, of: Adjacency | Extension | None) -> Extension:
    if isinstance(of, Extension):
        return of
    plan = (of or graph.adjacency("edges")).forward
    if plan not in _extensions:
        bounds = prefix_sum(graph.counts)
        own = np.arange(bounds[graph.rank], bounds[graph.rank + 1])
        _extensions[plan] = extension(graph, plan, np.append(own, halo_ids(plan, bounds)), None)
    return _extensions[plan]


@collective("mgg.extend")
def extend(x: Tensor, graph: GraphHandle, adjacency: Adjacency | Extension | None = None) -> Tensor:
    """Return this rank's rows x [n, F], followed by each remote row that its edges need, once: [n + H, F].

    Remote rows are in the order of their numbers in the graph file, as `DistGraph.edge_index` counts them. x has the
    graph's dtype. adjacency: its halo and transfer are used. [default: the graph's "edges"] Collective, and so is its
    backward.
    """
    planned, counts, rows = _extended(graph, adjacency)
    x = x if rows is None else x.new_zeros(graph.rows, x.shape[1]).index_copy(0, rows, x)
    extended: Tensor = _Copies.apply(x, graph, planned, counts, False)
    return extended


@collective("mgg.extend")
def fold(x: Tensor, graph: GraphHandle, of: Extension | None = None) -> Tensor:
    """Return the sums [n, F] of all ranks' copies x [n + H, F] of each row: the adjoint of `extend`. Collective."""
    planned, counts, rows = _extended(graph, of)
    folded: Tensor = _Copies.apply(x, graph, planned, counts, True)
    return folded if rows is None else folded[rows]
