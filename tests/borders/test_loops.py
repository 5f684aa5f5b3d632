"""Habits of torch's training loops work as with torch: losses, in-place changes, inference, autocast, compile."""

from __future__ import annotations

from functools import partial

import jobs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import mgg_hpc as mgg
from mgg_hpc.data import writer
from mgg_hpc.nn import aggregation
from mgg_hpc.nn.layers.random import Draws

NODES, CLASSES = 90, 4


@pytest.fixture(scope="module")
def made():
    return jobs.blocks(NODES)


def opened(made):
    matrix = csr_matrix((np.ones(made.edges, np.float32), made.indices, made.indptr), (NODES, NODES))
    return mgg.from_scipy(matrix, made.x, made.y, train=made.train, val=made.val, test=made.test)


@pytest.fixture
def graph(made):
    with opened(made) as found:
        yield found


def hooked(layer):
    layer.lin.register_forward_hook(lambda module, given, out: out / 2)
    return layer


class Summed(mgg.nn.saga.Layer):
    """A program that returns its sums as they are."""

    def __init__(self, accumulator="sum", *, kind="edges", gates=False, fuse=True):
        super().__init__()
        self.accumulator, self.kind, self.gates, self.fuse = accumulator, kind, gates, fuse
        self.lin = nn.Linear(12, 12)

    def apply_edge(self, edge):
        rows = self.lin(edge.src)
        return torch.sigmoid(rows + edge.dst) * edge.weight if self.gates else rows

    def apply_vertex(self, vertex, accum):
        return accum


WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5])
MULTI = torch.tensor([1.0, 2.0, 0.5, 4.0])


class Doubled(nn.CrossEntropyLoss):
    """A loss whose forward is its own."""

    def forward(self, out, y):
        return 2 * super().forward(out, y)


class Annealed(nn.CrossEntropyLoss):
    """A loss that changes with each call."""

    temperature = 1.0

    def forward(self, out, y):
        self.temperature *= 0.999
        return super().forward(out * self.temperature, y)


def patched(loss, factor=3):
    loss.forward = lambda out, y, call=loss.forward: factor * call(out, y)
    return loss


def logged(loss):
    loss.register_forward_hook(lambda module, given, out: out / 2)
    return loss


def focal(out, y, reduction="mean"):
    entropy = F.cross_entropy(out, y, reduction="none")
    terms = (1 - torch.exp(-entropy)) ** 2 * entropy
    return terms.mean() if reduction == "mean" else terms.sum()


def entropy_and(term):
    return lambda out, y, reduction="mean": F.cross_entropy(out, y, reduction=reduction) + term(out)


def balanced(out, y, reduction="mean"):
    return F.cross_entropy(out, y, 1 / torch.bincount(y, minlength=CLASSES).clamp(1), reduction=reduction)


def rooted(out, y, reduction="mean"):
    return F.cross_entropy(out, y, reduction=reduction).sqrt()


def rooted_mean(out, y, reduction="mean"):
    found = F.cross_entropy(out, y, reduction=reduction)
    return found if reduction == "sum" else found.sqrt()


def hard(out, y, reduction="mean"):
    """The mean of the hardest rows."""
    entropy = F.cross_entropy(out, y, reduction="none")
    terms = entropy.topk(max(1, int(0.7 * len(y)))).values
    return terms.mean() if reduction == "mean" else terms.sum()


def noisy(out, y, reduction="mean"):
    return F.cross_entropy(out + 0.1 * torch.randn_like(out), y, reduction=reduction)


# Losses of classes, as a user writes them.
LOSSES = {
    "cross_entropy": F.cross_entropy,
    "weights of classes": partial(F.cross_entropy, weight=WEIGHT),
    "ignored labels": partial(F.cross_entropy, ignore_index=1),
    "smoothed": partial(F.cross_entropy, label_smoothing=0.1),
    "all three": partial(F.cross_entropy, weight=WEIGHT, ignore_index=2, label_smoothing=0.2),
    "module": nn.CrossEntropyLoss(),
    "module with weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "module, ignored": nn.CrossEntropyLoss(ignore_index=0),
    "module, smoothed, weighted": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.3),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "multi margin": F.multi_margin_loss,
    "multi margin module": nn.MultiMarginLoss(weight=WEIGHT),
    "own": lambda out, y, reduction="mean": F.cross_entropy(out, y, reduction=reduction),
    "own, weights of sum 1": lambda out, y, reduction="mean": F.cross_entropy(
        out, y, WEIGHT / WEIGHT.sum(), ignore_index=1, reduction=reduction
    ),
    "focal": focal,
    "rows with a penalty": lambda out, y, reduction="mean": (
        F.cross_entropy(out, y, reduction=reduction)
        + 0.1 * (out.square().mean(1).mean() if reduction == "mean" else out.square().mean(1).sum())
    ),
    "subclass": Doubled(weight=WEIGHT, ignore_index=2),
    "patched": patched(nn.CrossEntropyLoss()),
    "hooked": logged(nn.CrossEntropyLoss(weight=WEIGHT)),
    "partial of a module": partial(nn.CrossEntropyLoss(weight=WEIGHT)),
    "forward of a module": nn.CrossEntropyLoss(weight=WEIGHT).forward,
    "partial of a subclass": partial(Doubled(label_smoothing=0.1)),
}
LOG = {
    "nll": F.nll_loss,
    "nll weights": partial(F.nll_loss, weight=WEIGHT),
    "nll module": nn.NLLLoss(weight=WEIGHT, ignore_index=3),
}


@pytest.mark.parametrize("name", [*LOSSES, *LOG])
def test_losses_are_torchs_means(name, graph, rng):
    fn = {**LOSSES, **LOG}[name]
    out = torch.tensor(rng.standard_normal((NODES, CLASSES)), dtype=torch.float32, requires_grad=True)
    rows = F.log_softmax(out, 1) if name in LOG else out
    found = graph.loss(rows, fn)
    right = fn(rows[graph.train], graph.y[graph.train])
    torch.testing.assert_close(found, right)
    (mine,), (theirs,) = torch.autograd.grad(found, out, retain_graph=True), torch.autograd.grad(right, out)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda out, y: F.cross_entropy(out, y), "keyword reduction"),  # noqa: PLW0108 - it takes no reduction
        (lambda out, y, **_: F.cross_entropy(out, y), "the same with"),
        (partial(F.cross_entropy, reduction="none"), "'none'"),
        (nn.CrossEntropyLoss(reduction="none"), "'none'"),
        (partial(F.cross_entropy, size_average=False), "size_average"),
        (partial(F.cross_entropy, weight=torch.zeros(CLASSES)), "that count"),
        (
            lambda out, y, reduction="mean": F.cross_entropy(out, 0 * y, ignore_index=0, reduction=reduction),
            "that count",
        ),
        (entropy_and(lambda out: 1.0), "a sum of terms of rows"),
        (entropy_and(lambda out: 1e-6), "a sum of terms of rows"),
        (entropy_and(lambda out: 0.1 * out.pow(2).mean()), "a sum of terms of rows"),
        (balanced, "a sum of terms of rows"),
        (rooted, "a sum of terms of rows"),
        (rooted_mean, "its sum divided by"),
        (hard, "a sum of terms of rows"),
        (noisy, "draws random numbers"),
        (Annealed(), "changes itself"),
        (lambda out, y, reduction: float(F.cross_entropy(out, y)), "the loss is a float"),
        (F.mse_loss, r"mse_loss takes the same shape"),
        (lambda out, y, reduction="mean": (out * 0).sum(), "cannot be found"),
    ],
)
def test_losses_whose_mean_is_unknown_are_refused(fn, said, graph, rng):
    out = torch.tensor(rng.standard_normal((NODES, CLASSES)), dtype=torch.float32)
    with pytest.raises(mgg.InputError, match=said):
        graph.loss(out, fn)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_a_scripted_loss_is_refused(graph):
    with pytest.raises(mgg.InputError, match="reduction compiled in"):
        graph.loss(torch.ones(NODES, CLASSES), torch.jit.script(nn.CrossEntropyLoss()))


@pytest.mark.parametrize("fn", [nn.BCELoss(), partial(F.binary_cross_entropy, weight=MULTI)])
def test_perfect_predictions(fn, graph, rng):
    graph.y = torch.tensor(rng.integers(0, 2, (NODES, CLASSES)), dtype=torch.float32)
    assert graph.loss(graph.y.clone(), fn) == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train", np.ones(NODES, bool), "graph.train is a ndarray"),
        ("train", None, "graph.train is a NoneType"),
        ("y", np.ones(NODES, int), "graph.y is a ndarray"),
    ],
)
def test_what_is_no_tensor_is_refused(name, value, said, graph):
    setattr(graph, name, value)
    with pytest.raises(mgg.InputError, match=said):
        graph.loss(torch.ones(NODES, CLASSES), F.cross_entropy)


@pytest.mark.parametrize("ignored", [-1, 2, -100])
@pytest.mark.parametrize("make", [lambda **o: partial(F.cross_entropy, **o), nn.CrossEntropyLoss, Doubled])
def test_losses_of_batches_are_torchs_means(make, ignored, graph, rng):
    fn = make(ignore_index=ignored)
    if ignored < 0:
        graph.y = torch.where(torch.arange(NODES) % 3 == 0, ignored, graph.y)
    for batch in mgg.NeighborLoader(graph, [2], batch_size=20, input_nodes=torch.arange(NODES)):
        out = torch.tensor(rng.standard_normal((len(batch.y), CLASSES)), dtype=torch.float32)
        torch.testing.assert_close(batch.loss(out, fn), fn(out, batch.y))


MULTI_LABEL = {
    "bce": F.binary_cross_entropy_with_logits,
    "bce pos_weight": partial(F.binary_cross_entropy_with_logits, pos_weight=MULTI),
    "bce weight": partial(F.binary_cross_entropy_with_logits, weight=MULTI),
    "own bce": lambda out, y, reduction="mean": F.binary_cross_entropy(out.sigmoid(), y, reduction=reduction),
    "probabilities of classes": F.cross_entropy,
    "huber": nn.HuberLoss(),
    "batchmean": nn.KLDivLoss(reduction="batchmean"),
    "bce module": nn.BCEWithLogitsLoss(pos_weight=MULTI),
    "soft margin": F.multilabel_soft_margin_loss,
    "mse": F.mse_loss,
}


@pytest.mark.parametrize("name", MULTI_LABEL)
def test_losses_of_several_labels_are_torchs_means(name, graph, rng):
    fn = MULTI_LABEL[name]
    graph.y = torch.tensor(rng.integers(0, 2, (NODES, CLASSES)), dtype=torch.float32)
    out = torch.tensor(rng.standard_normal((NODES, CLASSES)), dtype=torch.float32, requires_grad=True)
    found, right = graph.loss(out, fn), fn(out[graph.train], graph.y[graph.train])
    torch.testing.assert_close(found, right)


LAYERS = {
    "gcn": lambda: mgg.nn.GCNConv(12, 6),
    "gin": lambda: mgg.nn.GINConv(nn.Sequential(nn.Linear(12, 6))),
    "gin sum": lambda: mgg.nn.GINConv(nn.Identity()),
    "sage": lambda: mgg.nn.SAGEConv(12, 6),
    "sage max": lambda: mgg.nn.SAGEConv(12, 6, aggr="max"),
    "sage normalize": lambda: mgg.nn.SAGEConv(12, 6, normalize=True),
    "gat": lambda: mgg.nn.GATConv(12, 3, heads=2),
    "gat mean": lambda: mgg.nn.GATConv(12, 6, heads=2, concat=False),
    "gat without bias": lambda: mgg.nn.GATConv(12, 3, heads=2, bias=False),
    "gat residual": lambda: mgg.nn.GATConv(12, 3, heads=2, bias=False, residual=True),
    "dot gat": lambda: mgg.nn.GATConv(12, 3, heads=2, attention="dot"),
    "gin batch norm": lambda: mgg.nn.GINConv(nn.Sequential(nn.Linear(12, 6), mgg.nn.BatchNorm(6))),
    "gcn with a hook": lambda: hooked(mgg.nn.GCNConv(12, 6)),
    "mlp": lambda: mgg.nn.MLP([12, 8, 6], norm="batch"),
    "batch norm": lambda: mgg.nn.BatchNorm(12),
    "dropout": lambda: mgg.nn.Dropout(0.5, draws=Draws(1)),  # the same draws
    "program": Summed,
    "program of means": lambda: Summed("mean"),
    "program of maxima": lambda: Summed("max"),
    "program by column": lambda: Summed(gates=True),
    "program with rows of edges": lambda: Summed(gates=True, fuse=False),
    "program of maxima by column": lambda: Summed("max", gates=True),
    "normalised program": lambda: Summed(kind="gcn", gates=True),
}
# Changes in place, and the same out of place.
CHANGES = {
    "relu": (lambda h: F.relu(h, inplace=True), F.relu),
    "row": (lambda h: (h.__setitem__(0, 0), h)[1], lambda h: torch.cat([torch.zeros_like(h[:1]), h[1:]])),
    "add": (lambda h: h.add_(1), lambda h: h + 1),
    "dropout": (lambda h: F.dropout(h, 0.0, inplace=True), lambda h: h),
    "clamp": (lambda h: h.clamp_(min=0.1), lambda h: h.clamp(min=0.1)),
    "masked": (lambda h: h.masked_fill_(h < 0, 0.0), lambda h: h.masked_fill(h < 0, 0.0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_changed_in_place(name, change, graph):
    layer = LAYERS[name]()
    grads = []
    for changed in CHANGES[change]:
        x = graph.x.clone().requires_grad_()
        out = changed(layer(x, graph))
        out.square().sum().backward()
        grads.append((out.detach().clone(), x.grad))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_after_its_first_use_in_inference_mode(name, graph):
    layer = LAYERS[name]()
    with torch.inference_mode():
        first = layer(graph.x, graph).clone()
    x = graph.x.clone().requires_grad_()
    out = layer(x, graph)
    torch.testing.assert_close(out.detach(), first)
    out.sum().backward()
    assert all(each.grad is not None for each in (x, *layer.parameters()))


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_that_was_opened_in_inference_mode_trains(name, made):
    with torch.inference_mode():
        first = opened(made)
        LAYERS["gcn"]()(first.x, first)
    with first as graph:
        layer = LAYERS[name]()
        for x in (graph.x, graph.x.clone().requires_grad_()):
            out = layer(x, graph)
            if out.requires_grad:
                graph.loss(out, F.cross_entropy).backward()
            assert all(each.grad is not None for each in (x, *layer.parameters()) if each.requires_grad)


def test_operations_on_edges_train_after_inference_mode(graph):
    def run(x):
        adjacency = graph.adjacency("edges")
        scores = aggregation.dot_products(x, x, graph, adjacency, heads=2)
        weights = aggregation.edge_softmax(scores, adjacency) + aggregation.edge_sums(
            x[:, :2], x[:, 2:4], graph, adjacency
        )
        rows = mgg.extend(x, graph)[graph.edge_index("gcn")[0]]
        return (
            aggregation.aggregate(x, graph, adjacency, edge_weight=weights).sum()
            + rows.sum() * graph.edge_index().sum()
        )

    with torch.inference_mode():
        first = run(graph.x).clone()
    x = graph.x.clone().requires_grad_()
    out = run(x)
    torch.testing.assert_close(out.detach(), first)
    out.backward()


def test_batches_train_after_inference_mode(graph):
    loader = mgg.NeighborLoader(graph, [3], batch_size=16)
    layer = Summed(kind="gcn", gates=True)
    for batch in loader:
        x = batch.x.clone()
        with torch.inference_mode():
            first = layer(x, batch.blocks[0]).clone()
        out = layer(x, batch.blocks[0])
        torch.testing.assert_close(out.detach(), first)
        out.sum().backward()


def test_attention_with_edge_data_trains_after_inference_mode(tmp_path):
    weighted = jobs.directed_weighted(NODES)
    writer.write(tmp_path / "g.h5", weighted)
    with mgg.open(tmp_path / "g.h5") as graph:
        layer = mgg.nn.GATConv(12, 4, heads=2, edge_dim=1)
        with torch.inference_mode():
            layer(graph.x, graph, edge_attr="weight")
        layer(graph.x, graph, edge_attr="weight").sum().backward()
        assert layer.lin_edge.weight.grad is not None


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_layers(name, dtype, graph):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    exact = layer(graph.x, graph)
    lin = nn.Linear(12, 12)
    with torch.autocast("cpu", dtype):
        h = lin(graph.x)  # half
        assert h.dtype == dtype
        out = layer(h, graph)
        assert out.isfinite().all() and out.shape == exact.shape
        loss = out.float().square().sum()
        loss.backward(retain_graph=True)  # as torch's own operations do, in half precision in part
    rough = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    loss.backward()
    found = [p.grad.clone() for p in layer.parameters()]
    assert lin.weight.grad is not None
    layer.zero_grad()
    wanted = layer(h.detach().float(), graph)
    torch.testing.assert_close(out, wanted)
    if wanted.requires_grad:
        wanted.square().sum().backward()
    for near, mine, parameter in zip(rough, found, layer.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
        assert (near - mine).norm() <= 0.1 * mine.norm() + 1e-3


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_give_the_same(name, graph):
    layer = LAYERS[name]()
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(graph.x, graph), layer(graph.x, graph))
    model = torch.compile(lambda x: F.relu(layer(x, graph)) * 2, backend="eager")
    torch.testing.assert_close(model(graph.x), F.relu(layer(graph.x, graph)) * 2)
    grads = []
    for run in (model, lambda x: F.relu(layer(x, graph)) * 2):
        x = graph.x.clone().requires_grad_()
        run(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def multigraph(rng, *, weighted: bool):
    """Return random edges with duplicates and several self loops on some nodes, weights, and the number of nodes."""
    nodes = int(rng.integers(1, 12))
    ends = np.append(
        rng.integers(nodes, size=(2, 4 * nodes)), np.tile(rng.integers(nodes, size=nodes), (2, 1)), axis=1
    )
    ends = ends[:, rng.permutation(ends.shape[1])]
    return (
        torch.tensor(ends),
        torch.tensor(rng.uniform(0.1, 2, ends.shape[1]).astype(np.float32)) if weighted else None,
        nodes,
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("number", range(10))
def test_self_loops_of_multigraphs_are_pygs(number, weighted, rng):
    ends, weight, nodes = multigraph(rng, weighted=weighted)
    for make in (
        lambda lib: lib.GCNConv(3, 2),
        lambda lib: lib.GCNConv(3, 7),
        lambda lib: lib.GATConv(3, 2, heads=2),
    ):
        mine, theirs = make(mgg.nn), make(pyg)
        mine.load_state_dict(theirs.state_dict())
        x = torch.tensor(rng.standard_normal((nodes, 3)), dtype=torch.float32)
        given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
        with mgg.from_pyg(Data(x=x, edge_index=ends, edge_weight=weight, num_nodes=nodes)) as graph:
            right = theirs(expected, ends, *([weight] if isinstance(theirs, pyg.GCNConv) else []))
            out = mine(given, graph)
            torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)
            out.square().sum().backward(), right.square().sum().backward()
            torch.testing.assert_close(given.grad, expected.grad, rtol=1e-4, atol=1e-4)
            [batch] = mgg.NeighborLoader(
                graph, [-1], batch_size=nodes, input_nodes=torch.arange(nodes), shuffle=False
            )
            torch.testing.assert_close(mine(batch.x, batch.blocks[0]), right[batch.ids], rtol=1e-5, atol=1e-5)


def test_estimates_count_the_last_self_loop_alone():
    ends = torch.tensor([[0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 0, 0]])
    weight = torch.tensor([5.0, 7.0, 2.0, 1.0, 1.0, 1.0])
    layer = mgg.nn.GCNConv(2, 2)
    with mgg.from_pyg(Data(x=torch.rand(4, 2), edge_index=ends, edge_weight=weight, num_nodes=4)) as graph:
        right = layer(graph.x, graph)[:1]
        loader = mgg.NeighborLoader(graph, [3], batch_size=1, input_nodes=torch.tensor([0]))
        found = torch.stack([layer(batch.x, batch.blocks[0]) for _ in range(2000) for batch in loader]).mean(
            0
        )
    torch.testing.assert_close(found, right, rtol=0.05, atol=0.05)


CONVOLUTIONS = [
    name for name in LAYERS if "program" not in name and name not in ("mlp", "batch norm", "dropout")
]


def test_layers_and_streamed_graphs_say_what_they_take(graph, tmp_path, made):
    writer.write(tmp_path / "g.h5", made)
    x = torch.ones(NODES, 12)
    with mgg.open(tmp_path / "g.h5", streaming=mgg.Streaming(memory=1 << 20)) as streamed:
        for name in CONVOLUTIONS:
            for rows in (x, streamed.x):
                with pytest.raises(TypeError, match="does not run on a streamed graph: "):
                    LAYERS[name]()(rows, streamed)
        for make in LAYERS.values():
            with pytest.raises(TypeError, match="takes rows in memory here"):
                make()(streamed.x, graph)
        with pytest.raises(TypeError, match="takes streamed rows on a streamed graph"):
            Summed()(x, streamed)
        with pytest.raises(TypeError, match="takes rows in memory here"):
            mgg.nn.Dropout()(streamed.x, streamed)
        assert mgg.nn.MLP([12, 3])(x, streamed).shape == (NODES, 3)
        torch.testing.assert_close(Summed()(streamed.x, streamed).tensor().shape, (NODES, 12))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_say_what_they_take(name, graph):
    edges = graph.edge_index()
    for rows, other, match in (
        (graph.x.tolist(), graph, "takes rows as a tensor, and x is a list"),
        (graph.x, edges, r"\(x, graph\) takes a graph, as mgg.open returns, and this is a Tensor"),
        (None, graph, "takes rows as a tensor, and x is a NoneType"),
        (graph.x.numpy(), graph, "takes rows as a tensor, and x is a ndarray"),
    ):
        with pytest.raises(TypeError, match=match):
            LAYERS[name]()(rows, other)


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "gin sum"])  # it has no parameters
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_parameters_of_another_type_are_refused(name, dtype, graph):
    with pytest.raises((ValueError, RuntimeError), match=r"takes torch.float32: |same dtype"):
        LAYERS[name]().to(dtype)(graph.x, graph)
