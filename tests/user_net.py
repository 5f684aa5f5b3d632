"""Models of a user's own, in plain torch_geometric, for jobs with model.module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATv2Conv, GCNConv, GINEConv


class Net(nn.Module):
    """Graph convolutions with weights, a norm over all nodes, and a part that is never used."""

    def __init__(self, inputs: int, hidden: int = 8, classes: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(hidden)
        self.conv1 = GCNConv(inputs, hidden, bias=False)  # the norm would cancel it, but for rounding
        self.conv2, self.dropout = GATv2Conv(hidden, classes), dropout
        self.unused = nn.Linear(3, 3)

    def forward(self, x, edge_index, edge_weight=None):
        x = F.dropout(x, self.dropout, self.training)
        x = F.relu(self.norm(self.conv1(x, edge_index, edge_weight)))
        return self.conv2(F.dropout(x, self.dropout, self.training), edge_index)


class WithEdges(nn.Module):
    """A convolution over data of edges, whose forward takes a Data."""

    def __init__(self, inputs: int, columns: int) -> None:
        super().__init__()
        self.conv = GINEConv(nn.Linear(inputs, 4), edge_dim=columns)

    def forward(self, data, verbose=False):
        return self.conv(data.x, data.edge_index, data.edge_attr)


class Wide(Net):
    """Returns a column too many."""

    def forward(self, x, edge_index):
        return torch.cat([super().forward(x, edge_index), x[:, :1]], 1)


class Shuffling(Net):
    """Does what no rank can do on its part of the rows."""

    def forward(self, x, edge_index):
        return super().forward(x[torch.randperm(x.size(0))], edge_index)


class Lacking(Net):
    """Takes what graphs lack."""

    def forward(self, x, edge_index, edge_kind):
        return super().forward(x, edge_index)


def net() -> None:
    """No class."""
