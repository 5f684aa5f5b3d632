"""Graphs that stream: nets of NGra's programs over them, and what their steps take and move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import cross_entropy

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn import saga
from mgg_hpc.nn.api import open_graph
from mgg_hpc.nn.graph.dist_graph import DistGraph
from mgg_hpc.nn.streaming.graph import StreamedGraph, Streaming
from mgg_hpc.tools.bench.harness import timing

FEATURES, CLASSES = 128, 16
LEAST = 256 << 10  # bytes of rows that small graphs stream through
PLAN_BYTES = 16  # for each edge of an undirected graph, as `StreamedGraph` counts plans


class Gcn(saga.Layer):
    """Graph convolution, by the weights of the normalised graph."""

    kind = "gcn"

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.linear = Linear(columns, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return edge.src * edge.weight

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


class Gated(saga.Layer):
    """Gated GCN: each edge has a gate for each column."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.far, self.near = Linear(columns, columns), Linear(columns, columns, bias=False)
        self.linear = Linear(columns, out)

    def apply_edge(self, edge: saga.Edge) -> Tensor:
        return torch.sigmoid(self.far(edge.src) + self.near(edge.dst)) * edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.relu(self.linear(accum))


PROGRAMS = {"gcn": Gcn, "gated-gcn": Gated}


@dataclass
class Net:
    """Layers of a program, the last of which gives classes, and the graph that they run on."""

    layers: torch.nn.ModuleList
    graph: DistGraph

    def step(self) -> float:
        """Run forward, loss and backward; return the loss."""
        self.layers.zero_grad()
        x: Any = self.graph.x
        for layer in self.layers:
            x = layer(x, self.graph)
        out = x.tensor() if isinstance(self.graph, StreamedGraph) else x
        loss = self.graph.loss(out, cross_entropy)
        loss.backward()
        return float(loss.detach())

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters that have one."""
        return [p.grad.clone() for p in self.layers.parameters() if p.grad is not None]

    @property
    def streamed(self) -> StreamedGraph:
        """The graph of a net that streams."""
        assert isinstance(self.graph, StreamedGraph)
        return self.graph

    def moved(self) -> Moved:
        """Run a step, and return what it moves."""
        graph, meter = self.streamed, self.graph.backend.stream.meter
        meter.taken()
        others, swapped = graph.pace.nbytes, graph.swapped
        self.step()
        swapped = graph.swapped - swapped
        return Moved(meter.stored_bytes, swapped, graph.pace.nbytes - others - swapped)


@dataclass(frozen=True)
class Moved:
    """Bytes between stores and memory in a step.

    chunks: of sources that stream past. sums: that leave memory before they are used, and return. others: rows of
    vertices, their outputs and gradients.
    """

    chunks: int
    sums: int
    others: int

    @property
    def all(self) -> int:
        """All of them."""
        return self.chunks + self.sums + self.others


@dataclass(frozen=True)
class Case:
    """A graph file for a program, and the memory that it streams through. threads: of each rank; 0: its share."""

    path: Path
    graph: dict[str, Any]
    program: str
    threads: int = 0
    hidden: int = FEATURES
    layers: int = 2

    @property
    def limit(self) -> int:
        """Bytes of plan.memory: a quarter of the features, beside the plans."""
        rows = max(self.graph["nodes"] * self.hidden * 4 // 4, LEAST)
        return int(rows + PLAN_BYTES * self.graph["edges"])

    @contextmanager
    def opened(self, streaming: Streaming | None) -> Iterator[Net]:
        """Yield a net over the graph, with the same weights each time. Collective."""
        torch.manual_seed(1)
        with open_graph(self.path, streaming=streaming, threads=self.threads) as graph:
            widths = [graph.num_features, *[self.hidden] * (self.layers - 1), CLASSES]
            layers = torch.nn.ModuleList(PROGRAMS[self.program](a, b) for a, b in pairwise(widths))
            yield Net(layers, graph)

    @contextmanager
    def all_opened(self, ways: Mapping[str, Streaming | None]) -> Iterator[dict[str, Net]]:
        """Yield a net for each way, open at the same time."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.opened(way)) for name, way in ways.items()}


def write(graph: Graph, path: Path, features: int = FEATURES) -> dict[str, Any]:
    """Write a graph with drawn features and labels; return its name and size."""
    rng = np.random.default_rng(0)
    every = np.ones(graph.nodes, bool)
    made = Graph(
        graph.name,
        graph.indptr,
        graph.indices,
        x=rng.standard_normal((graph.nodes, features), dtype=np.float32),
        y=rng.integers(CLASSES, size=graph.nodes),
        classes=CLASSES,
        train=every,
        val=~every,
        test=~every,
        directed=graph.directed,
    )
    writer.write(path, made, force=True)
    return {"graph": graph.name, "nodes": graph.nodes, "edges": graph.edges}


@contextmanager
def written(graph: Graph, features: int = FEATURES) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Write a graph (`write`) into a folder that is removed with the context."""
    with timing.workspace() as folder:
        path = folder / "graph.h5"
        yield path, write(graph, path, features)
