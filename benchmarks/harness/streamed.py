"""Nets of programs over graphs that stream (NGra, section 6): times of their steps, and the bytes that these move."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.epoch import Shape, labelled

FEATURES, CLASSES = 128, 16
LEAST = 1 << 20  # bytes of rows that small graphs stream through
PLAN_BYTES = 16  # for each edge of an undirected graph, as `StreamedGraph` counts plans
WARM_UP = 2


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
    """A net of one program's layers, with class scores as its output, and its graph. Calls are collective."""

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

    def ms(self) -> float:
        """Return the milliseconds of a step, of the slowest rank."""
        self.graph.backend.stream.meter.taken()
        self.graph.comm.Barrier()
        began = time.perf_counter()
        self.step()
        return max(self.graph.comm.allgather(1e3 * (time.perf_counter() - began)))

    def moved(self) -> dict[str, float]:
        """Run a step, and return the MB that move between all ranks' stores and memory, as columns of results.

        chunks: sources that stream past. sums: those that leave memory before they are used, and return. moved: all,
        with rows of vertices, their outputs and gradients.
        """
        graph, meter = self.graph, self.graph.backend.stream.meter
        assert isinstance(graph, StreamedGraph)
        meter.taken()
        others, swapped = graph.pace.nbytes, graph.swapped
        self.step()
        chunks = meter.stored_bytes
        found = {
            "moved": chunks + graph.pace.nbytes - others,
            "chunks": chunks,
            "sums": graph.swapped - swapped,
        }
        return {f"{kind}_mb": graph.comm.allreduce(nbytes) / 1e6 for kind, nbytes in found.items()}


@dataclass(frozen=True)
class Case:
    """A graph file for a program, and the memory that it streams through. threads: of each rank."""

    path: Path
    graph: str
    nodes: int
    edges: int
    threads: int
    program: str = "gcn"
    hidden: int = FEATURES
    layers: int = 2

    @property
    def limit(self) -> int:
        """Bytes of plan.memory: a quarter of the features, beside the plans."""
        return max(self.nodes * self.hidden * 4 // 4, LEAST) + PLAN_BYTES * self.edges

    @contextmanager
    def opened(self, streaming: Streaming | None) -> Iterator[Net]:
        """Yield a net over the graph, with the same weights each time. Collective."""
        torch.manual_seed(1)
        with open_graph(self.path, streaming=streaming, threads=self.threads) as graph:
            widths = [graph.num_features, *[self.hidden] * (self.layers - 1), CLASSES]
            layers = torch.nn.ModuleList(PROGRAMS[self.program](a, b) for a, b in pairwise(widths))
            yield Net(layers, graph)

    @contextmanager
    def all_opened(self, variants: Mapping[str, Streaming | None]) -> Iterator[dict[str, Net]]:
        """Yield a net for each variant, open at the same time."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(self.opened(each)) for name, each in variants.items()}


def in_turns(nets: Mapping[str, Net], turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each net's step in each turn, after a warm-up."""
    runs = {name: net.ms for name, net in nets.items()}
    take_turns(runs, WARM_UP)
    return take_turns(runs, turns)


def write(graph: Graph, path: Path, threads: int) -> Case:
    """Write a graph with drawn features and labels, and return its case."""
    writer.write(path, labelled(graph, Shape.of("gcn", FEATURES, None, CLASSES, 0.0)), force=True)
    return Case(path, graph.name, graph.nodes, graph.edges, threads)
