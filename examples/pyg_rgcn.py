"""An R-GCN of PyG (Schlichtkrull et al., ESWC 2018) on a drawn graph; lines with # mgg are all that differs.

python examples/pyg_rgcn.py
mgg launch -n 4 examples/pyg_rgcn.py --nodes 100000 --edges 2000000
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import RGCNConv

import mgg_hpc as mgg

CLASSES, RELATIONS, FEATURES = 4, 8, 16


class Net(torch.nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv1 = RGCNConv(FEATURES, hidden, RELATIONS)
        self.conv2 = RGCNConv(hidden, CLASSES, RELATIONS, num_bases=4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = self.conv1(x, edge_index, edge_type).relu()
        return self.conv2(F.dropout(x, 0.5, training=self.training), edge_index, edge_type)


def drawn(nodes: int, edges: int) -> Data:
    """Return a graph in which edges of relation r lead from class c to class c + r, modulo the number of classes."""
    torch.manual_seed(1)
    y = torch.arange(nodes) % CLASSES
    source, edge_type = torch.randint(nodes, (edges,)), torch.randint(RELATIONS, (edges,))
    target = torch.randint(nodes // CLASSES, (edges,)) * CLASSES + (source + edge_type) % CLASSES
    x = F.one_hot(y, FEATURES) + 2 * torch.randn(nodes, FEATURES)
    part = torch.rand(nodes)
    masks = {"train_mask": part < 0.1, "val_mask": part > 0.5}
    return Data(x=x, y=y, edge_index=torch.stack([source, target]), edge_type=edge_type, **masks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--edges", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=50)
    given = parser.parse_args()
    data = mgg.from_pyg(drawn(given.nodes, given.edges))  # mgg
    mgg.manual_seed(1)
    model = mgg.convert(Net(32), data)  # mgg
    x, edge_index, edge_type = data.x, data.edge_index(), data.edge_data("type")  # mgg
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, given.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = data.loss(model(x, edge_index, edge_type), F.cross_entropy)  # mgg
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            model.eval()
            with torch.no_grad():
                right = data.accuracy(model(x, edge_index, edge_type), "val")  # mgg
            if data.rank == 0:  # mgg
                print(f"epoch {epoch}: loss {loss.item():.4f}, validation {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
