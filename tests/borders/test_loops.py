"""Habits of torch's training loops give what they give with torch: losses, in-place operations, modes, autocast, compile."""

from __future__ import annotations

from functools import partial

import jobs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from torch import nn

import mgg_hpc as mgg

NODES, CLASSES = 90, 4


@pytest.fixture(scope="module")
def made():
    return jobs.blocks(NODES)


@pytest.fixture
def graph(made):
    matrix = csr_matrix((np.ones(made.edges, np.float32), made.indices, made.indptr), (NODES, NODES))
    with mgg.from_scipy(matrix, made.x, made.y, train=made.train, val=made.val, test=made.test) as found:
        yield found


WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5])
MULTI = torch.tensor([1.0, 2.0, 0.5, 4.0])
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
        (lambda out, y: F.cross_entropy(out, y), "keyword reduction"),
        (lambda out, y, **_: F.cross_entropy(out, y), "the same with"),
        (partial(F.cross_entropy, reduction="none"), "'none'"),
        (nn.CrossEntropyLoss(reduction="none"), "'none'"),
        (partial(F.cross_entropy, size_average=False), "size_average"),
        (partial(F.cross_entropy, weight=torch.zeros(CLASSES)), "that count"),
    ],
)
def test_losses_whose_mean_is_unknown_are_refused(fn, said, graph):
    with pytest.raises(mgg.InputError, match=said):
        graph.loss(torch.ones(NODES, CLASSES), fn)


MULTI_LABEL = {
    "bce": F.binary_cross_entropy_with_logits,
    "bce pos_weight": partial(F.binary_cross_entropy_with_logits, pos_weight=MULTI),
    "bce weight": partial(F.binary_cross_entropy_with_logits, weight=MULTI),
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
}
IN_PLACE = {
    "relu": lambda h: F.relu(h, inplace=True),
    "relu_": lambda h: h.relu_(),
    "module": lambda h: nn.ReLU(inplace=True)(h),
    "row": lambda h: (h.__setitem__(0, 0), h)[1],
    "add": lambda h: h.add_(1),
    "dropout": lambda h: F.dropout(h, 0.0, inplace=True),
    "clamp": lambda h: h.clamp_(min=0.1),
    "masked": lambda h: h.masked_fill_(h < 0, 0.0),
}
OUT_OF_PLACE = {
    "relu": F.relu,
    "relu_": F.relu,
    "module": F.relu,
    "row": lambda h: torch.cat([torch.zeros_like(h[:1]), h[1:]]),
    "add": lambda h: h + 1,
    "dropout": lambda h: h,
    "clamp": lambda h: h.clamp(min=0.1),
    "masked": lambda h: h.masked_fill(h < 0, 0.0),
}


@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_changed_in_place(name, change, graph):
    layer = LAYERS[name]()
    grads = []
    for changed in (IN_PLACE[change], OUT_OF_PLACE[change]):
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
    matrix = csr_matrix((np.ones(made.edges, np.float32), made.indices, made.indptr), (NODES, NODES))
    with torch.inference_mode():
        opened = mgg.from_scipy(matrix, made.x, made.y, train=made.train, val=made.val, test=made.test)
    with opened as graph:
        layer = LAYERS[name]()
        x = graph.x.clone().requires_grad_()
        layer(x, graph).sum().backward()
        assert all(each.grad is not None for each in (x, *layer.parameters()))


def test_attention_with_edge_data_trains_after_inference_mode(made, tmp_path):
    from mgg_hpc.data import writer

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
    with torch.autocast("cpu", dtype):
        h = nn.Linear(12, 12)(graph.x)  # half
        assert h.dtype == dtype
        out = layer(h, graph)
    assert out.isfinite().all() and out.shape == exact.shape
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_give_the_same(name, graph):
    layer = LAYERS[name]()
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(graph.x, graph), layer(graph.x, graph))
    model = torch.compile(lambda x: F.relu(layer(x, graph)) * 2, backend="eager")
    torch.testing.assert_close(model(graph.x), F.relu(layer(graph.x, graph)) * 2)


def test_two_self_loops_on_a_node_are_pygs(rng):
    from torch_geometric.nn import GCNConv

    for _ in range(10):
        nodes = int(rng.integers(1, 12))
        u, v = rng.integers(nodes, size=(2, 4 * nodes))
        loops = rng.integers(nodes, size=nodes)
        u, v = np.append(u, loops), np.append(v, loops)
        w = rng.uniform(0.1, 2, len(u)).astype(np.float32)
        from torch_geometric.data import Data

        ends = torch.tensor(np.stack([u, v]))
        theirs = GCNConv(3, 2)
        mine = mgg.nn.GCNConv(3, 2)
        mine.load_state_dict(theirs.state_dict())
        x = torch.tensor(rng.standard_normal((nodes, 3)), dtype=torch.float32)
        with mgg.from_pyg(Data(edge_index=ends, edge_weight=torch.tensor(w), num_nodes=nodes)) as graph:
            torch.testing.assert_close(mine(x, graph), theirs(x, ends, torch.tensor(w)), rtol=1e-5, atol=1e-5)


def test_a_layer_on_a_streamed_graph_says_what_it_takes(tmp_path, made):
    from mgg_hpc.data import writer

    writer.write(tmp_path / "g.h5", made)
    with mgg.open(tmp_path / "g.h5", streaming=mgg.Streaming(memory="1M")) as graph:
        with pytest.raises((TypeError, ValueError, mgg.InputError), match="stream"):
            mgg.nn.GCNConv(12, 4)(torch.ones(NODES, 12), graph)
