"""DGL: copy_u_sum (u_mul_e_sum with weights) on in-edge CSR alone; its convolutions, samplers and loaders; programs."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import packaging.version
import torch
from torch import Tensor
from torch.nn.functional import linear

from . import nets, programs
from .nets import Layer
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

ABOUT = f"dgl {dgl.__version__} (torch {torch.__version__})"


def _graph(indptr: str, indices: str, kind: torch.dtype = torch.int32) -> Any:
    """Return a graph of its in-edge CSR, whose ids have this type."""
    pointers, sources = load(indptr).to(kind), load(indices).to(kind)
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


def _state(task: nets.Task, model: str) -> dict[str, Tensor]:
    """Return the initial weights under DGL's names."""
    found = {}
    for name, value in task.state.items():
        renamed = name
        for theirs, here in NAMES[model].items():
            renamed = renamed.replace(theirs, here)
        # GraphConv's is [in, out].
        found[renamed] = value.t() if model == "gcn" and value.dim() == 2 else value
    return found


def epoch(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the run of `nets.epochs`; self loops are added before the clock starts."""
    task = nets.Epoch(**inputs)
    graph = _graph(task.indptr, task.indices)
    if task.model == "gat":
        graph = dgl.remove_self_loop(graph)
    if task.model in ("gcn", "gat"):
        graph = dgl.add_self_loop(graph)
    # Values of edges, which only GAT has, need the list of edges.
    graph = graph.formats(["csc", "csr", "coo"] if task.model == "gat" else ["csc", "csr"])
    graph.create_formats_()
    convolutions = [CONVOLUTIONS[task.model](layer) for layer in task.convolutions]
    # GATConv's outputs are [N, heads, C], and the last has one head.
    return nets.epochs(
        task, convolutions, lambda layer, x: layer(graph, x).flatten(1), _state(task, task.model)
    )


def _opened(task: nets.Sampled) -> tuple[Any, Any, dict[int, Any]]:
    """Return the graph in the form that DGL samples from, with int64 ids; its sampler; and loaders by their workers."""
    graph, rows = _graph(task.indptr, task.indices, torch.int64).formats("csc"), load(task.rows)
    drawing = dgl.dataloading.NeighborSampler(task.fanouts[::-1])
    how = {"batch_size": task.batch_size, "shuffle": True}
    loader = partial(dgl.dataloading.DataLoader, graph, rows, drawing, **how)
    return graph, drawing, {n: loader(num_workers=n, persistent_workers=n > 0) for n in nets.WORKERS}


def _edges(blocks: list[Any]) -> int:
    return sum(block.num_edges() for block in blocks)


def sampler(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl", the sampler by itself, and "dgl loader N", with N worker processes."""
    task = nets.Sampled(**inputs)
    rows, (graph, drawing, loaders) = load(task.rows), _opened(task)

    def alone() -> np.ndarray:
        order = rows[torch.randperm(len(rows))]
        return nets.means(one(part) for part in order.split(task.batch_size))

    def one(part: Tensor) -> tuple[int, int]:
        blocks = drawing.sample_blocks(graph, part)[2]
        return _edges(blocks), blocks[0].num_src_nodes()

    def loaded(loader: Any) -> np.ndarray:
        return nets.means((_edges(blocks), len(sources)) for sources, _, blocks in loader)

    return {"dgl": alone} | {f"dgl loader {n}": partial(loaded, loader) for n, loader in loaders.items()}


def train(**inputs: Any) -> dict[str, Callable[[], Any]]:
    """Return the runs "dgl N", epochs with N worker processes of the loader."""
    task = nets.Sampled(**inputs)
    features, labels, state = load(task.x), load(task.y), _state(task, "sage")

    def batches(loader: Any) -> nets.Batches:
        for sources, outputs, blocks in loader:
            yield features[sources], labels[outputs], blocks, _edges(blocks)

    def run(loader: Any) -> Callable[[], np.ndarray]:
        convolution = partial(dgl.nn.SAGEConv, aggregator_type="mean")
        net = nets.sage(task, convolution, lambda layer, i, h, blocks: layer(blocks[i], h), state)
        return nets.epoch_of(net, partial(batches, loader))

    return {f"dgl {n}": run(loader) for n, loader in _opened(task)[2].items()}


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


def _messages(program: str, graph: Any, x: Tensor, **weights: Tensor) -> Tensor:
    if program == "typed":
        return dgl.ops.copy_u_sum(graph, programs.products(x, weights["matrix"]))
    gate = torch.sigmoid(dgl.ops.u_add_v(graph, linear(x, weights["far"]), linear(x, weights["near"])))
    if program == "gated":
        return dgl.ops.u_mul_e_sum(graph, x, gate)
    most = dgl.ops.u_mul_e_max(graph, x, gate)
    return most.masked_fill(torch.isinf(most), 0)  # of rows without edges, as update_all does
