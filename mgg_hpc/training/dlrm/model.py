"""The deep learning recommendation model (Naumov et al., 2019): tables divided by rows, MLPs on all ranks alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...data.clicks.criteo import INTEGERS
from ...nn.embedding.collection import ShardedEmbeddingBagCollection, TableConfig
from ...nn.embedding.optimizers import RowOptimizer


class DLRM(torch.nn.Module):
    """Logits of clicks: dense features through the bottom MLP, products of all pairs of vectors, the top MLP.

    tables: number of categories. rows: of each table. dim: columns of the tables, and of the bottom MLP's output.
    bottom, top: columns of hidden layers. how: of `ShardedEmbeddingBagCollection`. Collective. Parameters are the same
    on any number of ranks if torch's generators are seeded alike.
    """

    def __init__(
        self,
        tables: int,
        rows: int,
        dim: int,
        bottom: Sequence[int],
        top: Sequence[int],
        optimizer: RowOptimizer,
        **how: Any,
    ) -> None:
        super().__init__()
        self.bottom = mlp([INTEGERS, *bottom, dim], last=torch.nn.ReLU())
        configs = [TableConfig(table(each), rows, dim, [feature(each)]) for each in range(tables)]
        self.tables = ShardedEmbeddingBagCollection(configs, optimizer=optimizer, **how)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1], persistent=False)
        self.top = mlp([dim + pairs.shape[1], *top, 1])

    @property
    def shared(self) -> list[torch.nn.Parameter]:
        """Parameters that are the same on all ranks: those of the MLPs."""
        return [*self.bottom.parameters(), *self.top.parameters()]

    def forward(self, dense: Tensor, bags: Any) -> Tensor:
        """Return logits [B] of this rank's rows. Collective. dense: [B, 13]. bags: of the tables' features."""
        x = self.bottom(dense)
        vectors = torch.cat([x[None], self.tables.stacked(bags)]).transpose(0, 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        found: Tensor = self.top(torch.cat([x, products.index_select(1, self.get_buffer("pairs"))], 1))[:, 0]
        return found


def feature(column: int) -> str:
    """Return the name of a category's feature."""
    return f"category_{column}"


def table(column: int) -> str:
    """Return the name of a category's table."""
    return f"table_{column}"


def mlp(widths: Sequence[int], last: torch.nn.Module | None = None) -> torch.nn.Sequential:
    """Return linear layers of these widths with ReLU between them. last: module after the last one."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], *([last] if last else []))
