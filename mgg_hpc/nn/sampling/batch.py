"""A batch: some rows of a split, and the blocks that lead to them from the input rows that layers need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...runtime import mpi
from ..autograd.losses import mean_of_all, summed_loss
from ..graph.view import GraphView
from ..inputs.host import Input
from ..workspace import accumulator, as_array
from .block import Block


@dataclass(frozen=True, eq=False)
class Batch:
    """This rank's part of a batch. A model takes it in place of the graph: model(batch.x, batch).

    blocks: one for each layer, the first layer's first: h = conv1(batch.x, batch.blocks[0]), and so on.
    x: input rows of the first block [rows, F], a tensor, or what layers take like one where the graph has sparse ones;
    None where it has none. y: labels of the batch's own rows on this rank, [b] or [b, C]; None without labels.
    rows: int64 [b], which of this rank's rows these are. total: rows of the batch on all ranks.
    epoch, number: from 1, and from 0 within the epoch. last: whether the epoch ends with it.
    """

    blocks: list[Block]
    x: Input | None
    y: Tensor | None
    rows: NDArray[np.int64]
    total: int
    epoch: int
    number: int
    last: bool

    def view(self, number: int) -> GraphView:
        """Return the block of a layer, from 0 on."""
        return self.blocks[number]

    @property
    def ids(self) -> Any:
        """The user's nodes of the rows of ``x``, int64; the batch's own rows come first."""
        return self.blocks[0].ids

    @property
    def edges(self) -> int:
        """Number of sampled edges of all blocks."""
        return sum(block.edges for block in self.blocks)

    def loss(self, out: Tensor, fn: Callable[..., Tensor] = F.cross_entropy) -> Tensor:
        """Return the mean of a loss over the batch's rows on all ranks, a scalar. Collective.

        out: [b, ...], of this rank's rows. fn: called with them, their labels and reduction="sum", as
        torch.nn.functional's are; not called on a rank that has none. The value is the same on every rank; the gradient
        is this rank's part of it, and `allreduce_gradients` sums the parts. Raises InputError, the same on all ranks,
        without labels, for a row that has none, and for what does not fit.
        """
        y, comm = self.y, self.blocks[0].comm
        with mpi.agree(comm):
            if y is None:
                raise InputError("batch.loss: the graph has no labels (/node/y)")
            if len(out) != len(y) or (y.dim() > 1 and out.shape != y.shape):
                raise InputError(f"batch.loss: out is {list(out.shape)}, and batch.y {list(y.shape)}")
            if y.dim() == 1 and len(y) and int(y.min()) < 0:
                raise InputError("batch.loss: a row of the batch has no label; leave it out of input_nodes")
            mine = summed_loss(fn, out.to(accumulator(out.dtype)), y, "batch.loss")
        count = self.total * (y.shape[1] if y is not None and y.dim() > 1 else 1)
        total = mine.detach().double().reshape(1)
        self.blocks[0].backend.collectives.sum(as_array(total))
        return mean_of_all(mine, torch.cat([total, torch.full_like(total, count)]))
