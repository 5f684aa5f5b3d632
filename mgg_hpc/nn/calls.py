"""How modules are called: which of torch's can be taken apart, and layers under torch's compile and autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

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
            )
        if graph.streams or not isinstance(x, Tensor):
            _check_streams(self, x, graph)
        if torch.is_autocast_enabled(graph.device):
            cast = isinstance(x, Tensor) and x.is_floating_point()
            with torch.autocast(graph.device, enabled=False):
                return call(self, x.to(graph.dtype) if cast else x, graph, *args, **options)
        return forward(self, x, graph, *args, **options)

    return call


def _check_streams(layer: torch.nn.Module, x: object, graph: GraphView) -> None:
    rows = getattr(type(x), "streams", False)
    if rows and not graph.streams:
        raise TypeError(f"{_name(layer)}: x has rows of a streamed graph, and the graph is not streamed")
    if graph.streams and not getattr(layer, "streams", False):
        raise TypeError(
            f"{_name(layer)} does not run on a streamed graph; write it as an mgg.nn.saga.Layer, or open the graph "
            "without streaming="
        )
    if graph.streams and not rows:
        raise TypeError(f"{_name(layer)}: a streamed graph takes streamed rows, as graph.x, and x is {_a(x)}")


def _name(layer: object) -> str:
    return type(layer).__name__


def _a(value: object) -> str:
    return f"a {type(value).__name__}"
