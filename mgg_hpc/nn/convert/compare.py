"""Rows of a converted model beside the model's own, at its first call on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

from ...errors import InputError
from ...plan.workload import prefix_sum
from ..graph.dist_graph import DistGraph
from .layouts import Count, Divided, dims, divided, layout
from .running import Run

ROWS = 8
MOST_EDGES, MOST_VALUES = 1_000_000, 2**26  # that are compared at once, and their columns
NEAR = {torch.float64: 1e-8, torch.float32: 1e-4}  # of the largest value; halves: 0.05


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Evaluate within a block, without gradients."""
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def some_rows(run: Run, alone: Any, out: Any, args: Any, kwargs: Any) -> str:
    """Compare rows of a converted model in evaluation with the model's own, over the edges that they depend on.

    run: the call that gave ``out``. alone: calls the model itself. Returns why nothing was compared, or "". Collective.
    Raises InputError, the same on all ranks, if they differ.
    """
    graph, lists = run.graph, run.lists
    if not isinstance(out, Tensor) or dims(out)[:1] != (Divided(lists.nodes),):
        return "the model does not return rows of the nodes"
    if run.drew:
        return "it draws random numbers"
    rows = np.unique(np.linspace(0, graph.num_nodes - 1, ROWS).astype(np.int64))
    most = min(MOST_EDGES, MOST_VALUES // max([1, *(columns for *_, columns in run.exchanges)]))
    every = np.arange(graph.num_nodes) if graph.num_edges <= most else rows
    if len(every) == len(rows) < graph.num_nodes:
        for there, what in (
            (run.pooled, "it reduces all rows to one value"),
            (any(what == "sums" for _, what, _ in run.exchanges), "it sums at the sources of edges"),
            (Count.used, "it computes with the number of nodes or edges"),
        ):
            if there:
                return f"{what}, and the graph has more than {most:,} edges"
    found = _around(graph, every, len(run.exchanges) + 1, most)
    if found is None:
        return f"the rows that {ROWS} of them depend on have more than {most:,} edges"
    nodes, places, edges = found
    low = int(prefix_sum(graph.counts)[graph.rank])
    mine = nodes[(nodes >= low) & (nodes < low + graph.rows)] - low

    def part(value: Any) -> Any:
        """Return what this rank gives of an argument: of a tensor the rows that are needed."""
        if not isinstance(value, Tensor) or (place := divided(value)) is None:
            return value if isinstance(value, (Tensor, type(None))) else NotImplemented
        entry = dims(value)[place]
        chosen = {lists.nodes: mine, lists.edges: places}.get(entry.domain)  # type: ignore[union-attr]
        if chosen is None or (place and layout(value).numbers is None):
            return NotImplemented
        return [] if place else [value.detach()[torch.from_numpy(chosen)]]

    given = [part(each) for each in (*args, *kwargs.values())]
    wanted = rows[(rows >= low) & (rows < low + graph.rows)] - low
    parts = graph.comm.gather((given, edges, out.detach()[torch.from_numpy(wanted)].cpu()))
    said = "" if parts is None else _differing(alone, parts, nodes, rows, len(args), list(kwargs))
    said = graph.comm.bcast(said)
    if said.startswith("!") and Count.read and len(every) < graph.num_nodes:
        return "it reads the number of nodes or edges, and gives other values on a part of the graph"
    if said.startswith("!"):
        raise InputError(said[1:])
    return said


def _around(graph: DistGraph, rows: NDArray[np.int64], hops: int, most: int) -> Any:
    """Return the rows within hops of others against the edges, ascending, and this rank's edges to them: their places,
    and both ends. None with more edges than ``most``. Collective.
    """
    edges, low = graph.part.slice, int(prefix_sum(graph.counts)[graph.rank])
    nodes, new = rows, rows
    places, total = np.zeros(0, np.int64), 0
    for _ in range(hops):
        mine = new[(new >= low) & (new < low + graph.rows)] - low
        counts = np.diff(edges.indptr)[mine]
        total += int(graph.comm.allreduce(int(counts.sum())))
        if total > most:
            return None
        first = np.repeat(edges.indptr[mine] - (np.cumsum(counts) - counts), counts)
        here = first + np.arange(len(first))
        places = np.append(places, here)
        sources = np.unique(np.concatenate(graph.comm.allgather(edges.indices[here].astype(np.int64))))
        new = np.setdiff1d(sources, nodes)
        nodes = np.union1d(nodes, new)
    places.sort()
    target = np.searchsorted(edges.indptr, places, side="right") - 1 + low
    return nodes, places, np.stack([edges.indices[places].astype(np.int64), target])


def _differing(alone: Any, every: Any, nodes: Any, rows: Any, count: int, names: list[str]) -> str:
    """Return what is wrong with rows of all ranks, after "!"; why nothing was compared, or ""."""
    if any(each is NotImplemented for each in every[0][0]):
        return "its arguments are not tensors of nodes and edges"
    index = torch.from_numpy(np.searchsorted(nodes, np.concatenate([edges for _, edges, _ in every], 1)))
    whole = []
    for parts in zip(*(given for given, *_ in every), strict=True):
        rows_of = isinstance(parts[0], list)
        whole.append(
            torch.cat([each for (each,) in parts]) if rows_of and parts[0] else index if rows_of else parts[0]
        )
    try:
        wanted = alone(*whole[:count], **dict(zip(names, whole[count:], strict=True)))
    except Exception as error:
        return f"the model does not run on a part of the graph ({type(error).__name__}: {error})"
    found = torch.cat([each for *_, each in every])
    wanted = wanted[torch.from_numpy(np.searchsorted(nodes, rows))].to(found)
    halves = torch.is_autocast_enabled(found.device.type) or found.dtype not in NEAR
    near = (0.05 if halves else NEAR[found.dtype]) * float(wanted.abs().nan_to_num(0, 0).max())
    apart = (found - wanted).abs()
    same = (found == wanted) | (found.isnan() & wanted.isnan())  # infinities, and NaN of the model's own
    apart = apart.where(~same, 0).reshape(len(rows), -1).amax(1)
    if bool((apart <= near).all()):
        return ""
    row = int((~(apart <= near)).int().argmax())
    ours, own = (each[row].flatten()[:3].tolist() for each in (found, wanted))
    return (
        f"!convert: of node {rows[row]} in the graph's order the converted model gives {ours}, the model itself {own}: "
        "this is an error of mgg.convert, which mgg.explain may show; check=False goes on all the same"
    )
