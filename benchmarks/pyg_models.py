"""Epochs of models of PyG after `mgg.convert`, beside native layers and PyG's own, on one rank (A B A B).

    python benchmarks/pyg_models.py                            # 50,000 nodes, 1,000,000 edges
    python benchmarks/pyg_models.py --nodes 5000 --edges 50000 --only GCNConv,GATv2Conv

A model is two layers, ReLU and dropout between them; an epoch is forward, loss, backward and a step of Adam. "native":
the same of `mgg.nn`; "pyg": PyG's own, in one process. ``relative_time``: of each to "converted".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from harness import command, options, run
from torch import Tensor, nn
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.tools.bench.results import Results, output_files, words_of

MAKERS: dict[str, Callable[[Any, int, int], nn.Module]] = {
    "GINConv": lambda of, a, b: of.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))),
    "ChebConv": lambda of, a, b: of.ChebConv(a, b, K=3),
}
NATIVE = ("GCNConv", "SAGEConv", "GINConv", "GATConv")
OTHERS = ("GATv2Conv", "TransformerConv", "ResGatedGraphConv", "GraphConv", "ChebConv", "TAGConv", "LEConv")


class Net(nn.Module):
    """Two layers of a kind, of PyG or of mgg.nn; for the second edge_index is the graph."""

    def __init__(
        self, of: Any, kind: str, sizes: tuple[int, int, int], dropout: nn.Module | None = None
    ) -> None:
        super().__init__()
        make = MAKERS.get(kind, lambda of, a, b: getattr(of, kind)(a, b))
        self.conv1, self.conv2, self.dropout = make(of, *sizes[:2]), make(of, *sizes[1:]), dropout

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        h = self.dropout(h, edge_index) if self.dropout else F.dropout(h, training=self.training)
        return self.conv2(h, edge_index)


def epochs(model: Any, loss: Callable[[Tensor], Tensor], *given: Any) -> Callable[[], float]:
    """Return a function that runs an epoch and returns its milliseconds."""
    optimizer = torch.optim.Adam(model.parameters())

    def epoch() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(model(*given)).backward()
        optimizer.step()
        return 1e3 * (time.perf_counter() - began)

    epoch()
    return epoch


@command(__doc__)
@click.option("--nodes", type=int, default=50_000)
@click.option("--edges", type=int, default=1_000_000)
@click.option("--sizes", type=(int, int, int), default=(64, 32, 16), help="Columns.")
@click.option("--only", default=",".join([*NATIVE, *OTHERS]), help="Convolutions.")
@options.turns(7)
@output_files(pictures=False)
def main(
    nodes: int, edges: int, sizes: tuple[int, int, int], only: str, turns: int, files: tuple[Path, ...]
) -> None:
    rng = np.random.default_rng(1)
    index = torch.from_numpy(rng.integers(0, nodes, (2, edges)))
    y = torch.from_numpy(rng.integers(0, sizes[2], nodes))
    x = torch.from_numpy(rng.standard_normal((nodes, sizes[0])).astype(np.float32))
    data = Data(x=x, edge_index=index, y=y, train_mask=torch.ones(nodes, dtype=torch.bool))
    results = Results(
        "pyg_models", nodes=nodes, edges=edges, sizes=str(sizes), threads=torch.get_num_threads()
    )
    with mgg.from_pyg(data) as graph:

        def of_graph(out: Tensor) -> Tensor:
            return graph.loss(out, F.cross_entropy)

        for kind in words_of("--only", only, [*NATIVE, *OTHERS]):
            ours = mgg.convert(Net(pyg, kind, sizes), graph)
            runs = {"converted": epochs(ours, of_graph, graph.x, graph.edge_index())}
            if kind in NATIVE:
                native = Net(mgg.nn, kind, sizes, mgg.nn.Dropout(0.5))
                runs["native"] = epochs(native, of_graph, graph.x, graph)
            own = Net(pyg, kind, sizes)
            runs["pyg"] = epochs(own, lambda out: F.cross_entropy(out, y), x, index)
            results.compare(interleaved(runs, turns), layer=kind)
    results.write(files)
    results.show("layer", "variant", "median_ms", "min_ms", "relative_time")


if __name__ == "__main__":
    run(main)
