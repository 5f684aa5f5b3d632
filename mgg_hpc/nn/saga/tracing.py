"""ApplyEdge as a graph of operations (torch.fx), and the ends of an edge that each operation depends on."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from .operators import BY_COLUMN, BY_ROW, name_of

EDGES = 7  # number of edges of the example by which shapes are found

SRC, DST, DATA = "src", "dst", "data"
NEW = (BY_COLUMN.keys() | BY_ROW) - {"identity", "contiguous"}  # operators whose results share no memory


@dataclass(frozen=True)
class Edge:
    """Argument of `Layer.apply_edge`: values of edges, one row per edge.

    src, dst: rows of x at the sources and destinations of the edges, [E, F]. data: edge data by name, as in the graph
    file: [E] or [E, D]. weight: [E, 1], the weights of the layer's adjacency: with kind "gcn" of the normalised
    matrix, with "edges" the graph's own, or ones.
    """

    src: Tensor
    dst: Tensor
    data: Mapping[str, Tensor]
    weight: Tensor


class NotTraceableError(Exception):
    """An ApplyEdge that is no graph of operations; its text is the reason."""


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation as it was recorded: as much of `fx.Node` as every call needs, at a fraction of its cost."""

    number: int
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class Traced:
    """The operations of one run of ApplyEdge, with the tensors that they read beside values of edges.

    tensors: values of the nodes "get_attr", whose targets are their numbers: parameters, and what Python has computed.
    After `exemplify`, each node of ``graph`` has in ``meta``: "ends", the frozenset of SRC, DST and DATA that it
    depends on, and "shape", the shape of its value for EDGES edges, or None if it is no tensor; a tensor also has
    "label", its name in the layer.
    """

    operations: list[Operation]
    tensors: list[Tensor]

    @property
    def names(self) -> list[str]:
        """Names of the edge data that are read."""
        return list(dict.fromkeys(str(each.args[1]) for each in self.operations if is_data(each)))

    @property
    def signature(self) -> tuple[Any, ...]:
        """The operations with their constants, and the form of each tensor, which determine the plan."""
        made = [(each.target, repr(each.args), repr(each.kwargs)) for each in self.operations]
        return *made, *((each.shape, each.dtype) for each in self.tensors)

    @cached_property
    def graph(self) -> fx.Graph:
        """The operations as a graph."""
        graph, nodes = fx.Graph(), list[fx.Node]()

        def node(arg: Any) -> Any:
            return nodes[arg.number] if isinstance(arg, Operation) else arg

        for each in self.operations:
            args, kwargs = (fx.node.map_aggregate(given, node) for given in (each.args, each.kwargs))
            nodes.append(graph.create_node(each.op, each.target, args, kwargs))  # type: ignore[arg-type]
        return graph

    @property
    def result(self) -> fx.Node:
        """The message of an edge."""
        (value,) = self.graph.output_node().args
        assert isinstance(value, fx.Node)
        return value

    def messages(self, edge: Any) -> Tensor:
        """Return the messages of edges."""
        found: Tensor = _Run(self.graph, self.tensors).run(edge)
        return found


class _Recorded(fx.Proxy):
    """A value of edges."""

    def __getattr__(self, name: str) -> fx.proxy.Attribute:
        return _Attribute(self, name)

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Proxy:
        args, kwargs = args or (), kwargs or {}
        tracer = _tracer_of((*args, *kwargs.values()))
        if torch.overrides.is_tensor_method_or_property(function):
            return tracer.create_proxy("call_method", function.__name__, args, kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)


class _Attribute(_Recorded, fx.proxy.Attribute):
    pass


def _tracer_of(args: Iterable[Any]) -> Any:
    """Return the tracer of the first value of edges among arguments; None without one."""
    found = (
        arg.tracer if isinstance(arg, fx.Proxy) else _tracer_of(arg)
        for arg in args
        if isinstance(arg, (fx.Proxy, list, tuple))
    )
    return next((tracer for tracer in found if tracer is not None), None)


class _Tracer(fx.proxy.TracerBase):
    """Records operations on values of edges. All else that a stage computes is computed as it runs."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._places: dict[int, Operation] = {}  # by id
        self._modes = _modes()

    def add(self, op: str, target: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Operation:
        """Record an operation."""
        self.operations.append(Operation(len(self.operations), op, target, args, kwargs or {}))
        return self.operations[-1]

    def argument(self, name: str) -> fx.Proxy:
        """Return an argument of the stage."""
        return _Recorded(self.add("placeholder", name), self)  # type: ignore[arg-type]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Generator):
            raise DrawsError
        if isinstance(a, fx.Proxy) and a.tracer is not self:
            raise NotTraceableError("apply_edge reads values of edges of another call")
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if id(a) not in self._places:
            self._places[id(a)] = self.add("get_attr", str(len(self.tensors)))
            self.tensors.append(a)
            self._versions.append(_version(a))
        return self._places[id(a)]

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *given: Any, **named: Any) -> Any:
        if _modes() != self._modes:
            raise NotTraceableError("apply_edge changes the mode of autograd or autocast")
        made = self.add(kind, target, self.create_arg(args), self.create_arg(kwargs))
        return _Recorded(made, self)  # type: ignore[arg-type]

    def check_unchanged(self) -> None:
        """Raise ValueError if a tensor was changed after an operation that reads it was recorded."""
        if list(map(_version, self.tensors)) != self._versions:
            raise ValueError(
                "apply_edge changes a tensor in place after reading it; change it in apply_vertex, or "
                "assign a new tensor"
            )


class _Run(fx.Interpreter):
    """Runs operations. With shapes, it stores those of their values."""

    def __init__(self, graph: fx.Graph, tensors: Sequence[Tensor], *, shapes: bool = False) -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self.extra_traceback = False
        self._tensors, self._shapes = tensors, shapes

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Tensor:
        return self._tensors[int(target)]

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self._shapes:
            n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def traced(layer: torch.nn.Module, device: torch.device) -> Traced:
    """Return the operations of ``layer.apply_edge``, which runs once.

    Raises NotTraceableError if they depend on values of edges; then the layer's attributes are as before. Raises
    ValueError if random numbers are drawn, or a tensor is changed after it was read.
    """
    before, tracer = _attributes(layer), _Tracer()
    try:
        with without_draws(device):
            result: Any = layer.apply_edge(tracer.argument("edge"))  # type: ignore[operator]
        tracer.add("output", "output", (tracer.create_arg(result),))
        if any(isinstance(value, fx.Proxy) for held, _ in before for value in held.values()):
            raise NotTraceableError("apply_edge keeps values of edges")
    except DrawsError:
        raise
    except Exception as error:  # raised by the layer's own code, which gets proxies of tensors
        _restore(before)
        if isinstance(error, NotTraceableError):
            raise
        raise NotTraceableError(f"apply_edge cannot be traced ({_first_line(error)})") from error
    tracer.check_unchanged()
    return Traced(tracer.operations, tracer.tensors)


def exemplify(found: Traced, layer: torch.nn.Module, x: Tensor, data: Mapping[str, Tensor]) -> None:
    """Store what `Traced` says of nodes, found with edges between rows such as x [n, F].

    data: an example of the graph's edge data by name. Raises NotTraceableError if the operations fail, change values in
    place, or do not return one row per edge, and ValueError if they draw random numbers.
    """
    graph, result = found.graph, found.graph.output_node().args[0]
    if not isinstance(result, fx.Node):
        raise NotTraceableError("apply_edge does not return a tensor")
    if any(map(_changes, graph.nodes)):
        raise NotTraceableError("apply_edge changes values in place")
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    rows = x.new_zeros(EDGES, x.shape[1])
    edge = SimpleNamespace(src=rows, dst=rows.clone(), data=data, weight=x.new_ones(EDGES, 1))
    tensors = [each.detach() if each.requires_grad else each.clone() for each in found.tensors]
    before = list(map(_version, tensors))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), without_draws(x.device):
        try:
            _Run(graph, tensors, shapes=True).run(edge)
        except Exception as error:
            raise NotTraceableError(f"apply_edge fails on an example ({_first_line(error)})") from error
    if list(map(_version, tensors)) != before:
        raise NotTraceableError("apply_edge changes tensors in place")
    labels = {id(value): name for name, value in (*layer.named_parameters(), *layer.named_buffers())}
    for node in graph.nodes:
        node.meta["ends"] = _ends(node)
        if node.op == "get_attr":
            number = int(str(node.target))
            node.meta["label"] = labels.get(id(found.tensors[number]), f"tensor_{number}")
    shape = result.meta["shape"]
    if shape is None or len(shape) != 2 or shape[0] != EDGES:
        sizes = ["E" if not i and size == EDGES else str(size) for i, size in enumerate(shape or ())]
        what = "no tensor" if shape is None else f"[{', '.join(sizes)}]"
        raise NotTraceableError(f"apply_edge returns {what}; expected a row for each edge, [E, F]")


def reads_vertex(layer: torch.nn.Module) -> bool:
    """Return whether an ApplyVertex reads the rows of vertices, or cannot be traced."""
    before, tracer = _attributes(layer), _Tracer()
    vertex, accum = tracer.argument("vertex"), tracer.argument("accum")
    try:
        with torch.random.fork_rng(devices=[]):
            result = tracer.create_arg(layer.apply_vertex(vertex, accum))  # type: ignore[operator]
    except Exception:  # raised by the layer's own code, which gets proxies of tensors
        return True
    finally:
        _restore(before)
    tracer.add("output", "output", (result,))
    found = Traced(tracer.operations, tracer.tensors)
    return bool(next(node for node in found.graph.nodes if node.target == "vertex").users)


class DrawsError(ValueError):
    """Random numbers in ApplyEdge."""

    def __init__(self) -> None:
        super().__init__(
            "apply_edge draws random numbers, which would differ between ranks and passes; draw them for each vertex "
            "before the layer, or in apply_vertex, with mgg.nn.Dropout for dropout"
        )


@contextmanager
def without_draws(device: torch.device) -> Iterator[None]:
    """Raise DrawsError after a block that has drawn from a generator of Python, NumPy or torch."""
    before = _generators(device)
    yield
    if _generators(device) != before:
        raise DrawsError


def _generators(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators that draws without a generator of their own use."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    numbers = pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002
    return random.getstate(), numbers, *(each.numpy().tobytes() for each in states)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _attributes(layer: torch.nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the dicts of a layer's attributes and buffers, each with a copy."""
    dicts = (held for module in layer.modules() for held in (vars(module), module._buffers))
    return [(held, held.copy()) for held in dicts]


def _restore(attributes: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for held, before in attributes:
        held.clear()
        held.update(before)


def _changes(node: fx.Node) -> bool:
    """Return whether an operation changes a value in place that something else may read."""
    if node.kwargs.get("out") is not None or name_of(node).endswith("_"):
        return node.op in ("call_function", "call_method")
    value = node.args[0] if node.args else None
    alone = isinstance(value, fx.Node) and len(value.users) == 1 and name_of(value) in NEW
    return bool(node.kwargs.get("inplace")) and not alone


def attribute(node: Any, name: str) -> bool:
    """Return whether a node is the attribute of this name of the edge."""
    return (
        isinstance(node, (fx.Node, Operation))
        and node.op == "call_function"
        and node.target is getattr
        and isinstance(node.args[0], (fx.Node, Operation))
        and node.args[0].op == "placeholder"
        and node.args[1] == name
    )


def is_data(node: Any) -> bool:
    """Return whether a node is edge data of some name."""
    return (
        isinstance(node, (fx.Node, Operation))
        and node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
        and attribute(node.args[0], "data")
        and isinstance(node.args[1], str)
    )


def width_of(node: fx.Node) -> int:
    """Return the number of columns of a node's value."""
    shape = node.meta["shape"]
    return int(shape[1]) if len(shape) == 2 else 1


def _ends(node: fx.Node) -> frozenset[str]:
    for name in (SRC, DST):
        if attribute(node, name):
            return frozenset([name])
    if is_data(node) or attribute(node, "weight"):
        return frozenset([DATA])
    return frozenset().union(*(arg.meta["ends"] for arg in node.all_input_nodes))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
