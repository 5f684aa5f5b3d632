"""Time epochs of PyG's models after `mgg.convert` against native layers and against PyG alone, on one rank (A B A B).

    python benchmarks/pyg_models.py                            # 50,000 nodes, 1,000,000 edges
    python benchmarks/pyg_models.py --nodes 5000 --edges 50000 --only GCNConv,GATv2Conv
    python benchmarks/pyg_models.py --only RGCNConv --nodes 500000 --edges 10000000 --turns 3

A model has two layers, with ReLU and dropout between them. An epoch is a forward, the loss, a backward and a step of
Adam. Variants: "converted"; "native", the same model of `mgg.nn`; "pyg", PyG's own, without a graph of MGG;
"pyg fast", with FastRGCNConv, where its matrix for each edge takes less than 8 GiB. ``relative_time`` is the time of a
variant divided by that of "converted". Each edge has one of 16 relations, which RGCNConv takes as edge types.

``memory_mb``, of RGCNConv: peak memory of a process that makes the graph and runs three epochs, less what it had once
the edges were drawn.
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
from harness.processes import alone, peak_from_now, status
from harness.results import Results, output_files, words_of
from torch import Tensor, nn
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.runtime.timing import interleaved

RELATIONS = 16
MAKERS: dict[str, Callable[[Any, int, int], nn.Module]] = {
    "GINConv": lambda of, a, b: of.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))),
    "ChebConv": lambda of, a, b: of.ChebConv(a, b, K=3),
    "RGCNConv": lambda of, a, b: of.RGCNConv(a, b, RELATIONS),
    "FastRGCNConv": lambda of, a, b: of.FastRGCNConv(a, b, RELATIONS),
}
NATIVE = ("GCNConv", "SAGEConv", "GINConv", "GATConv")
OTHERS = ("GATv2Conv", "TransformerConv", "ResGatedGraphConv", "GraphConv", "ChebConv", "TAGConv", "LEConv")
KINDS = (*NATIVE, *OTHERS, "RGCNConv")
MOST_BYTES = 8 << 30  # of a matrix for each edge


class Net(nn.Module):
    """Two layers of a kind, of PyG or of mgg.nn; for the second edge_index is the graph."""

    def __init__(
        self, of: Any, kind: str, sizes: tuple[int, int, int], dropout: nn.Module | None = None
    ) -> None:
        super().__init__()
        make = MAKERS.get(kind, lambda of, a, b: getattr(of, kind)(a, b))
        self.conv1, self.conv2, self.dropout = make(of, *sizes[:2]), make(of, *sizes[1:]), dropout

    def forward(self, x: Tensor, edge_index: Any, *types: Tensor) -> Tensor:
        h = self.conv1(x, edge_index, *types).relu()
        h = self.dropout(h, edge_index) if self.dropout else F.dropout(h, training=self.training)
        return self.conv2(h, edge_index, *types)


def drawn(nodes: int, edges: int, sizes: tuple[int, int, int]) -> Data:
    """Return a graph of random edges."""
    rng = np.random.default_rng(1)
    return Data(
        x=torch.from_numpy(rng.standard_normal((nodes, sizes[0]), dtype=np.float32)),
        edge_index=torch.from_numpy(rng.integers(0, nodes, (2, edges))),
        edge_type=torch.from_numpy(rng.integers(0, RELATIONS, edges)),
        y=torch.from_numpy(rng.integers(0, sizes[2], nodes)),
        train_mask=torch.ones(nodes, dtype=torch.bool),
    )


def epochs(
    variant: str, kind: str, sizes: tuple[int, int, int], data: Data, graph: Any
) -> Callable[[], float]:
    """Return a function that runs an epoch of a variant and returns its milliseconds. graph: of MGG, or None."""
    typed = kind == "RGCNConv"
    given = [data.x, data.edge_index, data.edge_type] if graph is None else [graph.x, graph.edge_index()]
    model: Any = Net(pyg, "FastRGCNConv" if variant == "pyg fast" else kind, sizes)
    if variant == "native":
        model, given = Net(mgg.nn, kind, sizes, mgg.nn.Dropout(0.5)), [graph.x, graph]
    elif variant == "converted":
        model = mgg.convert(model, graph)
        given += [graph.edge_data("type")] if typed else []
    given = given[: 2 + typed]
    optimizer = torch.optim.Adam(model.parameters())

    def epoch() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        out = model(*given)
        loss = F.cross_entropy(out, data.y) if graph is None else graph.loss(out, F.cross_entropy)
        loss.backward()
        optimizer.step()
        return 1e3 * (time.perf_counter() - began)

    epoch()
    return epoch


def peak_mb(variant: str, kind: str, sizes: tuple[int, int, int], nodes: int, edges: int) -> float:
    """Return the peak memory of a variant in this process."""
    data = drawn(nodes, edges, sizes)
    before = status("VmRSS")
    peak_from_now()
    epoch = epochs(variant, kind, sizes, data, mgg.from_pyg(data) if variant == "converted" else None)
    for _ in range(2):
        epoch()
    return (status("VmHWM") - before) / 1e6


@command(__doc__)
@click.option("--nodes", type=int, default=50_000)
@click.option("--edges", type=int, default=1_000_000)
@click.option("--sizes", type=(int, int, int), default=(64, 32, 16), help="Columns.")
@click.option("--only", default=",".join(KINDS), help="Convolutions.")
@options.turns(7)
@output_files(pictures=False)
def main(
    nodes: int, edges: int, sizes: tuple[int, int, int], only: str, turns: int, files: tuple[Path, ...]
) -> None:
    data = drawn(nodes, edges, sizes)
    results = Results(
        "pyg_models", nodes=nodes, edges=edges, sizes=str(sizes), threads=torch.get_num_threads()
    )
    with mgg.from_pyg(data) as graph:
        for kind in words_of("--only", only, KINDS):
            variants = ["converted", *["native"] * (kind in NATIVE), "pyg"]
            memory: dict[str, dict[str, Any]] = {}
            if kind == "RGCNConv":
                variants += ["pyg fast"] * (4 * edges * sizes[0] * sizes[1] < MOST_BYTES)
                memory = {
                    each: {"memory_mb": alone(peak_mb, each, kind, sizes, nodes, edges)} for each in variants
                }
            runs = {
                each: epochs(each, kind, sizes, data, None if each.startswith("pyg") else graph)
                for each in variants
            }
            results.compare(interleaved(runs, turns), memory, layer=kind)
    results.write(files)
    results.show("layer", "variant", "median_ms", "min_ms", "relative_time", "memory_mb")


if __name__ == "__main__":
    run(main)
