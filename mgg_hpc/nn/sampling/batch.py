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

from ..autograd.mean import mean_of_all
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
        is this rank's part of it, and `allreduce_gradients` sums the parts. Raises ValueError without labels.
        """
        if self.y is None:
            raise ValueError("batch.loss: the graph has no labels (/node/y)")
        out = out.to(accumulator(out.dtype))
        mine = fn(out, self.y, reduction="sum") if len(self.y) else out.sum()
        count = self.total * (self.y.shape[1] if self.y.dim() > 1 else 1)
        total = mine.detach().double().reshape(1)
        self.blocks[0].backend.collectives.sum(as_array(total))
        return mean_of_all(mine, torch.cat([total, torch.full_like(total, count)]))
