"""Record ApplyEdge as a graph of operations (torch.fx) while it runs."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx

from .effects import IN_PLACE, DrawsError, Effects, without_draws

SRC, DST, DATA = "src", "dst", "data"


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


class EdgeData(Mapping[str, Tensor]):
    """Edge data by name, which are read as they are needed. names: of the graph's edge data. read: returns them."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Any]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Any:
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401


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
    depends on, "shape", the shape of its value for an example, or None if it is no tensor, and "rows", whether
    it has a row for each edge, for any number of edges; a tensor also has "label", its name in the layer.
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
        found: Tensor = Run(self.graph, self.tensors).run(edge)
        return found


class _Recorded(fx.Proxy):
    """A value of edges."""

    def __init__(self, node: Any, tracer: Any) -> None:
        super().__init__(node, tracer)
        tracer.made.append(ref(self))

    def __getattr__(self, name: str) -> fx.proxy.Attribute:
        if not hasattr(Tensor, name):
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        return _Attribute(self, name)

    def refuse(self, *args: Any) -> Any:
        # The program may catch this, and still needs tensors.
        self.tracer.needs_values = True  # type: ignore[attr-defined]
        raise NotTraceableError(
            "apply_edge reads values of edges, or their type, or has hooks or autograd functions"
        )

    # What asks for the class: isinstance, and torch's own hooks and autograd functions.
    __class__ = property(refuse)
    __bool__ = __float__ = __int__ = __index__ = __complex__ = __len__ = __iter__ = __contains__ = refuse
    __array__ = __setitem__ = refuse

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


def _in_place(name: str) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", getattr(operator, f"i{name}"), (self, other), {})

    return apply


for _name in IN_PLACE:
    setattr(_Recorded, f"__i{_name}__", _in_place(_name))


class _Attribute(_Recorded, fx.proxy.Attribute):
    def __init__(self, root: fx.Proxy, attr: str) -> None:
        fx.proxy.Attribute.__init__(self, root, attr)
        tracer: Any = root.tracer
        tracer.made.append(ref(self))


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

    def __init__(self, layer: torch.nn.Module) -> None:
        self.effects = Effects(layer)
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self._places: dict[int, Operation] = {}  # by id
        self._modes = _modes()
        self.needs_values = False
        self.made: list[ref[Any]] = []  # all values of edges

    def add(self, op: str, target: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Operation:
        """Record an operation."""
        self.operations.append(Operation(len(self.operations), op, target, args, kwargs or {}))
        return self.operations[-1]

    def argument(self, name: str) -> fx.Proxy:
        """Return an argument of the stage."""
        return _Recorded(self.add("placeholder", name), self)

    def edge(self, names: Sequence[str]) -> Any:
        """Return the argument of ApplyEdge. names: of the graph's edge data."""
        root = self.argument("edge")
        src, dst, data, weight = (_Attribute(root, name) for name in (SRC, DST, DATA, "weight"))
        return Edge(src, dst, EdgeData(names, lambda name: data[name]), weight)  # type: ignore[arg-type,index]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            if a.tracer is not self:
                raise NotTraceableError("apply_edge reads values of edges of another call")
            return a.node
        if isinstance(a, torch.Generator):
            raise DrawsError
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if id(a) not in self._places:
            self._places[id(a)] = self.add("get_attr", str(len(self.tensors)))
            self.tensors.append(a)
            self.effects.read(a)
        return self._places[id(a)]

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *given: Any, **named: Any) -> Any:
        if _modes() != self._modes:
            raise NotTraceableError("apply_edge changes the mode of autograd or autocast")
        made = self.add(kind, target, self.create_arg(args), self.create_arg(kwargs))
        return _Recorded(made, self)


class Run(fx.Interpreter):
    """Runs operations. shapes: the key of ``meta`` that gets the shapes of their values, or ""."""

    def __init__(self, graph: fx.Graph, tensors: Sequence[Tensor], *, shapes: str = "") -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self.extra_traceback = False
        self._tensors, self._shapes = tensors, shapes

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Tensor:
        return self._tensors[int(target)]

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self._shapes:
            n.meta[self._shapes] = tuple(value.shape) if isinstance(value, Tensor) else None
        return value


def traced(layer: torch.nn.Module, device: torch.device, names: Sequence[str]) -> Traced:
    """Return the operations of ``layer.apply_edge``, which runs once. names: of the graph's edge data.

    Raises NotTraceableError if they depend on values of edges; then what the layer holds is as before. Raises
    ValueError if random numbers are drawn, a tensor is changed after it was read, or values of edges are kept outside
    of the layer.
    """
    tracer = _Tracer(layer)
    try:
        with without_draws(device, tracer.effects):
            result: Any = layer.apply_edge(tracer.edge(names))  # type: ignore[operator]
        tracer.add("output", "output", (tracer.create_arg(result),))
        del result
        if tracer.needs_values:
            raise NotTraceableError("apply_edge reads values of edges")
        if _held(tracer):
            raise NotTraceableError("apply_edge keeps values of edges")
    except DrawsError:
        raise
    except Exception as error:  # raised by the layer's own code, which gets proxies of tensors
        tracer.effects.restore()
        if not isinstance(error, NotTraceableError):
            raise NotTraceableError(f"apply_edge cannot be traced ({first_line(error)})") from error
        if str(error) == "apply_edge keeps values of edges" and _held(tracer):
            raise ValueError(f"{error} outside of the layer; keep them in the layer's attributes") from error
        raise
    tracer.effects.check()
    return Traced(tracer.operations, tracer.tensors)


def _held(tracer: _Tracer) -> bool:
    """Return whether something still holds a value of edges."""
    if all(each() is None for each in tracer.made):
        return False
    gc.collect()  # of a function that calls itself, which holds what it reads
    return any(each() is not None for each in tracer.made)


def reads_vertex(layer: torch.nn.Module) -> bool:
    """Return whether an ApplyVertex reads the rows of vertices, or cannot be traced."""
    tracer = _Tracer(layer)
    vertex, accum = tracer.argument("vertex"), tracer.argument("accum")
    try:
        with torch.random.fork_rng(devices=[]):
            result = tracer.create_arg(layer.apply_vertex(vertex, accum))  # type: ignore[operator]
    except Exception:  # raised by the layer's own code, which gets proxies of tensors
        return True
    finally:
        tracer.effects.restore()
    tracer.add("output", "output", (result,))
    found = Traced(tracer.operations, tracer.tensors)
    return bool(next(node for node in found.graph.nodes if node.target == "vertex").users)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def attribute(node: Any, name: str) -> bool:
    """Return whether a node is the attribute of this name of the edge."""
    return (
        isinstance(node, (fx.Node, Operation))
        and node.target is getattr
        and node.args[0].op == "placeholder"  # type: ignore[union-attr]
        and node.args[1] == name
    )


def is_data(node: Any) -> bool:
    """Return whether a node is edge data of some name."""
    return (
        isinstance(node, (fx.Node, Operation))
        and getattr(node.target, "__name__", "") == "getitem"
        and attribute(node.args[0], "data")
        and isinstance(node.args[1], str)
    )


def width_of(node: fx.Node) -> int:
    """Return the number of columns of a node's value."""
    shape = node.meta["shape"]
    return int(shape[1]) if len(shape) == 2 else 1


def first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
