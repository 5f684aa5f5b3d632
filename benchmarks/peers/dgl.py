"""DGL: copy_u_sum (u_mul_e_sum with weights) on a graph in in-edge CSR alone, int32 ids; its convolutions; programs."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import packaging.version
import torch
from torch.nn.functional import linear

from . import nets, programs
from .nets import Layer, Task
from .torch import load

# DGL 1.1 takes this from setuptools, which no longer brings it.
sys.modules.setdefault("setuptools.extern", types.ModuleType("setuptools.extern"))
sys.modules.setdefault("setuptools.extern.packaging", packaging)

import dgl  # noqa: E402 - after what it looks for
import dgl.nn  # noqa: E402

CONVOLUTIONS: dict[str, Callable[[Layer], torch.nn.Module]] = {
    "gcn": lambda layer: dgl.nn.GraphConv(layer.inputs, layer.outputs, norm="both"),
    "gin": lambda layer: dgl.nn.GINConv(nets.Perceptron(layer), "sum"),
    "sage": lambda layer: dgl.nn.SAGEConv(layer.inputs, layer.outputs, "mean"),
    # Each node has its self loop; looking whether it has takes a pass over them.
    "gat": lambda layer: dgl.nn.GATConv(layer.inputs, layer.outputs, layer.heads, allow_zero_in_degree=True),
}
# PyG's names of their parameters.
NAMES = {
    "gcn": {"lin.weight": "weight"},
    "gin": {"nn.": "apply_func."},
    "sage": {
        "lin_l.weight": "fc_neigh.weight",
        "lin_l.bias": "fc_self.bias",
        "lin_r.weight": "fc_self.weight",
    },
    "gat": {"lin.weight": "fc.weight", "att_src": "attn_l", "att_dst": "attn_r"},
}


def about() -> str:
    """Return the versions."""
    return f"dgl {dgl.__version__} (torch {torch.__version__})"


def _graph(indptr: str, indices: str) -> Any:
    pointers, sources = load(indptr).int(), load(indices)
    edges = sources.new_empty(0)  # numbered as they are stored
    return dgl.graph(("csc", (pointers, sources, edges)), num_nodes=len(pointers) - 1)


def aggregate(
    indptr: str, indices: str, weight: str | None, x: str, dtype: str
) -> dict[str, Callable[[], Any]]:
    """Return the run "dgl"."""
    kind = getattr(torch, dtype)
    graph, rows = _graph(indptr, indices).formats("csc"), load(x).to(kind)
    if weight is None:
        return {"dgl": lambda: dgl.ops.copy_u_sum(graph, rows)}
    edge = load(weight)[:, None].to(kind)
    return {"dgl": lambda: dgl.ops.u_mul_e_sum(graph, rows, edge)}


def _state(task: Task) -> dict[str, torch.Tensor]:
    """Return the initial weights under DGL's names."""
    found = {}
    for name, value in task.state.items():
        turned = task.model == "gcn" and value.dim() == 2  # GraphConv's is [in, out]
        found[_renamed(task.model, name)] = value.t() if turned else value
    return found


def _renamed(model: str, name: str) -> str:
    for theirs, here in NAMES[model].items():
        if theirs in name:
            return name.replace(theirs, here)
    return name


def epoch(
    indptr: str, indices: str, weight: None, file: object, **inputs: Any
) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl" and "untrained"; self loops are added before the clock starts."""
    task = Task(**inputs)
    graph = _graph(indptr, indices)
    if task.model == "gat":
        graph = dgl.remove_self_loop(graph)
    if task.model in ("gcn", "gat"):
        graph = dgl.add_self_loop(graph)
    # Values of edges, which only GAT has, need the list of edges.
    graph = graph.formats(["csc", "csr", "coo"] if task.model == "gat" else ["csc", "csr"])
    graph.create_formats_()
    convolutions = [CONVOLUTIONS[task.model](layer) for layer in task.convolutions]
    # GATConv's outputs are [N, heads, C], and the last has one head.
    net = nets.Net(task, convolutions, lambda layer, x: layer(graph, x).flatten(1))
    net.load_state_dict(_state(task))
    return nets.runs(net, task)


def propagate(**inputs: Any) -> dict[str, programs.Run]:
    """Return the run "dgl" of a `programs.Task`, with int64 ids: with int32 ones it took longer."""
    task = programs.Task(**inputs)
    pointers, sources, targets, count = task.edges()
    x, weights = task.leaves()
    edges, nodes = {("source", "to", "target"): (sources, targets)}, len(pointers) - 1
    graph = dgl.heterograph(edges, num_nodes_dict={"source": count, "target": nodes})
    graph = graph.formats(["coo", "csc", "csr"])
    graph.create_formats_()
    step = partial(_messages, task.program, graph, x, **weights)
    return {"dgl": task.run(step, [x, *weights.values()])}


def _messages(program: str, graph: Any, x: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
    if program == "typed":
        return dgl.ops.copy_u_sum(graph, programs.products(x, weights["matrix"]))
    gate = torch.sigmoid(dgl.ops.u_add_v(graph, linear(x, weights["far"]), linear(x, weights["near"])))
    if program == "gated":
        return dgl.ops.u_mul_e_sum(graph, x, gate)
    most = dgl.ops.u_mul_e_max(graph, x, gate)
    return most.masked_fill(torch.isinf(most), 0)  # of rows without edges, as update_all does
