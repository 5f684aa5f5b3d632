"""The mini-batches of each epoch, and their blocks: the same on any number of threads and ranks.

A block has the sampled edges of one layer of one batch; layers aggregate over it as over a graph. It belongs to
one rank: the input rows that other ranks own are gathered with the batch, so that no layer exchanges rows,
forward or backward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...plan.blocks import BlockPlans, BlockWeights, block_plans
from ...plan.workload import Plan
from ...runtime import mpi
from ...runtime.backends.arguments import Rows
from ...runtime.sampler import Hop, shuffled
from ...runtime.watchdog import collective
from ..autograd.losses import loss_of, mean_of_all
from ..graph.matrix import Adjacency, EdgeValues, LoopFill, check_order, index, with_loops
from ..graph.view import GraphView
from ..inputs.host import Input
from ..spans import span
from ..workspace import accumulator, as_array, row_format
from .source import LOOP, SCALE, WEIGHT, Source

MOST_STEPS = 1 << 32  # batches of a training, each with draws of its own
MOST_DRAWN = 1 << 30  # edges drawn per row
# Blocks of a batch, by layer; numbers of its own rows among this rank's, int64 [b]; input rows, or None.
Drawn = tuple[list["Block"], NDArray[np.int64], Input | None]
LOOPS = {"gcn": "missing", "attention": "one", "edges": "none"}  # self loops of each kind of adjacency


class Block(GraphView):
    """Sampled in-edges of ``destinations`` rows, from ``rows`` sources of which the destinations are the first.

    Made by a `NeighborLoader`. A layer takes x [rows, F] and returns [destinations, F']. If edges were left out,
    GCNConv, GINConv and SAGEConv with ``aggr="sum"`` multiply each sampled edge by one over its probability of being
    drawn, so that a sum is an unbiased estimate of the sum over all edges (Horvitz and Thompson, JASA 1952; for GCNs
    the estimator NS of Chen, Zhu and Song, ICML 2018). If edges are drawn by their weights, those of weight 0 are left
    out. A mean is over the sampled edges; attention and maxima use these alone. GCNConv divides by the degrees of
    the whole graph.

    numbers: int64 [rows], of the rows in the whole graph. ids: int64 [rows], original ids of their nodes.
    """

    ranks = 1

    def __init__(
        self, source: Source, hop: Hop, numbers: NDArray[np.int64], ids: NDArray[np.int64], *, weighted: bool
    ) -> None:
        self._source, self._hop, self._numbers, self._weighted = source, hop, numbers, weighted
        self.backend, self.dtype, self.device = source.backend, source.dtype, source.device
        self.workspace, self.comm, self.rank = source.workspace, source.comm, source.backend.collectives.rank
        self._ids = ids
        self._plans: dict[str, BlockPlans] = {}
        self._made: dict[str, Adjacency] = {}

    @property
    def rows(self) -> int:
        return len(self._numbers)

    @property
    def destinations(self) -> int:
        return len(self._hop.indptr) - 1

    @cached_property
    def all_destinations(self) -> int:
        total = torch.tensor([self.destinations], dtype=torch.float64, device=self.device)
        self.backend.collectives.sum(as_array(total))
        return int(total[0])

    @property
    def edges(self) -> int:
        """Number of sampled edges."""
        return len(self._hop.indices)

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self._numbers

    @cached_property
    def ids(self) -> Any:
        return as_array(self._source.there(torch.from_numpy(self._ids)))

    def edge_index(self) -> Tensor:
        """Return the sampled edges, int64 [2, E]: sources and destinations, as rows of this block."""
        target = np.repeat(np.arange(self.destinations), np.diff(self._hop.indptr))
        return self._source.there(torch.from_numpy(np.stack([self._hop.indices.astype(np.int64), target])))

    def plan(self, kind: str) -> BlockPlans:
        """Return the forward and backward plan of an adjacency of a kind.

        It is made at the first call, and cached. kind: "gcn", "edges" or "attention". May be called by any
        thread. Raises ValueError for an unknown kind.
        """
        if kind not in LOOPS:
            raise ValueError(f"no such kind of adjacency: {kind!r}; known are {', '.join(LOOPS)}")
        if kind not in self._plans:
            own = self._numbers[: self.destinations]
            with self._source.edges.used() as held:
                weights = BlockWeights(
                    self._hop.factor,
                    by_edge=self._weighted,
                    dtype=row_format(1, accumulator(self.dtype)).dtype,
                    weight=held.edges.get(WEIGHT, held.weight) if kind == "gcn" else None,
                    edge=self._hop.edge,
                )
                self._plans[kind] = block_plans(
                    self.rank,
                    self._hop.indptr,
                    self._hop.indices,
                    self.rows,
                    loops=LOOPS[kind],
                    has_loop=held.nodes[LOOP][own] if kind == "gcn" else None,
                    weights=None if kind == "attention" else weights,
                )
        return self._plans[kind]

    @torch.inference_mode(False)
    def adjacency(self, kind: str, *, ordered: bool = False) -> Adjacency:
        if kind not in self._made:
            plans, wide = self.plan(kind), accumulator(self.dtype)

            def there(values: NDArray[Any] | None) -> Tensor | None:
                if values is None:
                    return None
                return self._source.there(torch.from_numpy(np.ascontiguousarray(values)).to(wide))

            degree = np.diff(self._hop.indptr)
            with self._source.edges.used() as held:
                scale = there(held.nodes[SCALE][self._numbers] if kind == "gcn" else None)
            self._made[kind] = Adjacency(
                forward=plans.forward,
                backward=plans.backward,
                scale=scale,
                forward_weight=there(plans.forward_weight),
                backward_weight=there(plans.backward_weight),
                kind=kind,
                inverse_degree=there(1.0 / np.maximum(degree, 1) if kind == "edges" else None),
                positions=plans.order,
            )
            self._source.kinds.add(kind)
        return self._made[kind]

    def edge_data(self, name: str) -> Tensor:
        edge = np.zeros(0, np.int64) if self._hop.edge is None else self._hop.edge
        return self._source.there(torch.from_numpy(self._source.edges.edge_data(name, edge)))

    @property
    def edge_names(self) -> Sequence[str]:
        """Names of the edge data that `edge_data` knows, among them "weight" if edges have weights."""
        with self._source.edges.used() as held:
            return sorted(self._source.edges.names | ({"weight"} if held.weight is not None else set()))

    def edge_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the edge data ``name`` of one edge. Raises ValueError as `edge_data` does."""
        return self._source.edges.edge_data(name, np.zeros(0, np.int64)).shape[1:]

    def _in_order(self, adjacency: Adjacency, values: Tensor, fill: LoopFill) -> EdgeValues:
        check_order(adjacency.kind)
        plans = self.plan(adjacency.kind)
        values = with_loops(values, self.edges, plans.places, fill, "the block has")
        return EdgeValues(values.detach(), values[index(plans.order, values)])

    def exchange(self, dim: int, *, backward: bool = False) -> tuple[Rows, Tensor]:
        local = self.workspace.rows(self.destinations if backward else self.rows, dim, self.dtype)
        rows = self.wrap(local)
        assert rows is not None  # rows of the workspace are laid out as kernels' rows
        return rows, local

    def publish(self, rows: Rows, plan: Plan) -> None:
        pass  # no other rank reads a block's rows


@dataclass(frozen=True, eq=False)
class Batch:
    """This rank's part of a batch. A model takes it in place of the graph: model(batch.x, batch).

    A batch's own rows are those whose outputs the last layer computes, as opposed to the sampled neighbours.

    blocks: one for each layer, the first layer's first: h = conv1(batch.x, batch.blocks[0]), and so on.
    x: input rows of the first block [rows, F], a tensor, or SparseFeatures if the graph's features are sparse;
    None if the graph has none.
    y: labels of the batch's own rows on this rank, [b] or [b, C]; None if the graph has no labels.
    rows: int64 [b], numbers of the batch's own rows among this rank's rows. total: number of the batch's own
    rows on all ranks. epoch: number of the epoch, from 1. number: number of the batch within the epoch, from 0.
    last: True for the epoch's last batch. during: returns a context within which the training step on this
    batch has to run.
    """

    blocks: list[Block]
    x: Input | None
    y: Tensor | None
    rows: NDArray[np.int64]
    total: int
    epoch: int
    number: int
    last: bool
    during: Callable[[], AbstractContextManager[Any]] = nullcontext

    def view(self, number: int) -> GraphView:
        """Return the block of a layer, counted from 0."""
        return self.blocks[number]

    @property
    def ids(self) -> Any:
        """Original ids of the nodes whose rows are ``x``, int64; the batch's own rows come first."""
        return self.blocks[0].ids

    @property
    def edges(self) -> int:
        """Number of sampled edges in all blocks."""
        return sum(block.edges for block in self.blocks)

    @collective("batch.loss")
    def loss(self, out: Tensor, fn: Callable[..., Tensor] = F.cross_entropy) -> Tensor:
        """Return the mean of a loss over the batch's own rows on all ranks, a scalar. Collective.

        out: [b, ...], outputs for this rank's own rows. fn: loss function, as for `DistGraph.loss`; it is not
        called on a rank without rows. The value is the same on every rank, and its backward sums gradients over
        ranks, as for `DistGraph.loss`. Raises InputError, the same on all ranks, if the graph has no labels, a
        row of the batch has none, ``out`` or ``fn`` does not fit, or parameters differ between ranks.
        """
        y, comm = self.y, self.blocks[0].comm
        with mpi.agree(comm):
            if y is None:
                raise InputError("batch.loss: the graph has no labels (/node/y)")
            if len(out) != len(y) or (y.dim() > 1 and out.shape != y.shape):
                raise InputError(f"batch.loss: out is {list(out.shape)}, and batch.y {list(y.shape)}")
            loss = loss_of(fn, "batch.loss")
            if y.dim() == 1 and bool(((y < 0) & (y != loss.ignored)).any()):
                raise InputError("batch.loss: a node of the batch has no label; leave it out of input_nodes")
            mine, divisor = loss.summed(out.to(accumulator(out.dtype)), y, "batch.loss")
        return mean_of_all(mine, divisor, self.blocks[0], "batch.loss", reduction=loss.reduction)[0]


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn.

    fanouts: number of in-edges to draw for each row, or -1 for all, by layer; the first is for the batch's own
    rows, which the last layer computes, as in PyG. batch_size: number of own rows of a batch, on all ranks
    together. shuffle: True to use another order of the rows in each epoch. seed: seed of all draws. prefetch:
    number of batches that are sampled ahead. drop_last: True to leave out an epoch's last batch if it is
    smaller. weighted: True to draw edges with probabilities proportional to their weights.
    """

    fanouts: tuple[int, ...]
    batch_size: int
    shuffle: bool = True
    seed: int = 0
    prefetch: int = 2
    drop_last: bool = False
    weighted: bool = False

    def __post_init__(self) -> None:
        if not self.fanouts or any(each < -1 or each == 0 or each > MOST_DRAWN for each in self.fanouts):
            raise InputError(
                f"fanouts are {list(self.fanouts)}; one for each layer, each at least 1, or -1 for all edges"
            )
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.prefetch < 0:
            raise InputError(f"prefetch is {self.prefetch}; it must be at least 0")
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"seed is {self.seed}; it must be at least 0 and less than 2^63")


class Batches:
    """Divides a set of rows of all ranks into batches, epoch by epoch, and samples these.

    Construction is collective. The rows of all ranks are divided together, so that a batch has the same rows on
    any number of ranks. Every rank yields all batches, each with those of its rows that the rank owns, which
    may be none. rows: int64 [k], ascending numbers of this rank's rows that belong to the set. y: labels of all
    rows of this rank, or None. what: name of the rows in messages. near_bytes, score: as for
    `SharedEdges.sampler`. Raises InputError, the same on all ranks, if no rank has rows.

    Attributes: steps: number of batches of an epoch. sampler: draws the edges of batches.
    """

    def __init__(
        self,
        source: Source,
        rows: NDArray[np.int64],
        y: Tensor | None,
        how: Sampling,
        *,
        what: str = "rows",
        near_bytes: int = 0,
        score: NDArray[np.floating] | None = None,
    ) -> None:
        self._source, self._y, self._how = source, y, how
        comm = source.comm
        with mpi.agree(comm):
            self.sampler = source.edges.sampler(
                source.backend, weighted=how.weighted, near_bytes=near_bytes, score=score
            )
        self._own = rows + int(source.bounds[comm.rank])
        ids = source.edges.ids(self._own)
        every = comm.allgather(ids) if comm.size > 1 else [ids]
        self._first = sum(len(each) for each in every[: comm.rank])
        self._ids = np.concatenate(every)
        if not len(self._ids):
            raise InputError(f"no rank has {what} to make batches of")
        size, total = how.batch_size, len(self._ids)
        self.steps = total // size if how.drop_last else -(-total // size)
        if not self.steps:
            raise InputError(
                f"batch_size is {size}, and there are {total} {what}: with drop_last no batch is left"
            )
        self._in_order = None if how.shuffle else np.argsort(self._ids)

    def epoch(self, epoch: int, first: int = 0) -> Generator[Batch]:
        """Yield the batches of an epoch, counted from 1, from batch ``first`` on; threads sample the next ones.

        If a second stream gathers input rows, it has begun with those of the next batch when a batch is
        yielded.
        """
        beside = self._source.gathers_beside and self._how.prefetch > 0
        with closing(self._gathered(epoch, first, beside=beside)) as gathered:
            begun = deque(islice(gathered, int(beside)))
            while True:
                begun.extend(islice(gathered, 1))
                if not begun:
                    return
                yield self._arrived(*begun.popleft())  # not a variable, which would keep its rows

    def _arrived(self, batch: Batch, stamp: Any) -> Batch:
        """Return the batch; the training stream waits until the second stream has gathered its input rows."""
        if stamp is not None:
            self._source.backend.stream.wait(stamp, batch.x)
        return batch

    def _gathered(self, epoch: int, first: int, *, beside: bool) -> Generator[tuple[Batch, Any]]:
        """Yield batches, each with a stamp that tells when its input rows have been gathered.

        beside: gather them on the second stream; otherwise the stamps are None.
        """
        sample, source, stream = self.sampling(epoch), self._source, self._source.backend.stream
        ahead = max(1, self._how.prefetch - 1) if beside else self._how.prefetch  # one more has been gathered

        def gathered(drawn: Future[Drawn], number: int) -> tuple[Batch, Any]:
            with span("sample"):
                blocks, rows, x = drawn.result()
            with stream.beside() if beside else nullcontext():
                x = source.input(blocks[0].numbers) if x is None else x
                stamp = stream.stamp() if beside else None
            return self.batch(blocks, rows, x, epoch, number), stamp

        with ThreadPoolExecutor(max(1, min(ahead, source.backend.options.threads)), "sample") as pool:
            waiting: deque[Future[Drawn]] = deque()
            try:
                for number in range(first, self.steps):
                    for later in range(number + len(waiting), min(self.steps, number + ahead + 1)):
                        waiting.append(pool.submit(sample, later))
                    try:
                        yield gathered(waiting.popleft(), number)
                    except InputError as error:
                        if source.comm.size == 1:
                            raise
                        # It is this rank's own: ranks in the middle of a step cannot agree on one.
                        raise RuntimeError(f"batch {number} of epoch {epoch}: {error}") from error
            finally:
                for future in waiting:
                    future.cancel()

    def sampling(self, epoch: int) -> Callable[..., Drawn]:
        """Return a function that samples a batch of an epoch, given its number.

        Any thread may call that function. It has the option on_host of `Sampler.sample`. epoch: number of the
        epoch, from 1.
        """
        if epoch * self.steps >= MOST_STEPS:
            raise InputError(
                f"epoch {epoch} of {self.steps} batches: at most 2^32 batches have draws of their own"
            )
        order = self._in_order
        if order is None:
            order = shuffled(self._ids, self._how.seed, epoch, self._source.backend.options.threads)
        return partial(self._sampled, order, epoch)

    def _sampled(self, order: NDArray[np.int64], epoch: int, number: int, *, on_host: bool = False) -> Drawn:
        size, how = self._how.batch_size, self._how
        chosen = order[number * size : (number + 1) * size] - self._first
        chosen = chosen[(chosen >= 0) & (chosen < len(self._own))]
        seeds = self._own[chosen]
        source, step = self._source, (epoch - 1) * self.steps + number
        with source.edges.used():
            sampled = self.sampler.sample(
                seeds, how.fanouts, seed=how.seed, step=step, edges=source.edges.keeps_places, on_host=on_host
            )
        ids, blocks = source.edges.ids(sampled.nodes), []
        ends = [len(hop.indptr) - 1 for hop in sampled.hops[1:]] + [len(sampled.nodes)]
        for hop, end in zip(sampled.hops, ends, strict=True):
            blocks.append(Block(source, hop, sampled.nodes[:end], ids[:end], weighted=how.weighted))
            for kind in tuple(source.kinds):
                blocks[-1].plan(kind)
        rows = seeds - int(source.bounds[source.comm.rank])
        return blocks[::-1], rows, source.ahead(blocks[-1].numbers)

    def batch(
        self, blocks: list[Block], rows: NDArray[np.int64], x: Input | None, epoch: int, number: int
    ) -> Batch:
        """Return the `Batch` of sampled blocks, with its labels and input rows.

        blocks, rows, x: as returned by the function of `sampling`; input rows are gathered now if ``x`` is
        None. epoch, number: as in `Batch`.
        """
        size, y = self._how.batch_size, self._y
        return Batch(
            blocks=blocks,
            x=self._source.input(blocks[0].numbers) if x is None else x,
            y=None if y is None else y[self._source.there(torch.from_numpy(rows))],
            rows=rows,
            total=min(size, len(self._ids) - number * size),
            epoch=epoch,
            number=number,
            last=number == self.steps - 1,
        )
