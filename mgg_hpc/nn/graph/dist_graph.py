"""A graph in the hands of a training loop of one's own."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from ...plan.workload import prefix_sum
from ...runtime import mpi
from ...runtime.backends.base import Backend
from ..autograd.losses import check_classes, mean_of_all, summed_loss
from ..inputs.host import Input
from ..workspace import accumulator, as_array, row_format
from .extend import halo_ids
from .handle import GraphHandle
from .loading import Part, edge_data_of, input_features, matrix_of, weighted_edges
from .matrix import Adjacency
from .transfer import planned

TRANSFERS = ("auto", "direct", "get", "halo")
SPLITS = ("train", "val", "test")
SPARE = 4  # a heap that cannot grow (OpenSHMEM's) has room for so many times two buffers of the widest rows

open_graphs: list[DistGraph] = []  # in the order in which they were opened


def close_at_exit() -> None:
    """Have graphs closed at the program's end, before what has started until now ends: MPI, OpenSHMEM, NVSHMEM."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    for graph in reversed(open_graphs.copy()):
        graph.close()


class DistGraph(GraphHandle):
    """This rank's part of a graph, which layers take beside their rows.

    Collective to make, to close, and wherever a method says so: all ranks then do the same in the same order.

    x: this rank's features [n, F], a tensor, or what layers take like one where the file has sparse ones; None without.
    y: int64 [n], -1 where unlabelled, or float32 [n, C] of 0 and 1; None without. train, val, test: bool [n]; all of
    them may be replaced. ids: int64 [n], which nodes of the user's these rows are. part: what was read of the graph.
    """

    def __init__(
        self, comm: Any, part: Part, backend: Backend, dtype: torch.dtype, transfer: str, widest: int
    ):
        counts = np.diff(part.bounds)
        if backend.memory.grows:  # NVSHMEM tells who is within reach once it runs
            buffers = 2 * int(counts.max()) * row_format(widest, dtype).row_bytes
            backend.memory.reserve(buffers, int(counts.argmax()))
        self._transfer, self.part, self._closed = _reached_by(comm, backend, transfer), part, False
        self._ends: list[Callable[[], None]] = []
        self._widest = widest
        self._edge_index: dict[str, Tensor] = {}  # by kind
        publishes = self._transfer != "halo"
        super().__init__(
            backend, counts, part.slice.ids, (), dtype=dtype, widest=widest, publishes=publishes, comm=comm
        )
        self.x = self._input()
        rows, device = part.slice, backend.capabilities.device
        self.y = None if rows.y is None else torch.from_numpy(rows.y).to(device)
        self.train, self.val, self.test = (
            torch.zeros(self.rows, dtype=torch.bool, device=device)
            if mask is None
            else torch.from_numpy(mask).to(device)
            for mask in (rows.train, rows.val, rows.test)
        )
        open_graphs.append(self)
        close_at_exit()

    def _input(self) -> Input | None:
        """Return this rank's features, or None. Raises InputError, the same on all ranks, for a damaged file."""
        with mpi.agree(self.comm):
            return input_features(self.part, self.backend, self.dtype, "none") if self.part.features else None

    def __enter__(self) -> DistGraph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ranks agree on these errors; after any other they may not all come here, but one alone does.
        if self.ranks == 1 or kind is None or issubclass(kind, InputError):
            self.close()

    def close(self) -> None:
        """Free what ranks share. Collective; the end of the program does it too."""
        if not self._closed:
            self._closed = True
            open_graphs.remove(self)
            while self._ends:
                self._ends.pop()()
            self.backend.memory.close()

    def on_close(self, end: Callable[[], None]) -> None:
        """Have ``end`` called by `close`, before memory that ranks share is freed."""
        self._ends.append(end)
        close_at_exit()

    def check_open(self) -> None:
        """Raise ValueError once the graph is closed."""
        if self._closed:
            raise ValueError("the graph is closed")

    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        # Raises ValueError once the graph is closed.
        self.check_open()
        return super().adjacency(kind, ordered=ordered)

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

    def _reserve(self, nbytes: int, instead_of: int = 0) -> None:
        if not nbytes:
            return
        if not self.heap_bytes and not self.backend.memory.grows:
            largest, widest = int(self.counts.argmax()), row_format(self._widest, self.dtype)
            buffers = 2 * int(self.counts[largest]) * widest.row_bytes
            self.backend.memory.reserve(SPARE * max(nbytes, buffers), largest)
        super()._reserve(nbytes, instead_of)
        close_at_exit()

    def _planned(self, kind: str, ordered: bool) -> Adjacency:
        wide, device = accumulator(self.dtype), self.device
        matrix = matrix_of(self.comm, self.part, kind, wide, device, keep_edges=True, ordered=ordered)
        rounds = 1 if kind == "attention" else self.backend.capabilities.halo_rounds  # as jobs do
        return planned(self.comm, matrix, [self._transfer], rounds)[0]

    def edge_index(self, kind: str = "edges") -> Tensor:
        """Return the edges to this rank's rows, int64 [2, E]: rows of `extend`'s result, and rows of this rank.

        With them a layer of another library takes (extend(x, graph), x) as its sources and destinations. kind: as in
        `Adjacency`; of "gcn" these are the edges alone, without its weights. Collective at the first call.
        """
        if kind not in self._edge_index:
            self._edge_index[kind] = self._listed(kind)
        return self._edge_index[kind]

    def _listed(self, kind: str) -> Tensor:
        """Compute `edge_index` of a kind."""
        edges, first = self.part.slice, int(self.part.bounds[self.rank])
        indptr, indices = weighted_edges(kind, first, edges.indptr, edges.indices, edges.weight)[:2]
        bounds, low = prefix_sum(self.counts), int(prefix_sum(self.counts)[self.rank])
        halo = halo_ids(self.adjacency("edges").forward, bounds)
        own = (indices >= low) & (indices < low + self.rows)
        source = np.where(own, indices - low, self.rows + np.searchsorted(halo, indices))
        destination = np.repeat(np.arange(self.rows), np.diff(indptr))
        return torch.from_numpy(np.stack([source, destination]).astype(np.int64)).to(self.device)

    def edge_weight(self) -> Tensor | None:
        """Return the weights of `edge_index`'s edges, float32 [E]; None where the graph has none."""
        weight = self.part.slice.weight
        return None if weight is None else torch.from_numpy(weight).to(self.device)

    def edge_data(self, name: str) -> Tensor:
        """Return data of `edge_index`'s edges by name, [E, ...] of the file's type; "weight": their weights.

        Types that torch has not, unsigned integers of more than 8 bits, become int64. Raises InputError for a name
        that the graph has not.
        """
        return self._edge_data(name).to(self.device)

    def _edge_data(self, name: str) -> Tensor:
        values = edge_data_of(self.part, name)
        values = values.astype(np.int64) if values.dtype.name in ("uint16", "uint32", "uint64") else values
        return torch.from_numpy(values)

    def loss(self, out: Tensor, fn: Callable[..., Tensor], split: str = "train") -> Tensor:
        """Return the mean of a loss over the labels of a split on all ranks, a scalar. Collective.

        out: [n, ...], this rank's rows. fn: called with rows of ``out``, their labels and reduction="sum", as
        torch.nn.functional's are; not called on a rank that has no such rows. The value is the mean itself, the same
        on every rank; the gradient is this rank's part of it, and `allreduce_gradients` sums the parts. Labels are the
        rows' where each has one, and rows x classes where y is [n, C]. Raises InputError where no rank has such rows,
        or the labels have more classes than ``out``.
        """
        self.check_open()
        with mpi.agree(self.comm):
            chosen, y = self._labelled(out, split, "graph.loss")
            mine = summed_loss(fn, chosen, y, "graph.loss")
        return mean_of_all(mine, self._sums(mine, y.numel(), split))

    @torch.no_grad()
    def accuracy(self, out: Tensor, split: str = "val") -> float:
        """Return the share of a split's labels on all ranks that ``out`` [n, C] predicts. Collective.

        The class of a row is its largest output; with labels [n, C] a class is predicted where its output is positive.
        Raises InputError where no rank has such rows, or the labels have more classes than ``out``.
        """
        self.check_open()
        with mpi.agree(self.comm):
            chosen, y = self._labelled(out, split, "graph.accuracy")
            check_classes(chosen, y, "graph.accuracy")
        right = (chosen.argmax(1) == y) if y.dim() == 1 else ((chosen > 0) == (y > 0))
        total = self._sums(right.sum(), y.numel(), split)
        return float(total[0] / total[1])

    def gather(self, rows: Tensor, *, everywhere: bool = False) -> Tensor | None:
        """Return all ranks' rows [n, ...] as one tensor [N, ...] on the host, in the user's numbering. Collective.

        On rank 0, and None on the others; everywhere: on all of them.
        """
        self.check_open()
        mine = rows.detach().cpu().contiguous()
        width = math.prod(mine.shape[1:]) * mine.element_size()
        whole = torch.empty(self.num_nodes, *mine.shape[1:], dtype=mine.dtype)
        ids = self._gathered(torch.as_tensor(self.ids).cpu().view(torch.uint8).numpy(), 8, everywhere)
        values = self._gathered(mine.view(torch.uint8).reshape(-1).numpy(), width, everywhere)
        if ids is None or values is None:
            return None
        shape = self.num_nodes, width
        whole.view(torch.uint8).numpy().reshape(shape)[ids.view(np.int64)] = values.reshape(shape)
        return whole

    def _gathered(self, mine: Any, row_bytes: int, everywhere: bool) -> Any:
        """Return the bytes of all ranks' rows in the order of ranks, where they are wanted; else None."""
        from mpi4py import MPI

        wanted = everywhere or self.rank == 0
        every = np.empty(self.num_nodes * row_bytes, np.uint8) if wanted else None
        if not row_bytes:
            return every
        row = MPI.BYTE.Create_contiguous(row_bytes).Commit()  # counts of rows fit where those of bytes do not
        into = [every, (self.counts, prefix_sum(self.counts)[:-1]), row] if wanted else None
        if everywhere:
            self.comm.Allgatherv([mine, self.rows, row], into)
        else:
            self.comm.Gatherv([mine, self.rows, row], into)
        row.Free()
        return every

    def _labelled(self, out: Tensor, split: str, where: str) -> tuple[Tensor, Tensor]:
        """Return this rank's labelled rows of ``out`` in a split, at least float32, and their labels.

        Raises InputError for what does not fit.
        """
        if split not in SPLITS:
            raise ValueError(f"no such split: {split!r}; there are {', '.join(SPLITS)}")
        if self.y is None:
            raise InputError(f"{self.part.path}: has no labels (/node/y); a loss needs them")
        mask: Tensor = getattr(self, split)
        for name, rows in (("out", out), ("graph.y", self.y), (f"graph.{split}", mask)):
            if rows.dim() == 0 or len(rows) != self.rows:
                raise InputError(
                    f"{where}: {name} is {list(rows.shape)}, and this rank has {self.rows} rows of the graph"
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

    def _sums(self, value: Tensor, count: int, split: str) -> Tensor:
        """Return a value and a count, summed over all ranks, [2]. Collective. Raises InputError for a count of 0."""
        wide = torch.float64
        both = torch.stack([value.detach().to(wide), torch.full_like(value, count, dtype=wide)])
        self.backend.collectives.sum(as_array(both))
        if both[1] == 0:
            raise InputError(
                f"{self.part.path}: no rank has labelled rows of the split {split!r} (/node/{split}); "
                "import the graph with --split-per-class, or set the mask"
            )
        return both


def _reached_by(comm: Any, backend: Backend, asked: str) -> str:
    """Return the transfer of remote rows. Raises InputError, the same on all ranks, for one that is impossible."""
    with mpi.agree(comm):
        if asked not in TRANSFERS:
            raise InputError(f"transfer: {asked!r} is none of {', '.join(TRANSFERS)}")
        if asked == "direct" and not backend.capabilities.reaches_peers:
            raise InputError(
                'transfer is "direct", but memory of some ranks is out of reach of pointers; '
                'use "halo", "get" or "auto"'
            )
    return asked if asked != "auto" else "direct" if backend.capabilities.reaches_peers else "halo"
