"""Converted models over several ranks, beside the same models in one process: equal, or refused with a reason."""

from __future__ import annotations

import copy
import functools
import math
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pyg_convs
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
import torch_geometric.utils as U
from mpi4py import MPI
from tiers import long_except
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.nn.convert import check, compare, relations, running
from mgg_hpc.runtime import mpi

pytestmark = pytest.mark.mpi

NEAR = 1e-10  # of the largest value, in float64
SAMPLE = "GCNConv ChebConv GATConv PNAConv ClusterGCNConv DirGNNConv HypergraphConv"


@pytest.fixture
def every(rng):
    """A graph with everything that is hard about edges, and tensors of its nodes and edges."""
    return pyg_convs.drawn(rng)


@pytest.fixture
def opened(comm, every):
    graph, mine = pyg_convs.opened(every, comm, dtype="float64")
    yield graph, mine
    graph.close()


@pytest.mark.parametrize("name", long_except(pyg_convs.CONVS, *SAMPLE.split()))
def test_convolutions_are_pygs(comm, rng, name):
    found = pyg_convs.table([name], comm, rng, "float64")[name]
    (kind,) = (kind for kind, names in pyg_convs.documented().items() if name in names)
    with mpi.agree(comm):
        assert isinstance(found, str) if kind.startswith("refused") else found < NEAR, found


# ---- forwards


class _Clone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


def _norm(y):
    return F.batch_norm(y, None, None, training=True)


def _sum(x, e, weight=None):
    sent = x[e[0]] if weight is None else x[e[0]] * weight[:, None]
    return U.scatter(sent, e[1], 0, x.size(0), "sum")


def _past(x):
    with torch._C.DisableTorchFunction():
        return x / x.size(0)


def _halved(x):
    while x.norm() > 1:
        x = x / 2
    return x


def _put(x, mask):
    x = x.clone()
    x[mask] = x[mask] * 3
    return x


def _table(x, reduce):
    c = x.argmax(1)
    return x.new_zeros(8, 8).scatter_reduce(0, c[:, None].expand_as(x), x, reduce)[c]


# Right on a part of the rows only with the help of other ranks.
SERVED = {
    "mean": lambda x, e: x - x.mean(0),
    "sum of edges": lambda x, e: x * (x[e[0]] * x[e[1]]).sum(),
    "amax": lambda x, e: x - x.amax(0) - x.min(),
    "deviation": lambda x, e: x / x.std(0) * x.var(),
    "softmax": lambda x, e: F.softmax(x, dim=0) * x.log_softmax(-2),
    "norms": lambda x, e: x / x.norm() * x.norm(dim=0),
    "normalize": lambda x, e: F.normalize(x, dim=0),
    "batch norm": lambda x, e: _norm(x),
    "pooling": lambda x, e: (
        x + pyg.global_mean_pool(x, None) + pyg.global_add_pool(x, x.new_zeros(x.size(0)).long())
    ),
    "a table of classes": lambda x, e: _table(x, "sum"),
    "numbers of nodes": lambda x, e: x * math.log(x.shape[0]) / len(x) * e.size(1) + x.sum(0) / x.size(0),
    "out-degrees": lambda x, e: x * U.degree(e[0], x.size(0), dtype=x.dtype)[:, None],
    "both directions": lambda x, e: _sum(x, torch.cat([e, e.flip(0)], 1)),
    "mean at sources": lambda x, e: U.scatter(x[e[1]], e[0], 0, x.size(0), "mean"),
    "laplacian": lambda x, e: _sum(
        x, *U.get_laplacian(e, normalization="sym", num_nodes=x.size(0), dtype=x.dtype)
    ),
    "a branch by all rows": lambda x, e: x * 2 if x.sum().item() > 0 or (x > 9).any() else x * 3,
    "a loop by all rows": lambda x, e: _halved(x),
    "masks": lambda x, e: _put(_put(x, x[:, 0] > 0), torch.where(x[:, 1] > 0)[0]),
    "marked rows": lambda x, e: (
        x * x.new_zeros(x.size(0)).index_put((e[1],), torch.tensor(1.0).double())[:, None]
    ),
    "a subgraph": lambda x, e: _sum(x, U.subgraph(x[:, 0] > 0, e, num_nodes=x.size(0))[0]),
    "random numbers for all": lambda x, e: x + torch.randn(1),
}
REFUSED_FORWARDS = {
    "max with places": lambda x, e: x - x.max(0).values,
    "topk": lambda x, e: x * (x >= x.topk(5, dim=0).values[-1]),
    "sort": lambda x, e: x[x[:, 0].argsort()],
    "shuffle": lambda x, e: x[torch.randperm(x.size(0))],
    "another shuffle": lambda x, e: x[torch.randperm(len(x))],
    "a row": lambda x, e: x - x[0],
    "some rows": lambda x, e: x[::2],
    "turned": lambda x, e: x.flip(0) + x.roll(1, 0),
    "cumsum": lambda x, e: x.cumsum(0),
    "gram": lambda x, e: x @ (x.t() @ x),
    "all with all": lambda x, e: (x @ x.t()).softmax(-1) @ x,
    "distances": lambda x, e: x * torch.cdist(x, x).sum(1, keepdim=True),
    "einsum": lambda x, e: x * torch.einsum("nf,nf->f", x, x),
    "median": lambda x, e: x - x.median(0).values,
    "convolution over rows": lambda x, e: F.conv1d(x.t()[None], x.new_ones(8, 8, 3), padding=1)[0].t(),
    "attention of all": lambda x, e: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "numbers as values": lambda x, e: x * torch.arange(x.size(0))[:, None],
    "edges as numbers": lambda x, e: x * (e[0] * x.size(0) + e[1]).double().mean(),
    "the largest number": lambda x, e: x * (int(e.max()) + 1),
    "edges one way": lambda x, e: _sum(x, e[:, e[0] < e[1]]),
    "some edges": lambda x, e: _sum(x, e[:, :20]),
    "dropped edges": lambda x, e: _sum(x, U.dropout_edge(e, p=0.5, training=True)[0]),
    "coalesced edges": lambda x, e: _sum(x, U.to_undirected(e, num_nodes=x.size(0))),
    "maxima at sources": lambda x, e: U.scatter(x[e[1]], e[0], 0, x.size(0), "max"),
    "softmax at sources": lambda x, e: _sum(x, e, U.softmax(x[e[1], 0], e[0], num_nodes=x.size(0))),
    "one of several": lambda x, e: x.clone().index_put((e[1],), x[e[0]]),
    "noise": lambda x, e: x + torch.rand_like(x),
    "more noise": lambda x, e: x + torch.randn(x.shape),
    "values in Python": lambda x, e: x * sum(x[:, 0].tolist()),
    "values in NumPy": lambda x, e: x * float(np.mean(np.asarray(x.detach()))),
    "a rank's branch": lambda x, e: x + 1 if MPI.COMM_WORLD.rank else x,
    "a rank's number": lambda x, e: x * (MPI.COMM_WORLD.rank + 1),
    "a rank's tensor": lambda x, e: x * torch.tensor(1.5 + MPI.COMM_WORLD.rank),
    "a rank's column": lambda x, e: x * x[:, MPI.COMM_WORLD.rank, None],
    "a rank's columns": lambda x, e: x * x[:, MPI.COMM_WORLD.rank :][:, :1],
    "a rank's filling": lambda x, e: x * torch.full((8,), MPI.COMM_WORLD.rank),
    "a rank's shape": lambda x, e: x * torch.ones(MPI.COMM_WORLD.rank + 1).sum(),
    "a rank's factor": lambda x, e: torch.add(x, x, alpha=MPI.COMM_WORLD.rank),
    "a rank's turn": lambda x, e: x.roll(MPI.COMM_WORLD.rank, 1),
    "gradients by counts": lambda x, e: F.embedding(
        x.argmax(1), torch.ones(8, 8).double().requires_grad_(), scale_grad_by_freq=True
    ),
    "marked sources": lambda x, e: (
        x * x.new_zeros(x.size(0)).index_put((e[0],), torch.tensor(1.0).double())[:, None]
    ),
    "past torch's functions": lambda x, e: _past(x),
    "into another tensor": lambda x, e: torch.mul(x.detach(), 2, out=torch.empty_like(x)),
    "a virtual node": lambda x, e: torch.cat([x, x.mean(0, keepdim=True)])[:-1],
    "other rows": lambda x, e: x + torch.zeros(pyg_convs.NODES, 8),
    "reshaped": lambda x, e: x.t().reshape(-1, 8),
    "reordered": lambda x, e: torch.cat([x[x[:, 0] > 0], x[x[:, 0] <= 0]]),
    "row by row": lambda x, e: torch.stack([row * 2 for row in x]),
    "a hook of gradients": lambda x, e: (x * 1).register_hook(lambda g: g - g.mean(0)) and x,
    "a function of gradients": lambda x, e: _Clone.apply(x),
    "a checkpoint": lambda x, e: checkpoint(_norm, x, use_reentrant=False),
    "an older checkpoint": lambda x, e: checkpoint(_norm, x, use_reentrant=True),
    "a dense adjacency": lambda x, e: U.to_dense_adj(e, max_num_nodes=x.size(0))[0].double() @ x,
    "copied numbers": lambda x, e: _sum(x, e.clone().copy_(e.flip(0))),
    "numbers of another rank": lambda x, e: x * (torch.arange(x.size(0))[e[0]] == e[1]).sum(),
    "maxima of classes": lambda x, e: _table(x, "amax"),
    "a loss": lambda x, e: x * F.mse_loss(x, x * 2),
}


class Net(nn.Module):
    """A linear map, and a forward."""

    def __init__(self, forward):
        super().__init__()
        self.lin, self.run = nn.Linear(8, 8), forward

    def forward(self, x, edge_index):
        torch.manual_seed(3)
        return self.run(self.lin(x), edge_index)


class Chosen(nn.Module):
    """One of two linear maps, as each rank likes."""

    def __init__(self):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x, edge_index):
        return self.lins[MPI.COMM_WORLD.rank % 2](x)


def test_norms_of_pyg_see_all_rows(comm, every, opened):
    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            made = (pyg.GraphNorm(8), pyg.LayerNorm(8), pyg.PairNorm(), pyg.MeanSubtractionNorm())
            self.norms = nn.ModuleList([*made, pyg.DiffGroupNorm(8, 3), pyg.BatchNorm(8), nn.Linear(8, 8)])

        def forward(self, x, edge_index):
            for norm in self.norms:
                x = norm(x)
            return x

    torch.manual_seed(1)
    model = Norms()
    alone = copy.deepcopy(model).double()
    graph, mine = opened
    found = pyg_convs.compared(model, "x index", every, graph, mine, torch.float64)
    alone(every["x"], None)
    with mpi.agree(comm):
        assert found < NEAR
        for (name, each), wanted in zip(model.named_buffers(), alone.buffers(), strict=True):
            torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("names", [list(SERVED)[::2], list(SERVED)[1::2]])
def test_what_needs_other_ranks_is_served(comm, every, opened, names):
    graph, mine = opened
    for name in names:
        torch.manual_seed(1)
        found = pyg_convs.compared(Net(SERVED[name]).double(), "x index", every, graph, mine, torch.float64)
        with mpi.agree(comm):
            assert found < NEAR, (name, found)


def test_what_is_wrong_on_a_part_is_refused(comm, opened):
    graph, mine = opened
    for name, forward in (REFUSED_FORWARDS | {"a rank's weights": Chosen}).items():
        torch.manual_seed(1)
        made = forward() if forward is Chosen else Net(forward)
        model = mgg.convert(made.double(), graph, check="rank" not in name)
        said = ""
        try:
            model(mine["x"], mine["index"])
        except mgg.InputError as error:
            said = str(error)
        with mpi.agree(comm):
            assert (said or comm.size == 1) and "\n" not in said, name
            assert len(set(comm.allgather(said))) == 1 or comm.size == 1, name


# ---- training


class Gat(nn.Module):
    """PyG's example, with dropout of rows, of attention and of weights."""

    def __init__(self):
        super().__init__()
        self.conv1 = pyg.GATConv(8, 4, heads=2, dropout=0.4, edge_dim=3)
        self.conv2 = pyg.GATv2Conv(8, 5, dropout=0.4)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, edge_index, edge_attr):
        x = F.dropout(x, 0.5, self.training)
        x = F.elu(self.norm(self.conv1(x, edge_index, edge_attr)))
        weight = F.dropout(self.conv2.bias, 0.5, self.training)
        return self.conv2(F.dropout(x, 0.5, self.training), edge_index) + weight


def trained(every, comm, epochs, folder=None):
    """The losses of a training, and the last outputs in evaluation, of all nodes. folder: of checkpoints."""
    labels = torch.arange(pyg_convs.NODES) % 5
    graph, mine = pyg_convs.opened(every, comm, dtype="float64")
    graph.y, graph.train = labels[graph.ids], torch.ones(graph.rows, dtype=torch.bool)
    mgg.manual_seed(5)
    model = mgg.convert(Gat().double(), graph)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    state = mgg.checkpointed(model, optimizer, folder, comm=comm) if folder else None
    with state or nullcontext():
        for _ in state.epochs(epochs) if state else range(epochs):
            optimizer.zero_grad()
            loss = graph.loss(model(mine["x"], mine["index"], mine["attr"]), F.cross_entropy)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.eval()
    with torch.inference_mode():
        out = graph.gather(model(mine["x"], mine["index"], mine["attr"]), everywhere=True)
    graph.close()
    return losses, out


@pytest.mark.ranks(1, 2, 4)
def test_training_with_dropout_is_that_of_one_process(comm, every):
    losses, out = trained(every, comm, 30)
    wanted, rows = trained(every, MPI.COMM_SELF, 30)
    with mpi.agree(comm):
        np.testing.assert_allclose(losses, wanted, rtol=1e-9)
        torch.testing.assert_close(out, rows, rtol=1e-8, atol=1e-8)
        assert len(set(losses)) == 30


def equal_to_pyg(comm, graph, conv, whole, mine, way, near=1e-7):
    """Compare a converted layer's outputs and gradients with the layer's own. whole, mine: arguments, rows first."""
    rows, here = (given[0].clone().requires_grad_() for given in (whole, mine))
    wanted = conv(rows, *whole[1:])
    gradient = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view(wanted.shape).sin()
    of_rows, *of_all = torch.autograd.grad(wanted, [rows, *conv.parameters()], gradient)
    converted = mgg.convert(conv.to(graph.dtype), graph)
    out = converted(here, *mine[1:])
    found = torch.autograd.grad(out, [here, *conv.parameters()], gradient[graph.ids].to(out.dtype))
    for each in found[1:]:
        comm.Allreduce(MPI.IN_PLACE, each.numpy())
    with mpi.agree(comm):
        assert re.search(way, mgg.explain(converted)), mgg.explain(converted)
        for each, same in zip((out, *found), (wanted[graph.ids], of_rows[graph.ids], *of_all), strict=True):
            torch.testing.assert_close(each.double(), same, rtol=near, atol=near)


class Rewired(nn.Module):
    """A layer over edges of which some begin where they end."""

    def __init__(self, conv):
        super().__init__()
        self.conv, self.reset_parameters = conv, conv.reset_parameters

    def forward(self, x, e):
        return self.conv(x, torch.stack([torch.where(x[e[0], 0] > 0, e[0], e[1]), e[1]]))


def test_layers_run_fused_where_they_are_plain(comm, every):
    """GCN, SAGE, GIN and GAT, with weights and data of edges of the graph, and what is changed runs extended."""
    hooked = pyg.SAGEConv(8, 5)
    hooked.register_message_forward_hook(lambda module, args, out: out * 2)
    pruned = pyg.GCNConv(8, 5)
    prune.l1_unstructured(pruned.lin, "weight", 0.3)
    convs = {
        "gcn": pyg.GCNConv(8, 5),
        "sage": pyg.SAGEConv(8, 5, aggr="max", normalize=True),
        "sums": pyg.SAGEConv(8, 5, aggr="sum", root_weight=False),
        "gin": pyg.GINConv(
            nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 5)), 0.3, True
        ),
        "gin of any": pyg.GINConv(nn.Sequential(nn.Tanh(), nn.Linear(8, 5))),
        "gat": pyg.GATConv(8, 5, heads=2, concat=False, residual=True, add_self_loops=False),
        "gat of edges": pyg.GATConv(8, 5, edge_dim=1, fill_value=0.5, bias=False),
        "hooked, not fused": hooked,
        "pruned, not fused": pruned,
        "rewired, not fused": Rewired(pyg.SAGEConv(8, 5)),
        "rewired, not fused, of sums": Rewired(pyg.GraphConv(8, 5)),
        "improved, not fused": pyg.GCNConv(8, 5, improved=True),
        "maxima, not fused": pyg.GCNConv(8, 5, aggr="max"),
    }
    weight = every["weight"].float()
    data = Data(x=every["x"].float(), edge_index=every["index"], edge_weight=weight)
    with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
        for name, conv in convs.items():
            torch.manual_seed(1)
            conv.double().reset_parameters()
            takes = name.endswith("of edges") or isinstance(conv, pyg.GCNConv)
            whole = [data.x.double(), data.edge_index, *([weight.double()] if takes else [])]
            mine = [graph.x, graph.edge_index(), *([graph.edge_weight().double()] if takes else [])]
            equal_to_pyg(comm, graph, conv, whole, mine, "extended" if "not fused" in name else "fused")
        gcn = mgg.convert(convs["gcn"], graph)
        e, weight = graph.edge_index().clone(), nn.Parameter(graph.edge_weight().double())
        for _ in range(2):  # what changed in place is found out again
            whole = data.edge_weight.double() if _ == 0 else data.edge_weight.double() ** 2
            out, wanted = gcn(graph.x, e, weight), convs["gcn"](data.x.double(), data.edge_index, whole)
            with mpi.agree(comm):
                torch.testing.assert_close(out, wanted[graph.ids])
            weight.requires_grad_(False).mul_(weight)
        e.copy_(e.flip(0))
        with pytest.raises(mgg.InputError, match=r"is not graph\.edge_index.* mgg\.convert again"):
            gcn(graph.x, e, weight)


WAYS = {
    "SimpleConv": "program",
    "GraphConv": "program",
    "LEConv": "program",
    "MFConv": "program",
    "GatedGraphConv": "program",
    "RGCNConv": "fused",
    "FastRGCNConv": "fused",
    "EdgeConv": "extended, because linear gives",
    "TAGConv": "extended, because edge_weight is neither",
}


def test_messages_run_as_programs(comm, every):
    """With weights and types that are the graph's: in one pass over the edges, with PyG's outputs and gradients."""
    weight = every["weight"].float()
    data = Data(x=every["x"].float(), edge_index=every["index"], edge_weight=weight, edge_type=every["type"])
    whole = {"x": data.x.double(), "index": data.edge_index, "weight": weight.double(), "type": every["type"]}
    with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
        mine = {"x": graph.x, "index": graph.edge_index()}
        mine |= {"weight": graph.edge_weight().double(), "type": graph.edge_data("type")}
        for name, way in WAYS.items():
            torch.manual_seed(1)
            conv, takes = pyg_convs.CONVS[name].make().double(), pyg_convs.CONVS[name].takes.split()
            equal_to_pyg(comm, graph, conv, *([each[name] for name in takes] for each in (whole, mine)), way)


class Scaled(pyg.SimpleConv):
    """Multiplies messages by a number. kept: what of the rows is kept; number: what messages make of it."""

    def __init__(self, kept, number=lambda kept: kept):
        super().__init__("sum")
        self.kept, self.number = kept, number

    def forward(self, x, edge_index):
        self.times = self.kept(x)
        return super().forward(x, edge_index)

    def message(self, x_j):
        return x_j * self.number(self.times)


def test_numbers_in_messages_are_those_of_all_ranks(comm, every, opened):
    graph, mine = opened
    whole, part = [every["x"], every["index"]], [mine["x"], mine["index"]]
    for kept in (lambda x: x.size(0) / 7, lambda x: float(x.detach().max()), len):
        equal_to_pyg(comm, graph, Scaled(kept), whole, part, "program")
    if comm.size > 1:
        with pytest.raises(mgg.InputError, match="does not do the same on all ranks: messages with"):
            mgg.convert(Scaled(lambda x: 2.0 + comm.rank), graph, check=False)(*part)


def test_messages_that_read_kept_rows_are_those_of_all_ranks(comm, every):
    """Also their number, which is the same on all ranks here."""
    ring = torch.stack([torch.arange(60), (torch.arange(60) + 1) % 60])
    x = every["x"][:60]
    with mgg.from_pyg(Data(x=x, edge_index=ring), comm=comm, dtype="float64") as graph:
        assert len(set(comm.allgather(graph.rows))) == 1
        mine = [x[graph.ids], graph.edge_index()]
        for number in (len, lambda kept: kept.size(0) / 7, lambda kept: len(torch.cat([kept])), torch.sum):
            equal_to_pyg(
                comm,
                graph,
                Scaled(torch.detach, number),
                [x, ring],
                mine,
                "extended, because its messages read",
            )


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (2, 9), (40, 300)])
def test_relations_of_small_graphs(comm, rng, monkeypatch, nodes, edges):
    """In pieces of three rows, of odd widths; ranks without rows or edges, types without edges."""
    monkeypatch.setattr(relations, "CELLS", 13)
    index, types = (
        torch.from_numpy(rng.integers(0, nodes, (2, edges))),
        torch.from_numpy(rng.integers(0, 3, edges)),
    )
    x = torch.from_numpy(rng.standard_normal((nodes, 3)))
    torch.manual_seed(int(rng.integers(99)))
    conv = pyg.RGCNConv(3, 5, 4, root_weight=bool(rng.integers(2)), bias=bool(rng.integers(2))).double()
    dtype, near = (("float64", 1e-12), ("float32", 1e-5))[rng.integers(2)]
    with mgg.from_pyg(Data(x=x, edge_index=index, edge_type=types), comm=comm, dtype=dtype) as graph:
        mine = [x[graph.ids].to(graph.dtype), graph.edge_index(), graph.edge_data("type")]
        equal_to_pyg(comm, graph, conv, [x, index, types], mine, "fused", near)
        changed = {"forward": lambda self, *given: 2 * pyg.RGCNConv.forward(self, *given)}
        other = type("RGCNConv", (pyg.RGCNConv,), changed | {"__module__": __name__})(3, 5, 4).double()
        equal_to_pyg(comm, graph, other, [x, index, types], mine, "extended", near)
        if edges:
            with pytest.raises(
                mgg.InputError, match=r"type is \[\d+\] .*expected \[E\] integers from 0 to 1"
            ):
                relations.relational(mine[0], conv.weight[:2], graph, "type")
    column = Data(x=x, edge_index=index, edge_type=types[:, None])
    with (
        mgg.from_pyg(column, comm=comm, dtype=dtype) as graph,
        pytest.raises(mgg.InputError, match=r"RGCNConv: edge data type is \[\d+, 1\]"),
    ):
        mgg.convert(conv, graph)(x[graph.ids].to(graph.dtype), graph.edge_index(), graph.edge_data("type"))


class _Lost(nn.Module):
    """Its gradients are lost if it is converted."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(8, 4)

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        return out.detach() if type(self) is not _Lost else out


class _OfData(_Lost):
    def forward(self, data, verbose=False):
        return self.conv(data.x, data.edge_index, data.edge_weight)


def test_checks_take_what_convert_takes(comm, every):
    torch.manual_seed(1)

    typed = pyg.RGCNConv(8, 4, pyg_convs.TYPES)
    x, index = every["x"].float(), every["index"]
    attr, weight = every["attr"].float(), every["weight"].float()
    gat, of_data = pyg.GATConv(8, 4, edge_dim=3), _OfData()
    zero, pair = Net(lambda x, e: x * 0), Net(lambda x, e: (x, x))
    data = Data(x=x, edge_index=index, edge_weight=weight, edge_attr=attr, edge_type=every["type"])
    for model in (typed, gat, of_data, zero):
        assert check._compared(model, data, 1e-4, comm).startswith("equal")
    for model, said in ((pair, "returns tuple"), (_Lost(), "gradients of conv")):
        with pytest.raises(mgg.InputError, match=said):
            check._compared(model, data, 1e-4, comm)
    two = Data(x=x[:2], edge_index=index[:, :30] % 2)
    assert check._compared(pyg.GCNConv(8, 4), two, 1e-4, comm).startswith("equal")


@pytest.mark.ranks(1, 2, 3)
def test_a_rank_of_one_row_or_none(comm):
    """Shapes of one row do not tell which dimension is that of rows."""
    index = torch.tensor([[0, 1, 0], [1, 0, 0]])
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(2, 8)
    with mgg.from_pyg(Data(x=x, edge_index=index), comm=comm, dtype="float64") as graph:
        attention = pyg.GATv2Conv(8, 4, heads=2), pyg.TransformerConv(8, 4), pyg.FeaStConv(8, 4, heads=2)
        for conv in (*attention, pyg.ChebConv(8, 4, 3)):
            torch.manual_seed(1)
            conv.double().reset_parameters()
            equal_to_pyg(comm, graph, conv, [x, index], [x[graph.ids], graph.edge_index()], "extended")


@pytest.mark.parametrize("most", [10**6, pyg_convs.EDGES - 1])
def test_the_first_call_finds_what_is_wrong(comm, opened, monkeypatch, most):
    """Rows of other ranks that do not come are seen, on the whole graph and around some rows."""
    graph, mine = opened
    extended = running.extended
    monkeypatch.setattr(compare, "MOST_EDGES", most)
    monkeypatch.setattr(compare, "ROWS", 3)
    for factor in (1, 0.5, math.nan):
        monkeypatch.setattr(running, "extended", lambda *given, factor=factor: extended(*given) * factor)
        model = mgg.convert(pyg.GATv2Conv(8, 4, add_self_loops=False).double(), graph)
        if factor == 1:
            model(mine["x"], mine["index"])
            continue
        with pytest.raises(mgg.InputError, match=r"this is an error of mgg\.convert"):
            model(mine["x"], mine["index"])


def test_the_first_call_says_what_it_cannot_compare(comm, opened, monkeypatch):
    graph, mine = opened
    monkeypatch.setattr(compare, "MOST_EDGES", 10)
    forwards = [
        _sum,
        SERVED["mean"],
        SERVED["mean at sources"],
        lambda x, e: x / x.size(0),
        lambda x, e: x + torch.rand(1),
    ]
    said = []
    for forward in forwards:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mgg.convert(Net(forward).double(), graph)(mine["x"], mine["index"])
        said += [str(each.message) for each in caught]
    with mpi.agree(comm):
        assert len(said) == len(forwards) * (comm.rank == 0)
        assert all("no rows were compared" in each for each in said)
        assert len(set(said)) == len(said) - (
            comm.size == 1
        )  # one rank reduces edge values as it does node values
    monkeypatch.setattr(compare, "MOST_EDGES", pyg_convs.EDGES - 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mgg.convert(Net(lambda x, e: F.dropout(x, 0.5)).double(), graph)(mine["x"], mine["index"])
        mgg.convert(Net(lambda x, e: x * (0.5 * x.size(0))).double(), graph)(mine["x"], mine["index"])
        mgg.convert(Net(lambda x, e: x / (x - x)).double(), graph)(mine["x"], mine["index"])
    found = [str(each.message) for each in caught]
    with mpi.agree(comm):
        assert len(found) == 2 * (comm.rank == 0), found
        assert not found or ("random numbers" in found[0] and "reads the number of nodes" in found[1]), found


def test_a_training_resumes(comm, every, folder):
    """Draws of dropout go on from where they were."""
    straight = trained(every, comm, 4, folder / "straight")[0]
    parts = trained(every, comm, 2, folder / "parts")[0] + trained(every, comm, 4, folder / "parts")[0]
    with mpi.agree(comm):
        assert parts == straight and len(parts) == 4


def test_a_converted_model_is_the_model(comm, every, opened):
    """Parameters, state and attributes are one; the model itself works on, and layers that cache keep two caches."""
    graph, mine = opened

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([pyg.GCNConv(8, 8, cached=True), pyg.SGConv(8, 4, cached=True, K=2)])

        def forward(self, x, edge_index):
            return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)

    torch.manual_seed(1)
    model = Cached().double()
    converted = mgg.convert(model, graph)
    wanted = model(every["x"], every["index"]).detach()
    with mpi.agree(comm):
        assert isinstance(converted, Cached) and list(converted.state_dict()) == list(model.state_dict())
        assert all(a is b for a, b in zip(converted.parameters(), model.parameters(), strict=True))
    for one in (converted, mgg.convert(converted, graph)):
        out = one(mine["x"], mine["index"]).detach()
        alone = model(every["x"], every["index"]).detach()
        with mpi.agree(comm):
            torch.testing.assert_close(out, wanted[graph.ids])
            torch.testing.assert_close(alone, wanted)
    converted.eval()
    assert not model.training


def test_other_types_than_the_graph_s(comm, every, opened):
    """Narrower rows cross exactly, whole numbers too; wider ones are refused."""
    graph, mine = opened
    out = mgg.convert(Net(_sum), graph)(mine["x"].float(), mine["index"])
    with mpi.agree(comm):
        assert out.dtype == torch.float32
    torch.manual_seed(1)
    alone = Net(lambda x, e: _sum((x * 1e9).long() * 7**9, e)).double()
    with mpi.agree(comm):
        wanted = alone(every["x"], every["index"])
    found = mgg.convert(alone, graph)(mine["x"], mine["index"])
    with mpi.agree(comm):
        torch.testing.assert_close(found, wanted[graph.ids])
    narrow, rows = pyg_convs.opened(every, comm, dtype="float32")
    with narrow:
        wide = mgg.convert(Net(_sum).double(), narrow)
        if comm.size > 1:
            with pytest.raises(mgg.InputError, match="dtype='float64'"):
                wide(rows["x"], rows["index"])


def test_one_rank_s_error_is_everyone_s(comm, opened):
    graph, mine = opened
    last = comm.size - 1

    def wrong(x, e):
        if comm.rank == last:
            raise mgg.InputError("the last one's")
        return _sum(x, e)

    with pytest.raises(mgg.InputError, match="the last one's"):
        mgg.convert(Net(wrong).double(), graph)(mine["x"], mine["index"])
    torch.manual_seed(comm.rank)
    if comm.size > 1:
        with pytest.raises(mgg.InputError, match="manual_seed"):
            mgg.convert(nn.Linear(2, 2), graph)
    for given, said in ((lambda x: x, "Module"), (torch.jit.trace(nn.ReLU(), torch.ones(1)), "torch.jit")):
        with pytest.raises(mgg.InputError, match=said):
            mgg.convert(given, graph)
    with pytest.raises(mgg.InputError, match=r"pass graph\.edge_index"):
        mgg.convert(pyg.SimpleConv(), graph)(mine["x"], graph)
    with pytest.raises(mgg.InputError, match=r"mgg\.open"):
        mgg.convert(nn.ReLU(), mine["index"])


# ---- sampled batches


class Stack(nn.Module):
    """Two layers, dropout and a skip connection; past: what becomes of the rows in between."""

    def __init__(self, make, past=None):
        super().__init__()
        self.convs, self.past = nn.ModuleList([make(), make()]), past

    def forward(self, x, edge_index, edge_attr=None):
        more = {} if edge_attr is None else {"edge_attr": edge_attr}
        h = F.dropout(self.convs[0](x, edge_index, **more).relu(), training=self.training)
        h = h if self.past is None else self.past(h, edge_index)
        return self.convs[1](h, edge_index, **more) + h


# Makes a layer [n, 8] -> [n, 8]; whether it takes edge_attr, and whether PyG computes the same on sampled edges.
ON_BLOCKS = {
    "GATv2Conv": (lambda: pyg.GATv2Conv(8, 8, edge_dim=3), True, True),
    "GATConv": (lambda: pyg.GATConv(8, 4, heads=2, edge_dim=3), True, True),
    "SAGEConv": (lambda: pyg.SAGEConv(8, 8), False, True),
    "GINConv": (lambda: pyg.GINConv(nn.Linear(8, 8)), False, True),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(8, 8, edge_dim=3), True, True),
    "GCNConv": (lambda: pyg.GCNConv(8, 8), False, False),
}


@pytest.mark.parametrize("name", ON_BLOCKS)
@pytest.mark.parametrize("fanouts", [[3, 4], [-1, -1]])
def test_batches_are_pyg_s_on_the_sampled_edges(comm, every, name, fanouts):
    """All neighbours give what the whole graph gives; fewer, what PyG gives block by block on the same edges."""
    make, attr, same = ON_BLOCKS[name]
    attrs = every["attr"].float()
    data = Data(
        x=every["x"].float(),
        edge_index=every["index"],
        edge_attr=attrs,
        y=torch.zeros(len(every["x"])).long(),
    )
    torch.manual_seed(1)
    model = Stack(make).double().eval()
    with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
        converted = mgg.convert(model, graph)
        chosen = torch.from_numpy(np.flatnonzero(np.arange(graph.rows) % 3 == 0))
        loader = mgg.NeighborLoader(
            graph, fanouts, batch_size=9, input_nodes=chosen, edge_data=["attr"], seed=2
        )
        for batch in loader:
            more = [[each.edge_data("attr").double() for each in batch.blocks]] * attr
            out = converted(batch.x, batch, *more)
            with mpi.agree(comm):
                of_whole = model(data.x.double(), data.edge_index, *[attrs.double()] * attr)
                alone, wanted = copy.deepcopy(model), of_whole[graph.ids][batch.rows]
                if fanouts[0] > 0 and same:
                    h = batch.x
                    for place, block in enumerate(batch.blocks):
                        last, h = (
                            h,
                            alone.convs[place](h, block.edge_index(), *[each[place] for each in more]),
                        )
                        h = (h if place else h.relu())[: block.destinations]
                    wanted = h + last[: len(h)]
                if fanouts[0] < 0 or same:
                    torch.testing.assert_close(out, wanted)
                assert out.shape == wanted.shape
            if fanouts[0] > 0 and same:
                ours = torch.autograd.grad(out.sin().sum(), list(model.parameters()), materialize_grads=True)
                theirs = torch.autograd.grad(
                    wanted.sin().sum(), list(alone.parameters()), materialize_grads=True
                )
                with mpi.agree(comm):
                    torch.testing.assert_close(ours, theirs)


@pytest.mark.ranks(1, 2, 4)
def test_batches_have_the_same_losses_on_any_number_of_ranks(comm, every):
    def losses(comm):
        torch.manual_seed(1)
        mgg.manual_seed(3)
        model = Stack(lambda: pyg.GATv2Conv(8, 8, dropout=0.4)).double()
        data = Data(x=every["x"].float(), edge_index=every["index"], y=torch.arange(len(every["x"])) % 8)
        data.train_mask = torch.ones(len(data.x), dtype=torch.bool)
        with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
            converted, found = mgg.convert(model, graph), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in mgg.NeighborLoader(graph, [3, 4], batch_size=20, shuffle=True):
                optimizer.zero_grad()
                found.append(batch.loss(converted(batch.x, batch)))
                found[-1].backward()
                optimizer.step()
        return torch.stack(found).detach()

    ours, alone = losses(comm), losses(MPI.COMM_SELF)
    with mpi.agree(comm):
        torch.testing.assert_close(ours, alone)


def _direction(h, e):
    return h / h.norm(dim=1, keepdim=True)  # is NaN for a row of zeros, with its gradients


def _headed(h, e):
    return h.view(-1, 2, 4).flatten(1)


# What becomes of rows between layers; numbers of rows as values are those of the whole graph.
PASTS = [
    _direction,
    _headed,
    lambda h, e: h / len(h),
    lambda h, e: h * (0.5 * h.size(0)) / int(h.size(0)) * 1.01 ** h.size(0),
    lambda h, e: h / torch.tensor([h.size(0)]) if h.size(0) == pyg_convs.NODES else -h,
    lambda h, e: h.view(h.size(0), -1) + h.new_zeros(h.size(0), 8),
    lambda h, e: _put(h, h[:, 0] > 0),
]


class Two(nn.Module):
    """Two layers. run: takes them, rows and edges."""

    def __init__(self, make, run):
        super().__init__()
        self.convs, self.run = nn.ModuleList([make(), make()]), run

    def forward(self, x, edge_index):
        return self.run(self.convs, x, edge_index)


def _jumps(convs, x, e):
    h = convs[0](x, e)
    rows = [x, h, convs[1](h, e)]
    return torch.cat(rows, 1) * torch.stack(rows).amax((0, 2))[:, None]


def test_rows_of_several_layers_on_batches(comm, every):
    """Rows that later layers do not need are left out: of skip connections, and before what is NaN of zeros."""
    data = Data(x=every["x"].float(), edge_index=every["index"])
    gat = lambda: pyg.GATv2Conv(8, 8)  # noqa: E731
    with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
        batch = next(
            iter(mgg.NeighborLoader(graph, [-1, -1], batch_size=7, input_nodes=torch.arange(graph.rows)))
        )
        for make in (*(functools.partial(Stack, gat, past) for past in PASTS), lambda: Two(gat, _jumps)):
            torch.manual_seed(1)
            model = make().double().eval()
            wanted = model(data.x.double(), data.edge_index)[graph.ids][batch.rows]
            converted = mgg.convert(model, graph)
            out = converted(batch.x, tuple(batch.blocks))
            weights = list(model.parameters())
            found = (torch.autograd.grad(each.sin().sum(), weights) for each in (out, wanted))
            with mpi.agree(comm):
                torch.testing.assert_close(out, wanted)
                torch.testing.assert_close(*found)
                assert mgg.explain(converted).count("over the rows of its block; nothing") == 2


def test_batches_say_that_they_are_not_compared(comm, every):
    with mgg.from_pyg(Data(x=every["x"].float(), edge_index=every["index"]), comm=comm) as graph:
        batch = next(
            iter(mgg.NeighborLoader(graph, [2], batch_size=30, input_nodes=torch.arange(graph.rows)))
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for check in (True, False):
                model = mgg.convert(pyg.SAGEConv(8, 8), graph, check=check)
                for _ in range(2):
                    model(batch.x, batch)
        with mpi.agree(comm):
            assert sum("on batches are not compared" in str(each.message) for each in caught) == (
                comm.rank == 0
            )


@pytest.mark.parametrize("make", [pyg.GCNConv, pyg.GATv2Conv])
def test_autocast_and_compile_give_the_models_values(comm, every, make):
    """A graph in float32: halves cross in its type."""
    torch.manual_seed(1)
    model, data = make(8, 8), Data(x=every["x"].float(), edge_index=every["index"])
    with mgg.from_pyg(data, comm=comm, dtype="float32") as graph:
        converted = mgg.convert(model, graph)
        for run, near in ((converted, 0.05), (torch.compile(converted, backend="eager"), 1e-5)):
            with torch.autocast("cpu", torch.bfloat16, enabled=near > 1e-3):
                out, wanted = run(graph.x, graph.edge_index()), model(data.x, data.edge_index)[graph.ids]
            with mpi.agree(comm):
                torch.testing.assert_close(out.float(), wanted.float(), rtol=near, atol=near)


class Kept(pyg.SimpleConv):
    """Sums rows that are kept in place of its own."""

    def forward(self, x, edge_index):
        return super().forward(getattr(self, "kept", x), edge_index)


class Detached(pyg.SimpleConv):
    """Adds rows behind autograd's back."""

    def forward(self, x, edge_index):
        y = x.clone()
        y.detach().index_add_(0, edge_index[1], x[edge_index[0]].detach())
        return super().forward(y, edge_index)


def _keeps(convs, x, e):
    convs[1].kept = convs[0](x, e)
    return convs[1](x, e)


def _adds(convs, x, e):
    x = x.clone()
    x += convs[0](x, e)
    return convs[1](x, e)


def _passes_edges_on(convs, x, e):
    h, (edges, _) = convs[0](x, e, return_attention_weights=True)
    return convs[1](h, edges)


class Nested(pyg.MessagePassing):
    """Two layers within a layer, which has one block."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 8)])

    def forward(self, x, edge_index):
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


def test_what_is_wrong_on_a_batch_is_refused(comm, every):
    gat = lambda: pyg.GATv2Conv(8, 8)  # noqa: E731
    refused = {
        "as of their degrees": Stack(lambda: pyg.SGConv(8, 8)),
        "second propagation": Stack(lambda: pyg.GatedGraphConv(8, 2)),
        "sums at the sources": Stack(lambda: pyg.ChebConv(8, 8, 2)),
        "the edges of a batch itself": Stack(gat, _sum),
        "reduces the rows of a batch": Stack(gat, lambda h, e: h - h.mean(0)),
        r"BatchNorm1d\).*reduces": Stack(
            lambda: pyg.GINConv(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
        ),
        "number of rows": Stack(gat, lambda h, e: h / len(h[h[:, 0] > 0])),
        "draws random": Stack(gat, lambda h, e: h + torch.rand(8)),
        "works along dimension 0": Stack(gat, lambda h, e: h.cumsum(0)),
        "the edges of a batch": Stack(gat, lambda h, e: h * (2 * e)),
        r"reduces .* LayerNorm\(mode=": Stack(gat, lambda h, e: pyg.LayerNorm(8).double()(h)),
        "rows of a layer, or": Two(gat, lambda c, x, e: c[0](x, e).view(x.size(0), 8)),
        r"x = x \+ h": Two(gat, _adds),
        "torch's checkpoint": Two(gat, lambda c, x, e: c[1](checkpoint(c[0], x, e, use_reentrant=False), e)),
        "edges that a layer returned": Two(gat, _passes_edges_on),
        "returns tensors; this is a Data": Two(gat, lambda c, x, e: Data(x=c[0](x, e))),
        "outside of this block": Two(Kept, _keeps),
        r"clone\(\) them": Stack(Detached),
    }
    data = Data(x=every["x"].float(), edge_index=every["index"])
    with mgg.from_pyg(data, comm=comm, dtype="float64") as graph:
        rows = torch.arange(graph.rows)
        batches = {
            count: next(iter(mgg.NeighborLoader(graph, [2] * count, batch_size=30, input_nodes=rows)))
            for count in (1, 2, 3)
        }
        for said, model in refused.items():
            with pytest.raises(mgg.InputError, match=said):
                mgg.convert(model.double(), graph)(batches[2].x, batches[2])
        model = mgg.convert(Stack(gat).double(), graph)
        for given, said in (
            ((Data(x=batches[2].x, edge_index=batches[2]),), "a batch in a Data"),
            (({"a": batches[2].x}, {("a", "to", "a"): batches[2]}), "a batch in a dict"),
            ((batches[2].x, batches[2].blocks[0]), "more layers"),
            ((batches[2].x[:0], batches[2]), "no tensor has the .* rows of the batch"),
        ):
            with pytest.raises(mgg.InputError, match=said):
                model(*given)
        for count, said in ((1, "more layers"), (3, "fewer layers")):
            with pytest.raises(mgg.InputError, match=said):
                mgg.convert(Stack(gat).double(), graph)(batches[count].x, batches[count].blocks)
        with pytest.raises(mgg.InputError, match="rows of neighbours outside"):
            mgg.convert(Nested().double(), graph)(batches[1].x, batches[1])


# ---- random modules


class Chain(nn.Sequential):
    """A subclass of Sequential, whose modules may take edges."""

    def forward(self, x, edge_index):
        for module in self:
            y = (
                module(x, edge_index)
                if isinstance(module, (pyg.MessagePassing, pyg.DirGNNConv, Chain))
                else module(x)
            )
            x = x + y if y.shape == x.shape else y
        return x


def drawn_module(rng, depth=0):
    """A module [n, 8] -> [n, 8] with hooks, norms of weights, pruning or shared parts."""
    linear = nn.Linear(8, 8)
    made = [
        lambda: nn.utils.parametrizations.spectral_norm(linear),
        lambda: nn.utils.parametrizations.weight_norm(linear),
        lambda: prune.l1_unstructured(linear, "weight", 0.3),
        lambda: nn.utils.spectral_norm(linear),
        lambda: nn.Sequential(nn.BatchNorm1d(8), nn.PReLU(8), nn.Dropout(0)),
        lambda: nn.Sequential(nn.LayerNorm(8), nn.GELU()),
        lambda: pyg.GCNConv(8, 8),
        lambda: pyg.SAGEConv(
            8, 8, aggr=str(rng.choice(["mean", "max", "sum", "std"])), project=bool(rng.integers(2))
        ),
        lambda: pyg.GATConv(8, 4, heads=2),
        lambda: pyg.GINConv(nn.Sequential(linear, nn.BatchNorm1d(8), nn.ReLU(), linear)),
        lambda: pyg.TransformerConv(8, 8),
        lambda: pyg.GraphConv(8, 8, aggr="min"),
        lambda: nn.utils.parametrizations.orthogonal(linear),
        lambda: pyg.DirGNNConv(pyg.GCNConv(8, 8)),
        lambda: Chain(*(drawn_module(rng, depth + 1) for _ in range(2))) if depth < 2 else nn.Tanh(),
    ]
    module = made[rng.integers(len(made))]()
    hook = rng.integers(5)
    if hook == 0:
        module.register_forward_hook(lambda module, args, out: out * 0.7)
    elif hook == 1:
        module.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(0), *args[1:]))
    return module


@pytest.mark.long
@pytest.mark.trials(10)
def test_random_modules(comm, rng, every, trials, opened):
    graph, mine = opened
    for _ in range(trials):
        seed, models = int(rng.integers(1000)), []
        for _ in range(2):
            torch.manual_seed(seed)
            again = np.random.default_rng(seed)
            modules = [drawn_module(again) for _ in range(3)]
            models.append(Chain(*modules, modules[0]))
        model, alone = models
        found = pyg_convs.compared(model, "x index", every, graph, mine, torch.float64, alone)
        with mpi.agree(comm):
            assert found < NEAR, (model, found)
