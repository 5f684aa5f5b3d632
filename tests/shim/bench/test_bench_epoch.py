"""`mgg bench epoch --device cuda` with the shim in place of a GPU."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from mgg_hpc.tools.bench.epoch import gpu as epoch_gpu
from mgg_hpc.tools.bench.epoch import gpu_models
from mgg_hpc.tools.bench.epoch.gpu_memory import Held
from mgg_hpc.tools.bench.epoch.shape import Shape, labelled
from mgg_hpc.tools.bench.harness import graphs

pytestmark = pytest.mark.long

SHAPE = Shape(features=12, hidden=5, classes=7, dropout=0.5)


class Counted:
    """A meter whose figures are known: how often it was asked."""

    def __init__(self):
        self.asked = 0

    def held(self):
        self.asked += 1
        return Held(1000, 500)

    def peak(self, before, call):
        assert before == Held(1000, 500)
        call()
        return {"tensors": 10_000_000 * self.asked, "outside": 1_000_000}


@pytest.fixture
def pyg(monkeypatch):
    """What this package asks of PyG, by dense matrices."""

    class GCNConv(torch.nn.Module):
        def __init__(self, in_channels, out_channels, normalize):
            super().__init__()
            assert not normalize
            self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
            self.bias = torch.nn.Parameter(torch.zeros(out_channels))

        def forward(self, x, edges, weight=None):
            if weight is not None:
                matrix = torch.zeros(len(x), len(x)).index_put((edges[1], edges[0]), weight, accumulate=True)
            else:
                matrix = edges.to_dense()
            return matrix @ self.lin(x) + self.bias

    def gcn_norm(edges, num_nodes):
        loops = torch.arange(num_nodes)
        edges = torch.cat([edges, loops.expand(2, -1)], 1)
        degree = torch.bincount(edges[1], minlength=num_nodes).float()
        return edges, (degree[edges[0]] * degree[edges[1]]) ** -0.5

    names = ("torch_geometric", "torch_geometric.nn", "torch_geometric.nn.conv")
    modules = {name: ModuleType(name) for name in (*names, "torch_geometric.nn.conv.gcn_conv")}
    modules["torch_geometric.nn"].GCNConv = GCNConv
    modules["torch_geometric.nn.conv.gcn_conv"].gcn_norm = gcn_norm
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def inputs(device, graph="rmat:5:4", shape=SHAPE):
    """A graph to train on."""
    return gpu_models.inputs_of(device, labelled(graphs.read(graph), shape), shape)


def test_a_whole_run(bench, pyg, tmp_path, monkeypatch):
    monkeypatch.setattr(epoch_gpu, "GpuMemory", Counted)
    model = ("--features=12", "--hidden=5", "--classes=7")
    found = bench("epoch", "rmat:5:4", "uniform:5", *model, "--peers=pyg,pyg-csr", "--turns=2")
    names = {"mgg", "pyg", "pyg-csr"}
    assert found["notes"] == []
    assert [case["graph"] for case in found["cases"]] == ["rmat5", "uniform5"]
    first, _ = found["cases"]
    held = 32 * (12 * 4 + 8)
    for asked, name in enumerate(first["ms"], start=1):
        assert first["peak_bytes"][name] == 10_000_000 * asked + 1_000_000 + held
    for case in found["cases"]:
        assert case["ms"].keys() == case["loss"].keys() == names
        assert case["loss"]["mgg"] == pytest.approx(math.log(7), rel=0.3)
        assert [(each["in"], each["out"]) for each in case["layers"]] == [(12, 5), (5, 7)]
        for timed in (
            case,
            *(each[way] for each in case["layers"] for way in ("forward", "forward and backward")),
        ):
            assert timed["ms"].keys() == names
            assert all(0 < ms["min"] <= ms["median"] <= ms["max"] for ms in timed["ms"].values())
            assert timed["speedup"].keys() == names - {"mgg"}
    for word in ("uniform5", "12 -> 5", "pyg-csr", "peak MB", "forward and backward"):
        assert word in found["markdown"]
    assert "loss" in found["printed"]
    assert "| rmat5 | 5 -> 7 | mgg |" in found["markdown"]
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_layers_and_their_gradients_are_those_of_the_peer(device, pyg, rng):
    """The same weights give the same rows and gradients, whoever computes them."""
    task = inputs(device)
    ours, *theirs = (make(task) for make in gpu_models.MAKERS.values())
    for number, (x, _) in enumerate(task.layers):
        (weight, bias), found = _parameters(ours, number), {}
        for net in (ours, *theirs):
            for mine, of_ours in zip(_parameters(net, number), (weight, bias), strict=True):
                mine.data.copy_(of_ours)
            net.forward_and_backward(number)
            out = net.convolutions[number](x)
            gradients = [tensor.grad for tensor in (x, *_parameters(net, number))]
            found[net.name] = [None if each is None else each.clone() for each in (*gradients, out.detach())]
        assert (found["mgg"][0] is None) == (number == 0)  # features need no gradient
        for name in ("pyg", "pyg-csr"):
            for one, other in zip(found[name], found["mgg"], strict=True):
                if other is not None:
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _parameters(net, number):
    """Weight and bias of a layer."""
    layer = net.model.convs[number]
    return layer.lin.weight, layer.bias


def test_training_lowers_the_loss(device):
    shape = Shape(features=16, hidden=16, classes=3, dropout=0.0)
    net = gpu_models.ours(inputs(device, "rmat:5:2", shape))
    losses = []
    for _ in range(12):
        net.step()
        losses.append(net.loss())
    assert losses[-1] < 0.8 * losses[0]


def test_dropout_draws_anew_in_each_epoch(device):
    net = gpu_models.ours(inputs(device))
    first, second = net.logits(), net.logits()
    assert not np.array_equal(first.detach().numpy(), second.detach().numpy())


def test_a_peer_that_is_not_there_is_left_out_and_named(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    row, notes = epoch_gpu.measure(inputs(device, "rmat:4:4"), ["pyg"], 1, Counted())
    assert row["ms"].keys() == {"mgg"}
    assert len(notes) == 1
    assert notes[0].startswith("pyg is left out of rmat4: ")
    assert "torch_geometric" in notes[0]


def test_a_peer_that_learns_something_else_ends_the_run(device, pyg, monkeypatch):
    monkeypatch.setattr(gpu_models.Net, "loss", lambda net: {"mgg": 2.0, "pyg": 3.5}[net.name])
    with pytest.raises(RuntimeError, match=r"pyg's loss is 3\.5000 and ours 2\.0000"):
        epoch_gpu.measure(inputs(device, "rmat:4:4"), ["pyg"], 1, Counted())
