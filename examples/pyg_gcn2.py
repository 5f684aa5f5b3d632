"""PyG's example of GCNII (Chen et al., ICML 2020) over a distributed graph: lines with # mgg are all that differs.

python examples/pyg_gcn2.py GRAPH.h5
mgg launch -n 4 examples/pyg_gcn2.py GRAPH.h5 --epochs 200
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear
from torch_geometric.nn import GCN2Conv

import mgg_hpc as mgg


class Net(torch.nn.Module):
    def __init__(
        self, features: int, hidden: int, classes: int, layers: int, alpha: float, theta: float
    ) -> None:
        super().__init__()
        self.lins = torch.nn.ModuleList([Linear(features, hidden), Linear(hidden, classes)])
        made = (GCN2Conv(hidden, alpha, theta, layer + 1, normalize=True) for layer in range(layers))
        self.convs = torch.nn.ModuleList(made)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, 0.6, training=self.training)
        x = x_0 = self.lins[0](x).relu()
        for conv in self.convs:
            x = F.dropout(x, 0.6, training=self.training)
            x = conv(x, x_0, edge_index).relu()
        return self.lins[1](F.dropout(x, 0.6, training=self.training))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("graph")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--layers", type=int, default=16)
    given = parser.parse_args()
    data = mgg.open(given.graph)  # mgg
    mgg.manual_seed(1)
    model = Net(data.num_features, 64, data.num_classes, given.layers, 0.1, 0.5)
    model = mgg.convert(model, data)  # mgg
    x, edge_index = data.x, data.edge_index()  # mgg
    groups = [{"params": model.convs.parameters(), "weight_decay": 0.01}]
    groups += [{"params": model.lins.parameters(), "weight_decay": 5e-4}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    best = 0.0
    for epoch in range(1, given.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = data.loss(model(x, edge_index), F.cross_entropy)  # mgg
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            best = max(best, data.accuracy(model(x, edge_index), "val"))  # mgg
        if data.rank == 0 and epoch % 10 == 0:  # mgg
            print(f"epoch {epoch}: loss {loss.item():.4f}, best validation {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
