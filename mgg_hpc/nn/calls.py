"""How modules are called: which of torch's can be taken apart, and layers under torch's compile and autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from ..runtime.watchdog import calling
from .graph.view import GraphView

_Module = TypeVar("_Module", bound=torch.nn.Module)


def is_plain(module: object, kind: type[_Module]) -> TypeGuard[_Module]:
    """Return whether a module's call computes what its class says, so that a fused kernel may take its place.

    It is exactly of the class ``kind``, without hooks and without a forward of its own.
    """
    if type(module) is not kind:
        return False
    hooks = module._forward_hooks or module._forward_pre_hooks
    hooks = hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and "forward" not in module.__dict__ and not _has_any_global_hook()


_graph: ContextVar[GraphView | None] = ContextVar("graph", default=None)


@contextmanager
def on_graph(graph: GraphView) -> Iterator[None]:
    """Let torch's containers call layers, for example a BatchNorm in a subclass of Sequential, with rows alone."""
    token = _graph.set(graph)
    try:
        yield
    finally:
        _graph.reset(token)


def layer_call(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a layer's forward, which takes itself, rows x and a graph, then anything else.

    torch.compile breaks its graph here. Under autocast the layer computes in the graph's dtype, to which rows of other
    floating-point types are cast, and returns it. Raises TypeError for anything but a graph, and for rows of a streamed
    graph with a graph in memory, or the other way round. Within `on_graph` the graph may be left out.
    """

    @functools.wraps(forward)
    def call(self: Any, x: Any, graph: Any = None, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            from torch._dynamo import disable  # takes seconds to import

            return disable(call)(self, x, graph, *args, **options)
        graph = _graph.get() if graph is None else graph
        if not isinstance(graph, GraphView):
            raise TypeError(
                f"{_name(self)}(x, graph) takes a graph, as mgg.open returns, and this is {_a(graph)}"
                + ("; mgg.from_pyg makes one of an edge_index" if isinstance(graph, Tensor) else "")
            )
        if graph.streams or not isinstance(x, Tensor):
            _check_rows(self, x, graph)
        if torch.is_autocast_enabled(graph.device):
            cast = isinstance(x, Tensor) and x.is_floating_point()
            with torch.autocast(graph.device, enabled=False):
                return call(self, x.to(graph.dtype) if cast else x, graph, *args, **options)
        with calling(_name(self)):
            return forward(self, x, graph, *args, **options)

    return call


def _check_rows(layer: torch.nn.Module, x: object, graph: GraphView) -> None:
    """Raise TypeError unless a layer takes such rows, or features, with such a graph.

    Its attribute ``streams``: True, it takes streamed rows on a streamed graph; False, it does not run on one; absent,
    it takes rows in memory, whatever the graph.
    """
    name, rows, takes = _name(layer), getattr(type(x), "streams", False), getattr(layer, "streams", None)
    if x is None or isinstance(x, np.ndarray):
        raise TypeError(f"{name}(x, graph) takes rows as a tensor, and x is {_a(x)}")
    if graph.streams and takes is False:
        raise TypeError(
            f"{name} does not run on a streamed graph: write it as an mgg.nn.saga.Layer, or open the graph without "
            "streaming="
        )
    if graph.streams and takes and not rows:
        raise TypeError(f"{name} takes streamed rows on a streamed graph, as graph.x, and x is {_a(x)}")
    if rows and not (graph.streams and takes):
        raise TypeError(f"{name} takes rows in memory here, and x is StreamedRows: x.tensor() reads them")


def _name(layer: object) -> str:
    return type(layer).__name__


def _a(value: object) -> str:
    return f"a {type(value).__name__}"
