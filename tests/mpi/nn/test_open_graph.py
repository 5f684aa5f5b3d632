"""Training loops of one's own: on any number of ranks they compute what one rank does that has the whole graph."""

from __future__ import annotations

import functools
import itertools
import math
from contextlib import nullcontext as nothing
from dataclasses import replace
from functools import partial
from unittest.mock import create_autospec

import numpy as np
import pytest
import reference
import scipy.sparse as sp
import torch
from convolutions import gcn_matrix
from torch.nn import functional as F

import mgg_hpc as mgg
from mgg_hpc.data import libraries, writer
from mgg_hpc.nn.graph import dist_graph
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.arguments import Geometry, Options
from mgg_hpc.runtime.backends.host.kernels import SharedBackend

pytestmark = pytest.mark.mpi

TRANSFERS = ["direct", "get", "halo"]
NODES = 61


def drawn(rng, *, directed=True, weighted=False, nodes=NODES):
    """A matrix with isolated nodes and a hub, features, labels of 3 classes (some missing), and masks."""
    dense = (rng.random((nodes, nodes)) < 0.06).astype(np.float32)
    dense[:, nodes // 2] = rng.random(nodes) < 0.5
    dense[nodes // 2] = rng.random(nodes) < 0.5
    if weighted:
        dense *= rng.uniform(0.5, 2.0, dense.shape).astype(np.float32)
    if not directed:
        dense = np.maximum(dense, dense.T)
    dense[3] = dense[:, 3] = 0
    masks = np.array_split(rng.permutation(nodes), 3)
    train, val, test = (np.isin(np.arange(nodes), chosen) for chosen in masks)
    x, y = rng.standard_normal((nodes, 9)).astype(np.float32), rng.integers(-1, 3, nodes)
    y[masks[0][0]] = 2  # which training must know, or there are fewer classes
    masks = {"train": train & (y >= 0), "val": val & (y >= 0), "test": test & (y >= 0)}
    return sp.csr_array(dense), {"x": x, "y": y} | masks


def alone():
    from mpi4py import MPI

    return MPI.COMM_SELF


class Net(torch.nn.Module):
    """Rows grow wider from layer to layer, and kinds of adjacency differ."""

    def __init__(self, columns=9, classes=3):
        super().__init__()
        self.first = mgg.nn.GCNConv(columns, 8)
        self.dropout = mgg.nn.Dropout(0.4)
        self.second = mgg.nn.SAGEConv(8, 40)
        self.third = mgg.nn.GCNConv(40, classes)

    def forward(self, x, graph):
        h = self.dropout(self.first(x, graph).relu(), graph)
        return self.third(self.second(h, graph).relu(), graph)


def trained(graph, steps=3):
    """Losses, weights and outputs of a few steps."""
    mgg.manual_seed(5)
    net = Net(graph.num_features, graph.num_classes).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = graph.loss(net(graph.x, graph), F.cross_entropy)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        out = net(graph.x, graph)
    scores = [graph.accuracy(out, split) for split in ("train", "val", "test")]
    return losses, [p.detach().clone() for p in net.parameters()], graph.gather(out, everywhere=True), scores


def same(comm, found, wanted, tolerance=1e-10):
    with mpi.agree(comm):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_ranks_train_what_one_rank_trains(rng, comm, transfer, directed):
    matrix, fields = drawn(rng, directed=directed, weighted=True)
    fields["train"][: NODES // 2] = False  # the first rank of several has no training rows
    options = {"dtype": "float64", "threads": 1}
    with mgg.from_scipy(matrix, **fields, comm=alone(), **options) as whole:
        wanted = trained(whole)
    with mgg.from_scipy(matrix, **fields, transfer=transfer, comm=comm, **options) as graph:
        assert graph.part.directed == directed
        same(comm, trained(graph), wanted)


def entropies(out, labels, reduction="mean"):
    return F.binary_cross_entropy_with_logits(out, labels.double(), reduction=reduction)


class Doubled(torch.nn.CrossEntropyLoss):
    def forward(self, out, y):
        return 2 * super().forward(out, y)


def focal(out, y, reduction="mean"):
    entropy = F.cross_entropy(out, y, reduction="none", ignore_index=2)
    terms = (1 - torch.exp(-entropy)) ** 2 * entropy
    return terms.sum() if reduction == "sum" else terms.sum() / (y != 2).sum()


def weights(*values):
    return torch.tensor(values, dtype=torch.float64)


# Losses, and whether they are of several labels.
LOSSES = {
    "cross entropy": (F.cross_entropy, False),
    "of several": (entropies, True),
    "weights": (partial(F.cross_entropy, weight=weights(0.1, 1, 3)), False),
    "ignored": (partial(F.cross_entropy, ignore_index=2), False),
    "smoothed": (partial(F.cross_entropy, label_smoothing=0.2, weight=weights(0.1, 1, 3)), False),
    "module": (torch.nn.CrossEntropyLoss(weight=weights(0.7, 0.1, 0.2), ignore_index=2), False),
    "subclass": (Doubled(weight=weights(0.7, 0.1, 0.2), ignore_index=2), False),
    "own": (focal, False),
    "pos_weight": (partial(F.binary_cross_entropy_with_logits, pos_weight=weights(1, 2, 5)), True),
    "own of several": (lambda out, y, reduction="mean": F.huber_loss(out, y, reduction=reduction), True),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_those_of_one_rank(rng, comm, name):
    """Value and gradients; all labels of the last rank are ignored by some of the losses. And the accuracy."""
    fn, several = LOSSES[name]
    matrix, fields = drawn(rng)
    if several:
        fields["y"] = rng.integers(0, 2, (NODES, 3)).astype(np.float32)
    else:
        fields["y"][NODES - NODES // 3 :] = 2
    logits = torch.from_numpy(rng.standard_normal((NODES, 3))).requires_grad_()
    chosen = logits[fields["val"]]
    y = torch.from_numpy(fields["y"].astype(float if several else int))[fields["val"]]
    wanted = fn(chosen, y)
    wanted.backward()
    right = (chosen > 0) == (y > 0) if several else chosen.argmax(1) == y
    with mgg.from_scipy(matrix, **fields, dtype="float64", comm=comm) as graph:
        graph.y = graph.y.double() if several else graph.y
        mine = logits.detach()[graph.ids].clone().requires_grad_()
        loss = graph.loss(mine, fn, split="val")
        loss.backward()
        same(comm, [loss.detach(), mine.grad], [wanted.detach(), logits.grad[graph.ids]])
        assert graph.num_classes == 3 and graph.accuracy(mine, "val") == right.double().mean()


def test_losses_give_freed_memory_back_now_and_then(rng, comm, monkeypatch):
    matrix, fields = drawn(rng)
    trimmed = []
    monkeypatch.setattr(dist_graph.cores, "trim_memory", lambda: trimmed.append(len(losses)))
    with mgg.from_scipy(matrix, **fields, comm=comm) as graph:
        out, losses = torch.zeros(graph.rows, 3), []
        for _ in range(2 * dist_graph.TRIMMED + 1):
            losses.append(graph.loss(out, F.cross_entropy))
    assert trimmed == [dist_graph.TRIMMED - 1, 2 * dist_graph.TRIMMED - 1]


def test_losses_that_cannot_be_are_refused_on_all_ranks(rng, comm):
    matrix, fields = drawn(rng)
    fields["test"][:] = False
    last = comm.rank == comm.size - 1
    with mgg.from_scipy(matrix, **fields, comm=comm) as graph:
        out, y, train, entropy = torch.zeros(graph.rows, 3), graph.y, graph.train, F.cross_entropy
        graph.y = y.int()
        assert math.isclose(graph.loss(out, entropy).item(), math.log(3), rel_tol=1e-6)
        many = y.clone()
        many[-1] = 6 if last else many[-1]  # one rank has a label too many
        every, pairs = torch.ones(graph.rows, dtype=torch.bool), torch.zeros(graph.rows, 2)
        for of, labels, rows, function, split, said in [
            # The lowest rank that fails reports the labels of its own rows, which may lack the third class.
            (out[:, :1], y, train, entropy, "train", r"1 outputs, but the labels are of [23] classes"),
            (out, y.float(), train, entropy, "train", r"graph.y is torch.float32 \[n\]; expected integers"),
            (out, many, every if last else train, entropy, "train", "3 outputs, .* labels are of 7 classes"),
            (out, pairs, train, entropies, "train", r"out is \[\d+, 3\], and graph.y \[\d+, 2\]"),
            (out, y, train, entropy, "test", "no rank has labelled nodes of the split 'test'"),
            (out, y, train, entropy, "tset", "no such split: 'tset'"),
            (out, y, every, lambda out, y, reduction: out[:, 0], "train", 'shall take reduction="sum"'),
            (
                out[1:] if last else out,
                y,
                train,
                entropy,
                "train",
                r"out is \[.*, and this rank has \d+ nodes",
            ),
        ]:
            graph.y, graph.train = labels, rows
            with pytest.raises((mgg.InputError, ValueError), match=said):
                graph.loss(of, function, split=split)
    for use in (lambda: graph.loss(out, F.cross_entropy), lambda: mgg.nn.GCNConv(9, 3)(graph.x, graph)):
        with pytest.raises(ValueError, match="the graph is closed"):
            use()
    graph.close()  # again, which changes nothing
    with mgg.from_scipy(matrix, comm=comm, train=fields["train"]) as graph:
        assert graph.x is None and graph.y is None and not graph.val.any()
        assert graph.edge_index("gcn") is graph.edge_index("gcn")
        weight = graph.edge_weight("gcn")
        assert weight is graph.edge_weight("gcn") and len(weight) == graph.edge_index("gcn").shape[1]
        with pytest.raises(mgg.InputError, match="has no labels"):
            graph.loss(out, F.cross_entropy)
    with pytest.raises(KeyError), mgg.from_scipy(matrix, comm=alone()) as one:
        raise KeyError
    assert one._closed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "gpu"}, "run.backend: gpu is none of"),
        ({"transfer": "push"}, "transfer: 'push' is none of auto, direct, get, halo"),
        ({"dtype": "int8"}, "dtype: 'int8' is none of float32"),
    ],
)
def test_options_that_do_not_exist_are_refused(rng, comm, options, said):
    with pytest.raises(mgg.InputError, match=said):
        mgg.from_scipy(drawn(rng)[0], comm=comm, **options)


@pytest.mark.parametrize("name", ["edges", "weights", "features x", "labels y", "train masks", "no matrix"])
def test_ranks_pass_the_same_graph(rng, comm, name):
    """What the last rank passes is another one, or none: all refuse it."""
    matrix, fields = drawn(rng, weighted=True)
    said = f"the {name} of rank {comm.size - 1} are not those of rank 0"
    if name == "no matrix":
        said = "expected a SciPy sparse matrix"
    if comm.rank == comm.size - 1:
        if name == "no matrix":
            matrix = matrix.toarray()
        elif name == "edges":
            matrix = sp.csr_array(matrix != 0)[::-1].tocsr().astype(np.float32)
        else:
            changed = {"weights": matrix.data, "features x": fields["x"][5]}
            changed |= {"labels y": fields["y"], "train masks": fields["train"]}
            changed[name][changed[name] > 0] = 0
    if comm.size > 1 or name == "no matrix":
        with pytest.raises(mgg.InputError, match=said):
            mgg.from_scipy(matrix, **fields, comm=comm)


def test_a_file_is_opened_in_its_own_order_and_gathered_in_the_users(rng, comm, tmp_path):
    matrix, fields = drawn(rng)
    graph = libraries.from_scipy(matrix, **fields)
    order = rng.permutation(NODES)
    permuted = libraries.from_scipy(
        matrix[order][:, order], **{name: value[order] for name, value in fields.items()}
    )
    path = comm.bcast(tmp_path / "g.h5")
    if comm.rank == 0:
        writer.write(path, replace(permuted, permutation=order))
    comm.Barrier()
    with mgg.open(path, comm=comm) as opened:
        assert (opened.num_nodes, opened.num_features, opened.num_classes) == (NODES, 9, 3)
        assert (opened.rank, opened.ranks, opened.rows) == (comm.rank, comm.size, len(opened.ids))
        np.testing.assert_array_equal(opened.x, graph.x[opened.ids])
        np.testing.assert_array_equal(opened.train, graph.train[opened.ids])
        for values in (opened.x, opened.y, opened.val, opened.x.to(torch.bfloat16), opened.x[:, :0]):
            whole = opened.gather(values, everywhere=True)
            at_root = opened.gather(values)
            assert whole.dtype == values.dtype and (at_root is None) == (comm.rank > 0)
            same(comm, [whole[opened.ids]], [values], 0)
            if at_root is not None:
                torch.testing.assert_close(at_root, whole, rtol=0, atol=0)
        same(comm, [opened.gather(opened.y, everywhere=True)], [torch.from_numpy(graph.y)], 0)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_buffers_grow_with_the_rows(rng, comm, transfer):
    """Widths that rise and fall, against dense matrices; memory of narrower rows is given back."""
    matrix, fields = drawn(rng)
    dense = gcn_matrix(matrix.indptr, matrix.indices)
    with mgg.from_scipy(
        matrix, **fields, transpose=True, transfer=transfer, dtype="float64", widest=2, comm=comm
    ) as graph:
        held = []
        for width in (1, 5, 40, 3, 129, 129, 16):
            x, g = torch.from_numpy(rng.standard_normal((2, NODES, width)))
            mine = x[graph.ids].requires_grad_()
            identity = mgg.nn.GCNConv(width, width, bias=False).double()
            torch.nn.init.eye_(identity.lin.weight)
            out = identity(mine, graph)
            out.backward(g[graph.ids])
            same(comm, [out.detach(), mine.grad], [(dense @ x)[graph.ids], (dense.T @ g)[graph.ids]], 1e-12)
            held.append(graph.heap_bytes)
        assert held == sorted(held) and held[-1] == held[-3]
        assert graph.heap_bytes > 0 or graph.ranks == 1
        if graph.backend.capabilities.name == "shm":
            assert len(graph.backend.memory._windows) == (4 if transfer == "halo" else 2)


def test_dropout_needs_no_run(rng, comm):
    """Against the formula: each call is an epoch, each module a stream, by original node ids."""
    matrix, fields = drawn(rng)
    with mgg.from_scipy(matrix, **fields, comm=comm) as graph:
        mgg.manual_seed(77)
        modules = [mgg.nn.Dropout(0.3), mgg.nn.Dropout(0.6)]
        for epoch, (stream, module) in itertools.product((1, 2), enumerate(modules)):
            found = module(graph.x, graph)
            wanted = reference.dropout(graph.x.double().numpy(), graph.ids, module.p, 77, epoch, stream)
            same(comm, [found.double()], [torch.from_numpy(wanted)], 1e-6)
            module.eval()
            assert module(graph.x, graph) is graph.x
            module.train()


def own_loss(out, graph):
    """The loss of the training rows, whose gradient is this rank's part."""
    mine = graph.train.nonzero()[:, 0]
    count = mpi.world().allreduce(len(mine)) if graph.ranks > 1 else len(mine)
    return F.cross_entropy(out[mine], graph.y[mine], reduction="sum") / count


def of_two_losses(out, graph, *_):
    (graph.loss(out, F.cross_entropy) + 0.5 * graph.loss(2 * out, F.cross_entropy)).backward()


def in_two_backwards(out, graph, *_):
    graph.loss(out, F.cross_entropy).backward(retain_graph=True)
    graph.loss(2 * out, F.cross_entropy).backward()


def summed_twice(out, graph, net):
    graph.loss(out, F.cross_entropy).backward()
    mgg.allreduce_gradients(net, graph)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    mgg.allreduce_gradients(net, graph)


def of_its_own(out, graph, net):
    own_loss(out, graph).backward()
    mgg.allreduce_gradients(net, graph)


def by_turns(out, graph, net):
    """The gradients of the first loss are sums already; those of the second are not, and are added to them."""
    graph.loss(out, F.cross_entropy).backward(retain_graph=True)
    earlier = [each.grad.clone() for each in net.parameters()]
    net.zero_grad(set_to_none=False)
    own_loss(out, graph).backward()
    mgg.allreduce_gradients(net, graph)
    for parameter, each in zip(net.parameters(), earlier, strict=True):
        parameter.grad += each


def without_parameters(out, graph, net):
    """Gradients of other tensors are a rank's own, and leave those of parameters alone."""
    loss = graph.loss(out, F.cross_entropy)
    (mine,) = torch.autograd.grad(loss, [out], retain_graph=True)
    assert mine.shape == out.shape
    loss.backward()


def with_a_penalty(out, graph, net):
    """A term that is the same on all ranks has a backward of its own, and so counts once."""
    graph.loss(out, F.cross_entropy).backward()
    (0.1 * net.first.lin.weight.square().sum()).backward()


def own_then_graphs(out, graph, net):
    own_loss(out, graph).backward(retain_graph=True)
    mgg.allreduce_gradients(net, graph)
    graph.loss(2 * out, F.cross_entropy).backward()


LOOPS = [of_two_losses, in_two_backwards, summed_twice, of_its_own, by_turns, without_parameters]
LOOPS += [with_a_penalty, own_then_graphs]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("backward", LOOPS)
def test_gradients_are_sums_at_the_end_of_each_backward(rng, comm, backward, to_none):
    matrix, fields = drawn(rng)
    fields["train"][: NODES // 2] = False

    def stepped(graph):
        mgg.manual_seed(3)
        net = Net().double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=to_none)
            backward(net(graph.x, graph), graph, net)
            optimizer.step()
        return [each.detach() for each in net.parameters()]

    options = {"dtype": "float64", "threads": 1}
    with mgg.from_scipy(matrix, **fields, comm=alone(), **options) as whole:
        wanted = stepped(whole)
    with mgg.from_scipy(matrix, **fields, comm=comm, **options) as graph:
        same(comm, stepped(graph), wanted)


@pytest.mark.parametrize("first", ["graph's", "own"])
def test_sums_of_one_loss_and_parts_of_another_are_refused(rng, comm, first):
    matrix, fields = drawn(rng)
    with mgg.from_scipy(matrix, **fields, comm=comm) as graph:
        mgg.manual_seed(1)
        linear = torch.nn.Linear(9, 3)
        for step in range(2):
            linear.zero_grad(set_to_none=step == 0)
            losses = [
                lambda: graph.loss(linear(graph.x), F.cross_entropy),
                lambda: own_loss(linear(graph.x), graph),
            ]
            for loss in losses if first == "graph's" else losses[::-1]:
                loss().backward()
            with pytest.raises(mgg.InputError, match="add the losses before") if comm.size > 1 else nothing():
                mgg.allreduce_gradients(linear, graph)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_rank_without_a_backward_takes_part_in_each_step(rng, comm, to_none):
    model, last = torch.nn.Linear(3, 2), comm.size - 1
    with mgg.from_scipy(drawn(rng)[0], comm=comm) as graph:
        mgg.manual_seed(1)
        torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
        for step in range(3):
            model.zero_grad(set_to_none=to_none)
            if comm.rank < last or not last:
                (model(torch.full((2, 3), float(comm.rank + step))).sum()).backward()
            mgg.allreduce_gradients(model, graph)
            with mpi.agree(comm):
                assert (model.weight.grad == 2 * sum(rank + step for rank in range(max(1, last)))).all()


def test_losses_of_models_that_differ_between_ranks_are_refused(rng, comm):
    matrix, fields = drawn(rng)
    with mgg.from_scipy(matrix, **fields, comm=comm) as graph:

        def refused(said, *layers, x=graph.x):
            with pytest.raises(mgg.InputError, match=said) if comm.size > 1 else nothing():
                graph.loss(torch.nn.Sequential(*layers)(x), F.cross_entropy)

        torch.manual_seed(1)
        linear = torch.nn.Linear(9, 3)
        for _ in range(2):
            graph.loss(linear(graph.x), F.cross_entropy).backward()
        with torch.no_grad():
            linear.bias += comm.rank
        graph.loss(linear(graph.x), F.cross_entropy)  # the third
        refused("of rank 1 differs from rank 0's", linear)
        refused("other parameters", torch.nn.Linear(9, 3, bias=comm.rank == 0))
        with pytest.raises(mgg.InputError, match="sparse=False") if comm.size > 1 else nothing():
            torch.manual_seed(2)
            table = torch.nn.Embedding(5, 3, sparse=True)
            graph.loss(table(graph.y.clamp(min=0)), F.cross_entropy).backward()
        hidden = functools.partial(torch.utils.checkpoint.checkpoint, linear, use_reentrant=True)
        with pytest.raises(mgg.InputError, match="use_reentrant=False") if comm.size > 1 else nothing():
            graph.loss(hidden(graph.x.clone().requires_grad_()), F.cross_entropy)
        refused(r"BatchNorm .* use mgg\.nn\.BatchNorm", torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 3))


def test_gradients_are_summed_in_one_exchange(rng, comm, monkeypatch):
    """Of a parameter that all ranks use, one that only the first does, one that nobody does, and a frozen one."""
    model = torch.nn.ParameterDict(
        {"all": torch.ones(3).double(), "first": torch.ones(2, 2), "none": torch.ones(4)}
    )
    model["frozen"] = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    model.all.grad = given = torch.full((3,), comm.rank + 1.0).double()
    if comm.rank == 0:
        model.first.grad = torch.full((2, 2), 7.0)
    with mgg.from_scipy(drawn(rng)[0], comm=comm) as graph:
        collectives = graph.backend.collectives
        summed = create_autospec(collectives.sum, side_effect=collectives.sum)
        monkeypatch.setattr(collectives, "sum", summed)
        mgg.allreduce_gradients(model)
        with mpi.agree(comm):
            assert model.all.grad is given and (given == comm.size * (comm.size + 1) / 2).all()
            assert (model.first.grad == 7).all() and model.first.grad.dtype == torch.float32
            assert model.none.grad is None and model.frozen.grad is None
            assert summed.call_count == (comm.size > 1)


def test_models_that_differ_between_ranks_are_refused(rng, comm):
    matrix, _ = drawn(rng)
    with mgg.from_scipy(matrix, comm=comm) as graph:
        torch.manual_seed(comm.rank)
        other, rolled, counted = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
        with torch.no_grad():  # the same sum
            rolled.weight.copy_(torch.arange(4.0).roll(comm.rank))
        counted(torch.rand(5, 4) + comm.rank)
        for model, said in [
            (other, "rank 1 differs from rank 0's; call mgg.manual_seed"),
            (rolled, "the parameter weight of rank 1 differs"),
            (counted, "the buffer running_mean of rank 1 differs"),
        ]:
            if comm.size > 1:
                with pytest.raises(mgg.InputError, match=said):
                    mgg.allreduce_gradients(model, graph)
            else:
                mgg.allreduce_gradients(model, graph)
    with pytest.raises(mgg.InputError, match="no graph is open"):
        mgg.allreduce_gradients(other)


def test_rows_that_were_given_back_are_found_no_more(comm):
    """Transports look addresses up; a later allocation may begin where one was that is gone."""
    backend = SharedBackend(comm, Options(Geometry(ps=4, dist=1, wpb=1)))
    counts, format = np.full(comm.size, 5), RowFormat(np.dtype(np.float32), 4)
    kept, gone = (backend.rows(counts, format, symmetric=True) for _ in range(2))
    backend.memory.release(gone)
    backend.publish(kept)
    assert kept.addresses.all() and not gone.addresses.any()
    backend.memory.close()
