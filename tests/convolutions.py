"""Layers beside PyG's with the same weights, and graphs for them: what tests on one and on several ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import cases
import numpy as np
import reference
import torch
import torch_geometric.nn as pyg
from torch_geometric.utils import softmax

import mgg_hpc as mgg
from mgg_hpc import nn
from mgg_hpc.data.graph import Graph, SparseRows
from mgg_hpc.nn.graph.handle import GraphHandle
from mgg_hpc.nn.graph.loading import Part, matrix_of, sliced
from mgg_hpc.nn.graph.transfer import planned
from mgg_hpc.nn.layers.networks import MLP
from mgg_hpc.nn.workspace import accumulator
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

ALONE = SimpleNamespace(rank=0, size=1, Get_rank=lambda: 0, Get_size=lambda: 1)
NODES = 70
GEOMETRY = Geometry(ps=3, dist=2, wpb=2)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest value
# Spread of attention's parameters: of scores of 100 float32 keeps no more than five digits behind the point.
SCORED = 0.4
WIDEST = 64  # of any layer below, forward or backward


@dataclass(frozen=True)
class Layer:
    """The same layer twice, made from (in_channels, out_channels)."""

    ours: Callable[[int, int], torch.nn.Module]
    pyg: Callable[[int, int], torch.nn.Module]
    spread: float = 1.0  # of random parameters
    ties: bool = False  # whether it tells equal values apart: features are whole numbers then

    def pair(self, in_channels: int, out_channels: int, dtype: torch.dtype) -> tuple[torch.nn.Module, ...]:
        """(ours, PyG's), the second with random parameters, which the first has loaded.

        PyG's computes in float64, with the values that ours has, so that the bound is on our error alone.
        """
        theirs = self.pyg(in_channels, out_channels).to(dtype)
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=self.spread)
        ours = self.ours(in_channels, out_channels).to(dtype)
        ours.load_state_dict(theirs.state_dict())
        return ours, theirs.double()


def _network(a: int, b: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(a, 5), torch.nn.ReLU(), torch.nn.Linear(5, b))


def _late(a: int, b: int) -> torch.nn.Sequential:
    """A network that does not begin with a linear map."""
    return torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(a, b))


def both(name: str, spread: float = 1.0, **options: object) -> Layer:
    """A layer of our module and of PyG's with the same name and options."""
    return Layer(
        lambda a, b: getattr(nn, name)(a, b, **options),
        lambda a, b: getattr(pyg, name)(a, b, **options),
        spread,
        ties=options.get("aggr") == "max",
    )


def _gin(network: Callable[[int, int], torch.nn.Module], **options: object) -> Layer:
    """A GINConv over the same network, ours and PyG's."""
    return Layer(
        lambda a, b: nn.GINConv(network(a, b), **options),
        lambda a, b: pyg.GINConv(network(a, b), **options),
    )


class DotAttention(torch.nn.Module):
    """What GATConv computes with dot products (PyG has no such layer): softmax of <h_u, h_v> / sqrt(C) over edges."""

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__()
        self.shape = heads, out_channels
        self.lin = torch.nn.Linear(in_channels, heads * out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(heads * out_channels))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        nodes, (heads, channels) = len(x), self.shape
        source, target = edge_index[:, edge_index[0] != edge_index[1]]
        source, target = (torch.cat([ends, torch.arange(nodes)]) for ends in (source, target))
        h = self.lin(x).view(nodes, heads, channels)
        scores = (h[source] * h[target]).sum(2) / channels**0.5
        messages = softmax(scores, target, num_nodes=nodes)[:, :, None] * h[source]
        return torch.zeros_like(h).index_add(0, target, messages).reshape(nodes, -1) + self.bias


LAYERS = {
    "gcn": both("GCNConv"),
    "gcn_no_bias": both("GCNConv", bias=False),
    "gin": _gin(_network),
    "gin_trained_eps": _gin(_network, eps=0.3, train_eps=True),
    "gin_one_map": _gin(torch.nn.Linear, eps=-0.4),
    "gin_mlp": Layer(
        lambda a, b: nn.GINConv(MLP([a, 7, b]), train_eps=True),
        lambda a, b: pyg.GINConv(pyg.MLP([a, 7, b], norm=None), train_eps=True),
    ),
    "gin_late": _gin(_late, train_eps=True),
    "sage": both("SAGEConv"),
    "sage_sum": both("SAGEConv", aggr="sum"),
    "sage_max": both("SAGEConv", aggr="max"),
    "sage_bare": both("SAGEConv", root_weight=False, bias=False),
    "sage_normalize": both("SAGEConv", normalize=True),
    "gat": both("GATConv", SCORED, heads=3),
    "gat_average": both("GATConv", SCORED, heads=2, concat=False, negative_slope=0.4),
    "gat_residual": both("GATConv", SCORED, heads=2, residual=True),
    "gat_dot": Layer(
        lambda a, b: nn.GATConv(a, b, 3, attention="dot"), lambda a, b: DotAttention(a, b, 3), SCORED
    ),
    "gat_as_it_is": both("GATConv", SCORED, add_self_loops=False, bias=False),
}


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], rows: dict[str, slice]) -> None:
    """Compare tensors, or those rows that a rank has, within the tolerance of the largest value of all rows."""
    assert found.keys() == wanted.keys()
    for what, value in found.items():
        part = wanted[what].detach()[rows.get(what, ...)]
        size = max(float(wanted[name].detach().abs().max()) for name in _beside(what, wanted))
        error = float((value.double() - part.double()).abs().max()) if part.numel() else 0.0
        assert error <= TOLERANCE[value.dtype] * size, f"{what}: off by {error:.3g} of {size:.3g}"


def _beside(what: str, wanted: dict[str, torch.Tensor]) -> list[str]:
    """The values whose largest one is what an error is compared with.

    The one value of eps may be a small difference of large ones: all gradients. PyG's att_src and att_dst are halves
    of one vector in the paper; a softmax cancels most of the second's gradient.
    """
    if wanted[what].numel() == 1:
        return list(wanted)
    return ["att_src", "att_dst"] if what.startswith("att_") else [what]


def drawn_edges(rng: np.random.Generator, nodes: int, *, directed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations with duplicates, self loops (several for some nodes), nodes without edges and a hub."""
    connected = rng.permutation(nodes)[: nodes - nodes // 6]
    source, destination = rng.choice(connected, (2, 4 * nodes))
    destination[: nodes // 2] = connected[0]
    repeated = rng.integers(len(source), size=nodes // 3)
    source = np.append(source, source[repeated])
    destination = np.append(destination, destination[repeated])
    other = source != destination
    loops = rng.choice(connected, nodes // 3)
    if not directed:
        source, destination = np.append(source, destination), np.append(destination, source)
        other = np.tile(other, 2)
    return np.append(source[other], loops), np.append(destination[other], loops)


def gcn_matrix(indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None = None) -> torch.Tensor:
    """Return the normalised adjacency of a GCN as a float64 matrix."""
    nodes = len(indptr) - 1
    u, v, coefficient = reference.gcn_edges(*reference.edge_list(indptr, indices), nodes, weight)
    matrix = np.zeros((nodes, nodes))
    np.add.at(matrix, (v, u), coefficient)
    return torch.from_numpy(matrix)


@dataclass
class Spread:
    """A graph over ranks: its rows, and handles that layers take. Collective."""

    comm: object
    backend: object
    case: cases.Case
    directed: bool
    dtype: torch.dtype
    transfer: str = "direct"
    weight: np.ndarray | None = None  # of all edges
    ordered: bool = False  # whether handles know the order of edges, for data of these
    handles: dict[str, GraphHandle] = field(default_factory=dict)

    @property
    def mine(self) -> slice:
        """This rank's rows."""
        return self.case.rows(self.comm.rank)

    @property
    def rows(self) -> dict[str, slice]:
        """Which part this rank has of outputs, features and data of edges."""
        return {"out": self.mine, "x": self.mine, "edge_attr": self.case.edges(self.comm.rank)}

    @property
    def edge_index(self) -> torch.Tensor:
        """The whole graph as PyG has it: int64 [2, E]."""
        return torch.from_numpy(np.stack(self.case.edge_list))

    def part(self, x: SparseRows | None = None) -> Part:
        """This rank's part with these features, as a file would give it."""
        graph = Graph("drawn", self.case.indptr, self.case.indices, directed=self.directed)
        part, (indptr, indices) = sliced(graph), self.case.part(self.comm.rank)
        weight = None
        if self.weight is not None:
            weight = self.weight[self.case.edges(self.comm.rank)].astype(np.float32)
        ids = np.arange(self.mine.start, self.mine.stop)
        rows = replace(part.slice, indptr=indptr, indices=indices, weight=weight, x=x, ids=ids)
        return replace(part, bounds=self.case.bounds, bounds_source="file", slice=rows)

    def handle(self, kind: str) -> GraphHandle:
        """The graph for layers that sum with this kind of adjacency."""
        if kind not in self.handles:
            part = self.part()
            ids = part.slice.ids
            of = matrix_of(self.comm, part, kind, accumulator(self.dtype), ordered=self.ordered)
            layers = planned(self.comm, of, [self.transfer])
            counts = np.diff(self.case.bounds)
            self.handles[kind] = GraphHandle(
                self.backend, counts, ids, layers, dtype=self.dtype, widest=WIDEST, comm=self.comm
            )
        return self.handles[kind]


def spread(rng: np.random.Generator, comm: object, backend: object, dtype: torch.dtype, **options) -> Spread:
    """Draw a graph over ranks, of which the last but one of three or more owns nothing."""
    nodes, directed = options.pop("nodes", NODES), options.pop("directed", True)
    bounds = cases.even(nodes, comm.size if comm.size < 3 else comm.size - 1)
    if comm.size > 2:
        bounds = np.insert(bounds, -1, bounds[-2])
    case = cases.csr(*drawn_edges(rng, nodes, directed=directed), nodes, bounds)
    return Spread(comm, backend, case, directed, dtype, **options)


def alone(rng: np.random.Generator, dtype: torch.dtype, **options) -> Spread:
    """Draw a graph on one rank."""
    return spread(rng, ALONE, SerialBackend(0, World(1), Options(GEOMETRY)), dtype, **options)


def features(
    rng: np.random.Generator, layer: Layer, rows: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Draw features for a layer."""
    # Ties at 0 are left out: there PyG's maximum counts the zero that it starts from as another source.
    odd = 2 * rng.integers(-2, 3, (rows, columns)) + 1
    drawn = odd if layer.ties else rng.standard_normal((rows, columns))
    return torch.from_numpy(drawn).to(dtype)


def opened(comm: object, path: Path, dtype: torch.dtype = torch.float64, **options: object) -> mgg.DistGraph:
    """Open a graph file on the hosts of all ranks."""
    backend = "serial" if comm.size == 1 else "shm"
    return mgg.open(path, backend=backend, dtype=str(dtype).removeprefix("torch."), comm=comm, **options)


def summed(comm: object, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of a module's parameters, summed over ranks."""
    totals = {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}
    for total in totals.values():
        mpi.sum_in_rank_order(comm, total)
    return {name: torch.from_numpy(total) for name, total in totals.items()}


def compare(
    rng: np.random.Generator,
    layer: Layer,
    graph: Spread,
    in_channels: int,
    out_channels: int,
    x: torch.Tensor | None = None,
    given: object = None,
) -> None:
    """Compare a layer of ours over each rank's rows with PyG's over all: outputs and all gradients.

    x: all rows, drawn without it. given: this rank's rows in a form that has no gradient.
    """
    dtype, nodes, edges = graph.dtype, graph.case.nodes, len(graph.case.indices)
    torch.manual_seed(int(rng.integers(2**31)))  # the same weights on all ranks
    ours, theirs = layer.pair(in_channels, out_channels, dtype)
    every = {"x": features(rng, layer, nodes, in_channels, dtype) if x is None else x}
    if getattr(ours, "edge_dim", None):
        every["edge_attr"] = torch.from_numpy(rng.standard_normal((edges, ours.edge_dim))).to(dtype)
    own = {name: values[graph.rows[name]].clone().requires_grad_() for name, values in every.items()}
    every = {name: values.double().requires_grad_() for name, values in every.items()}
    wanted = {"out": theirs(edge_index=graph.edge_index, **every)}
    gradient = features(rng, layer, *wanted["out"].shape, dtype)
    wanted["out"].backward(gradient.double())
    if given is not None:
        own["x"] = given
        del every["x"]
    handle = graph.handle(ours.kind)
    with torch.no_grad():  # which needs no values of out-edges
        again = ours(graph=handle, **own)
    out = ours(graph=handle, **own)
    out.backward(gradient[graph.mine])
    found = {"out": out.detach()} | {name: own[name].grad for name in every} | summed(graph.comm, ours)
    wanted |= {name: values.grad for name, values in every.items()}
    wanted |= {name: p.grad for name, p in theirs.named_parameters()}
    with mpi.agree(graph.comm):
        check(found, wanted, graph.rows)
        check({"out": again}, {"out": wanted["out"]}, graph.rows)
