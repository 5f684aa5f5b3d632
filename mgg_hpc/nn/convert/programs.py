"""Messages of PyG's layers as programs on edges, which run in one pass without a row for each edge, where they fuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode_temporarily as without_functions
from torch.utils._python_dispatch import _pop_mode_temporarily as without_dispatch
from torch.utils._pytree import tree_leaves

from ...errors import InputError
from ..saga.layer import Layer
from ..saga.tracing import NotTraceableError
from .layouts import PLAIN, Divided, Layout, data_of, dims, layout, put
from .running import Run

# What messages read of all edges of a node together.
_OF_NODES = {"index", "ptr", "size", "size_i", "size_j", "dim_size"}
_OF_NODES |= {"edge_index", "edge_index_i", "edge_index_j"}
_REDUCES = {"SumAggregation": "sum", "MeanAggregation": "mean", "MaxAggregation": "max"}


class _Alone(TorchFunctionMode):
    """Refuses that a traced message reads rows beside its arguments, of which each rank has only some."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        if any(issubclass(type(each), Tensor) and layout(each) is not PLAIN for each in leaves):
            raise NotTraceableError(OTHERS)
        return func(*args, **(kwargs or {}))


OTHERS = "its messages read rows of nodes or edges that are not their arguments"


class Program(Layer):
    """The messages of a layer of PyG.

    constants, read: numbers and tensors of the last call's operations, which must be the same on all ranks.
    parts: the value of each argument of the message, by name: a constant, the name of edge data, or (end, first
    column, last column) of rows of nodes.
    """

    def __init__(self, message: Callable[..., Tensor], accumulator: str) -> None:
        super().__init__()
        self.message, self.accumulator, self.parts = message, accumulator, dict[str, Any]()
        self.refused = dict[str, str]()
        self.constants, self.read = "", list[Tensor]()

    def apply_edge(self, edge: Any) -> Tensor:
        given = {}
        for name, part in self.parts.items():
            if isinstance(part, tuple):
                end, low, high = part
                given[name] = getattr(edge, end)[:, low:high]
            else:
                given[name] = edge.data[part] if isinstance(part, str) else part
        with _Alone():
            return self.message(**given)

    def _program(self, x: Any, graph: Any) -> Any:
        program, found = super()._program(x, graph)
        self.constants = "" if found is None else str([each[1:] for each in found.signature])
        self.read = [] if found is None else found.tensors
        return program, found

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


def messages(conv: Any) -> str:
    """Return why the messages of a layer of PyG cannot be a program, or ""."""
    from torch_geometric.nn import MessagePassing

    kind = type(conv)
    if not isinstance(conv, MessagePassing):
        return "it is no MessagePassing"
    if kind.aggregate is not MessagePassing.aggregate or kind.update is not MessagePassing.update:
        return "it aggregates in its own way"
    if type(conv.aggr_module).__name__ not in _REDUCES or conv.node_dim not in (-2, 0):
        return "it aggregates in another way than sum, mean or max"
    if _OF_NODES & inspect.signature(conv.message).parameters.keys():
        return "its messages depend on other edges of a node"
    return ""


def propagated(run: Run, conv: Any, index: Any, given: dict[str, Any]) -> Tensor | str:
    """Return the reduced messages of a PyG layer, computed by a program, or the reason why that is impossible.

    conv: the layer. index: its edges. given: arguments of its ``propagate`` by name. Collective if a program
    runs.
    """
    lists, nodes = run.lists, Divided(run.lists.nodes)
    if layout(index).numbers != layout(lists.index).numbers or dims(index) != dims(lists.index):
        return "its edges are not the graph's as they are"
    rows, parts = list[Tensor](), dict[str, Any]()
    for name in inspect.signature(conv.message).parameters:
        end = {"_j": 0, "_i": 1}.get(name[-2:])
        value = given.get(name if end is None else name[:-2])
        if end is not None and isinstance(value, tuple):
            value = value[end]
        if not isinstance(value, Tensor):
            parts[name] = value
        elif end is not None and dims(value) == (nodes, None) and value.dtype == run.graph.dtype:
            place = next((i for i, each in enumerate(rows) if each is value), len(rows))
            if place == len(rows):
                rows.append(value)
            low = sum(each.shape[1] for each in rows[:place])
            parts[name] = "src" if end == 0 else "dst", low, low + value.shape[1]
        elif data_of(value) and not value.requires_grad and end is None:
            parts[name] = data_of(value)
        else:
            return f"{name} is neither rows of the nodes nor data of the graph's edges"
    if not rows:
        return "its messages have no rows of the nodes"
    program = run.programs.setdefault(conv, None) or Program(
        conv.message, _REDUCES[type(conv.aggr_module).__name__]
    )
    run.programs[conv], program.parts = program, parts
    with run.local():
        x = torch.cat(rows, 1) if len(rows) > 1 else rows[0]
    return _run(run, program, x, str(parts))


def _run(run: Run, program: Program, x: Tensor, form: str) -> Tensor | str:
    """Return a program's result for rows of nodes, or why it does not fuse. Collective if it does.

    form: describes what the program reads; a form that has not fused once is not tried again.
    """
    if form not in program.refused:
        with without_functions(), without_dispatch():
            try:
                why = program._program(x, run.graph)[0].reason
            except (ValueError, InputError, TypeError) as error:
                why = str(error)
        program.refused |= {form: why} if why else {}
    if form in program.refused:
        return program.refused[form]
    if any(layout(each) is not PLAIN for each in program.read):
        return OTHERS
    run.again()
    for each in program.read:
        run.met(each)
    run.note(f"a program of {run.place()}, {list(x.shape[1:])}")
    run.sync()
    run.exchanges.append((run.place(), "rows", x.shape[1]))
    with without_functions(), without_dispatch():
        out: Tensor = program(x, run.graph)
    run.note(f"messages with {program.constants}")
    return put(out, Layout((Divided(run.lists.nodes), None)))
