"""The five programs of NGra (section 5) as layers on vertices and edges, and a loop that trains one of them.

python examples/saga_programs.py GRAPH.h5 --program gated-gcn
mgg launch -n 4 examples/saga_programs.py GRAPH.h5 --program commnet
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.nn import GRUCell, Linear, Module, ModuleList, Parameter

import mgg_hpc as mgg
from mgg_hpc.nn import saga


class CommNet(saga.Layer):
    """Communication neural net (Sukhbaatar, Szlam and Fergus, NeurIPS 2016)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.own, self.others = Linear(channels, out), Linear(channels, out)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.own(vertex) + self.others(accum))


class GCN(saga.Layer):
    """Graph convolution (Kipf and Welling, ICLR 2017): weights are those of the normalised graph."""

    kind = "gcn"

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.linear = Linear(channels, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return edge.src * edge.weight

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


class MaxPooling(saga.Layer):
    """Max-pooling GCN (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

    accumulator = "max"

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.pool, self.linear = Linear(channels, channels), Linear(channels, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(self.pool(edge.src))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


class GatedGCN(saga.Layer):
    """Gated GCN (Marcheggiani and Titov, EMNLP 2017): each edge has a gate for each channel."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.gate_src, self.gate_dst = Linear(channels, channels), Linear(channels, channels, bias=False)
        self.linear = Linear(channels, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(self.gate_src(edge.src) + self.gate_dst(edge.dst)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


class GGNN(saga.Layer):
    """Gated graph neural network (Li, Tarlow, Brockschmidt and Zemel, ICLR 2016): a matrix for each type of edges."""

    def __init__(self, channels: int, types: int, name: str = "type") -> None:
        super().__init__()
        self.name, self.matrix = name, Parameter(torch.randn(types, channels, channels) / channels**0.5)
        self.gru = GRUCell(channels, channels)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return saga.typed_linear(edge.src, self.matrix, edge.data[self.name])

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.gru(accum, vertex)


PROGRAMS: dict[str, Any] = {
    "commnet": CommNet,
    "gcn": GCN,
    "max-pooling": MaxPooling,
    "gated-gcn": GatedGCN,
    "gg-nn": GGNN,
}


class Net(Module):
    """Two layers of a program between a linear map of the features and one into the classes."""

    def __init__(self, program: str, features: int, hidden: int, classes: int, types: int) -> None:
        super().__init__()
        sizes = (hidden, types) if program == "gg-nn" else (hidden, hidden)
        self.first, self.last = Linear(features, hidden), Linear(hidden, classes)
        self.layers = ModuleList(PROGRAMS[program](*sizes) for _ in range(2))

    def forward(self, graph: mgg.DistGraph) -> Tensor:
        x = torch.relu(self.first(graph.x))
        for layer in self.layers:
            x = layer(x, graph)
        return self.last(x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", help="graph file with dense features and labels")
    parser.add_argument("--program", choices=list(PROGRAMS), default="gated-gcn")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument(
        "--types", type=int, default=2, help="types of edges (gg-nn; data of edges named type)"
    )
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    mgg.manual_seed(1)
    torch.manual_seed(1)  # the same initial weights on all ranks
    with mgg.open(options.graph) as graph:
        net = Net(options.program, graph.num_features, options.hidden, graph.num_classes, options.types)
        adam = torch.optim.Adam(net.parameters(), lr=0.01)
        for epoch in range(1, options.epochs + 1):
            adam.zero_grad()
            out = net(graph)
            loss = graph.loss(out, torch.nn.functional.cross_entropy)
            loss.backward()
            adam.step()
            accuracy = graph.accuracy(out, "val")
            if graph.rank == 0:
                print(f"epoch {epoch}  loss {float(loss.detach()):.4f}  val {accuracy:.4f}")
        if graph.rank == 0:
            print(net.layers[0].explain())


if __name__ == "__main__":
    main()
