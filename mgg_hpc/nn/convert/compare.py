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
from .layouts import Count, Divided, Domain, dims, divided, layout
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
    outs = {
        name: each for name, each in (out if isinstance(out, dict) else {"": out}).items() if each is not None
    }
    lists_of_rows = [lists.nodes, *(each for each in lists.typed.values() if each.beyond)]
    whole = [Divided(each) for each in lists_of_rows]
    if not outs or not all(
        isinstance(each, Tensor) and each.dim() and dims(each)[0] in whole for each in outs.values()
    ):
        return "the model does not return rows of the nodes"
    if run.drew:
        return "it draws random numbers"
    most = min(MOST_EDGES, MOST_VALUES // max([1, *(columns for *_, columns in run.exchanges)]))
    # Of each list the items that this rank gives, and the numbers of all rows that are given, ascending.
    given: dict[Domain, NDArray[np.int64]]
    numbers: dict[Domain, NDArray[np.int64]]
    if graph.num_edges <= most:
        given = {each: np.arange(each.local) for each in (lists.edges, *lists_of_rows, *lists.typed.values())}
        numbers = {each: np.concatenate(graph.comm.allgather(each.own)) for each in lists_of_rows}
    else:
        for there, what in (
            (run.pooled, "it reduces all rows to one value"),
            (any(what == "sums" for _, what, _ in run.exchanges), "it sums at the sources of edges"),
            (Count.used, "it computes with the number of nodes or edges"),
            (any(dims(each)[0] != whole[0] for each in outs.values()), "it takes several types of nodes"),
        ):
            if there:
                return f"{what}, and the graph has more than {most:,} edges"
        found = _around(graph, _spread(np.arange(graph.num_nodes)), len(run.exchanges) + 1, most)
        if found is None:
            return f"the rows that {ROWS} of them depend on have more than {most:,} edges"
        nodes, places = found
        given = {lists.nodes: np.flatnonzero(np.isin(lists.nodes.own, nodes)), lists.edges: places}
        numbers = {lists.nodes: nodes}

    def part(value: Any) -> Any:
        """Return what this rank gives of an argument: of a tensor the items that are needed, and their dimension."""
        if isinstance(value, dict):
            return {name: part(each) for name, each in value.items()}
        if not isinstance(value, Tensor) or (place := divided(value)) is None:
            return value if isinstance(value, (Tensor, type(None))) else NotImplemented
        entry, held = dims(value)[place], layout(value).numbers
        assert entry is not None
        if entry.domain not in given or (held is None) != (place == 0):
            return NotImplemented
        taken = value.detach().index_select(place, torch.from_numpy(given[entry.domain]).to(value.device))
        if isinstance(held, tuple):
            ends = zip((each.domain for each in held), taken.cpu().numpy(), strict=True)
            pair = np.stack([np.searchsorted(numbers[of], of.numbers[end]) for of, end in ends])
            taken = torch.from_numpy(pair).to(value.device)
        return taken, place

    checked, places, mine = dict[str, Any](), dict[str, Any](), dict[str, Tensor]()
    for name, each in outs.items():
        of: Any = dims(each)[0].domain  # type: ignore[union-attr]
        checked[name] = _spread(numbers[of] if graph.num_edges <= most else np.arange(graph.num_nodes))
        places[name] = np.searchsorted(numbers[of], checked[name])
        mine[name] = each.detach()[torch.from_numpy(np.isin(of.own, checked[name])).to(each.device)].cpu()
    parts = graph.comm.gather(([part(each) for each in (*args, *kwargs.values())], mine))
    said = "" if parts is None else _differing(alone, parts, checked, places, len(args), list(kwargs))
    said = graph.comm.bcast(said)
    if said.startswith("!") and Count.read and graph.num_edges > most:
        return "it reads the number of nodes or edges, and gives other values on a part of the graph"
    if said.startswith("!"):
        raise InputError(said[1:])
    return said


def _spread(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some of these, evenly spread."""
    return rows[np.unique(np.linspace(0, max(0, len(rows) - 1), ROWS).astype(np.int64))[: len(rows)]]


def _around(graph: DistGraph, rows: NDArray[np.int64], hops: int, most: int) -> Any:
    """Return the rows within hops of others against the edges, ascending, and the places of this rank's edges to them;
    None with more edges than ``most``. Collective.
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
    return nodes, np.sort(places)


def _joined(parts: Any) -> Any:
    """Return an argument of what all ranks gave of it. Raises TypeError for what cannot be joined."""
    if isinstance(parts[0], dict):
        return {name: _joined([each[name] for each in parts]) for name in parts[0]}
    if parts[0] is NotImplemented:
        raise TypeError
    return torch.cat([each for each, _ in parts], parts[0][1]) if isinstance(parts[0], tuple) else parts[0]


def _differing(alone: Any, every: Any, rows: Any, places: Any, count: int, names: list[str]) -> str:
    """Return what is wrong with rows of all ranks, after "!"; why nothing was compared, or ""."""
    try:
        whole = [_joined(parts) for parts in zip(*(given for given, _ in every), strict=True)]
    except TypeError:
        return "its arguments are not tensors of nodes and edges"
    try:
        out = alone(*whole[:count], **dict(zip(names, whole[count:], strict=True)))
    except Exception as error:
        return f"the model does not run on a part of the graph ({type(error).__name__}: {error})"
    for name, numbers in rows.items():
        found = torch.cat([each[name] for _, each in every])
        wanted = (out[name] if isinstance(out, dict) else out)[torch.from_numpy(places[name])].to(found)
        halves = torch.is_autocast_enabled(found.device.type) or found.dtype not in NEAR
        largest = wanted.abs().nan_to_num(0, 0).max() if wanted.numel() else 0
        near = (0.05 if halves else NEAR[found.dtype]) * float(largest)
        apart = (found - wanted).abs()
        same = (found == wanted) | (found.isnan() & wanted.isnan())  # infinities, and NaN of the model's own
        wrong = ~(apart.where(~same, 0) <= near).reshape(len(numbers), -1).all(1)
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            ours, own = (each[row].flatten()[:3].tolist() for each in (found, wanted))
            return (
                f"!convert: of node {numbers[row]} in the graph's order the converted model gives {ours}, the model "
                f"itself {own}: this is an error of mgg.convert, which mgg.explain may show; check=False goes on all "
                "the same"
            )
    return ""
