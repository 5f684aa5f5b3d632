"""The batches of a split, epoch after epoch: the same ones on any number of threads and ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...runtime import mpi
from ...runtime.sampler import shuffled
from ..spans import span
from .batch import Batch
from .block import Block
from .source import Source

MOST_STEPS = 1 << 32  # steps of a training that have different draws
MOST_DRAWN = 1 << 30  # edges of a row


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn.

    fanouts: edges to draw of each row, -1 for all; the first of the batch's own rows, so of the last layer, as in PyG.
    batch_size: rows of a batch on all ranks together. shuffle: whether each epoch takes the rows in another order.
    seed: of all draws. prefetch: number of batches that are sampled ahead. drop_last: leave out an epoch's last batch
    where it is smaller. weighted: draw edges with probabilities proportional to their weights.
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
    """The batches of some rows of all ranks. Collective to make.

    rows: int64 [k], this rank's rows that batches are made of, ascending. The rows of all ranks together are divided
    into batches, so a batch has the same rows on any number of ranks. Each rank yields as many batches, with those of
    their rows that it owns, which may be none. y: labels of all rows of this rank, or None. what: what the rows are,
    for messages. Raises InputError, the same on all ranks, where no rank has such rows.

    Attribute steps: number of batches of an epoch.
    """

    def __init__(
        self,
        source: Source,
        rows: NDArray[np.int64],
        y: Tensor | None,
        how: Sampling,
        *,
        what: str = "rows",
    ) -> None:
        self._source, self._y, self._how = source, y, how
        comm = source.comm
        with mpi.agree(comm):
            self._sampler = source.edges.sampler(weighted=how.weighted)
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

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch (from 1 on), from batch ``first`` on, while the next ones are sampled."""
        if epoch * self.steps >= MOST_STEPS:
            raise InputError(
                f"epoch {epoch} of {self.steps} batches: at most 2^32 batches have draws of their own"
            )
        order = self._in_order
        if order is None:
            order = shuffled(self._ids, self._how.seed, epoch, self._source.backend.options.threads)
        ahead = self._how.prefetch
        numbers = range(first, self.steps)
        if not ahead:
            for number in numbers:
                with span("sample"):
                    blocks, rows = self._sampled(order, epoch, number)
                yield self._batch(blocks, rows, epoch, number)
            return
        with ThreadPoolExecutor(min(ahead, self._source.backend.options.threads), "sample") as pool:
            waiting: deque[Future[tuple[list[Block], NDArray[np.int64]]]] = deque()
            try:
                for number in numbers:
                    upto = min(self.steps, number + ahead + 1)
                    for next_one in range(number + len(waiting), upto):
                        waiting.append(pool.submit(self._sampled, order, epoch, next_one))
                    with span("sample"):
                        blocks, rows = waiting.popleft().result()
                    yield self._batch(blocks, rows, epoch, number)
            finally:
                for future in waiting:
                    future.cancel()

    def _sampled(
        self, order: NDArray[np.int64], epoch: int, number: int
    ) -> tuple[list[Block], NDArray[np.int64]]:
        """Return the blocks of a batch, the first layer's first, and this rank's rows of it. Not collective."""
        size, how = self._how.batch_size, self._how
        chosen = order[number * size : (number + 1) * size] - self._first
        chosen = chosen[(chosen >= 0) & (chosen < len(self._own))]
        seeds = self._own[chosen]
        source, step = self._source, (epoch - 1) * self.steps + number
        with source.edges.used():
            sampled = self._sampler.sample(
                seeds, how.fanouts, seed=how.seed, step=step, edges=source.edges.keeps_places
            )
        ids, blocks = source.edges.ids(sampled.nodes), []
        ends = [len(hop.indptr) - 1 for hop in sampled.hops[1:]] + [len(sampled.nodes)]
        for hop, end in zip(sampled.hops, ends, strict=True):
            blocks.append(Block(source, hop, sampled.nodes[:end], ids[:end], weighted=how.weighted))
            for kind in tuple(source.kinds):
                blocks[-1].plan(kind)
        return blocks[::-1], seeds - int(source.bounds[source.comm.rank])

    def _batch(self, blocks: list[Block], rows: NDArray[np.int64], epoch: int, number: int) -> Batch:
        """Return the batch with its input rows and labels."""
        size, y = self._how.batch_size, self._y
        return Batch(
            blocks=blocks,
            x=self._source.input(blocks[0].numbers),
            y=None if y is None else y[self._source.there(torch.from_numpy(rows))],
            rows=rows,
            total=min(size, len(self._ids) - number * size),
            epoch=epoch,
            number=number,
            last=number == self.steps - 1,
        )
