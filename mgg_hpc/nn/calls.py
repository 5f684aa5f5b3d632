"""How modules are called: which of torch's can be taken apart, and layers under torch's compile and autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch._C import _len_torch_function_stack as _mode_count
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack as _modes
from torch.utils._device import DeviceContext

from ..runtime.watchdog import calling
from .graph.view import GraphView
from .inputs.host import HostFeatures
from .inputs.sparse import SparseFeatures

_Module = TypeVar("_Module", bound=torch.nn.Module)


def _original(function: Any) -> Any:
    """Return a function of torch or of this package; None for one that was put in the place of such a function."""
    package = getattr(function, "__globals__", {"__name__": "torch"})["__name__"].partition(".")[0]
    return function if package in ("torch", "mgg_hpc") else None


_linear, _relu, _batch_norm = (_original(each) for each in (F.linear, F.relu, F.batch_norm))
_calls: dict[type, tuple[Any, Any]] = {}  # by class: its own forward and __call__
_TENSORS = {torch.nn.Parameter, torch.Tensor, type(None)}  # others may compute in their own way


def is_plain(module: object, kind: type[_Module]) -> TypeGuard[_Module]:
    """Return whether a module's call computes what its class says, so that a fused kernel may take its place.

    It is exactly of the class ``kind``, whose functions are torch's, without hooks, a forward of its own, or parameters
    of subclasses of Tensor; and no mode of torch sees its calls.
    """
    if type(module) is not kind:
        return False
    hooks = module._forward_hooks or module._forward_pre_hooks
    hooks = hooks or module._backward_hooks or module._backward_pre_hooks
    own = module.__dict__
    if hooks or "forward" in own or "weight" in own or "bias" in own or _has_any_global_hook():
        return False
    if _mode_count() and any(not isinstance(mode, DeviceContext) for mode in _modes()):
        return False
    try:
        forward, call = _calls[kind]
    except KeyError:
        forward, call = _calls[kind] = _original(kind.forward), _original(kind.__call__)
    plain = kind.forward is forward and kind.__call__ is call
    plain = plain and F.linear is _linear and F.relu is _relu and F.batch_norm is _batch_norm
    return plain and _TENSORS.issuperset(map(type, own["_parameters"].values()))


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
    if not rows and not isinstance(x, (Tensor, SparseFeatures, HostFeatures)):
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
