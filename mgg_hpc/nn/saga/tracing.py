"""ApplyEdge as a graph of operations (torch.fx), and the ends of an edge that each operation depends on."""

from __future__ import annotations

import gc
import math
import operator
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from logging import Logger
from types import ModuleType
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from ..graph.view import GraphView
from .operators import BY_COLUMN, BY_ROW, name_of

EDGES, MORE = 7, 11  # numbers of edges of the examples by which shapes are found

SRC, DST, DATA = "src", "dst", "data"
IN_PLACE = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)
CHANGES = {
    "setitem",
    "__setitem__",
    *(f"i{name}" for name in IN_PLACE),
    *(f"__i{name}__" for name in IN_PLACE),
}
DRAWS = {
    *(
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "bernoulli",
    ),
    *("multinomial", "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_"),
    *("geometric_", "log_normal_"),
}
ATOMS = {int, float, bool, str, bytes, type(None), Tensor, torch.nn.Parameter, ModuleType}
UNSEEN = {*vars(torch.nn.Module())} - {"_parameters", "_buffers", "_modules"} | {"_programs", "_kept", "rows"}
OUTSIDE = (Tensor, GraphView, Logger)  # what is not a layer's own
# Objects of a layer, elements of a container, and bytes of an array, whose changes can be undone.
MOST_HELD, MOST_BYTES = 10_000, 1 << 20
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
    depends on, "shape", the shape of its value for EDGES edges, or None if it is no tensor, and "rows", whether it has
    a row for each edge, for any number of edges; a tensor also has "label", its name in the layer.
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


class _RecordedData(Mapping[str, Tensor]):
    """Edge data by name, as the graph's names say, read from the argument ``edge``."""

    def __init__(self, data: Any, names: Sequence[str]) -> None:
        self._data, self._names = data, names

    def __getitem__(self, name: str) -> Any:
        return self._data[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401


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
        self.needs_values = False
        self.made: list[ref[Any]] = []  # all values of edges
        self.undo: list[Callable[[], Any]] = []  # what gives tensors their values from before the run
        self._open: set[int] = set()  # storages that change past the versions of their tensors
        self._copies: list[tuple[Tensor, Tensor]] = []

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
        return Edge(src, dst, _RecordedData(data, names), weight)  # type: ignore[arg-type]

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
            self._versions.append(_version(a))
            if self._open and _storage(a) in self._open:
                self._copies.append((a, a.detach().clone()))
        return self._places[id(a)]

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *given: Any, **named: Any) -> Any:
        if _modes() != self._modes:
            raise NotTraceableError("apply_edge changes the mode of autograd or autocast")
        made = self.add(kind, target, self.create_arg(args), self.create_arg(kwargs))
        return _Recorded(made, self)

    def check_unchanged(self) -> None:
        """Raise ValueError if a tensor was changed after an operation that reads it was recorded."""
        changed = any(now.shape != was.shape or not _equal(now, was) for now, was in self._copies)
        if changed or list(map(_version, self.tensors)) != self._versions:
            raise ValueError(
                "apply_edge changes a tensor in place after reading it; change it in apply_vertex, or "
                "assign a new tensor"
            )

    def called(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep what a function of torch is about to change."""
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            if getattr(function.__self__, "__name__", "") == "data":
                self._expose(args[0], sets=name == "__set__")
        elif name in ("numpy", "__array__", "untyped_storage", "__dlpack__", "data_ptr", "set_"):
            self._expose(args[0], sets=name == "set_")
        elif _is_in_place(name) or kwargs.get("out") is not None:
            for each in (*args[:1], kwargs.get("out")):
                for tensor in each if type(each) in (list, tuple) else [each]:
                    if issubclass(type(tensor), Tensor):
                        self._keep(tensor)

    def _keep(self, tensor: Tensor) -> None:
        copy = tensor.detach().clone()
        self.undo.append(lambda: tensor.data.copy_(copy))

    def _expose(self, tensor: Any, *, sets: bool) -> None:
        """Note that a tensor may change without a new version."""
        if not issubclass(type(tensor), Tensor):
            return
        was = tensor.data
        self._keep(tensor)
        if sets:
            self.undo.append(lambda: setattr(tensor, "data", was))
        self._open.add(_storage(tensor))
        self._copies += [
            (each, each.detach().clone()) for each in self.tensors if _storage(each) == _storage(tensor)
        ]


class _Run(fx.Interpreter):
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
    before, tracer = _State(layer), _Tracer()
    try:
        with without_draws(device, tracer):
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
        before.restore()
        for undo in reversed(tracer.undo):
            undo()
        if not isinstance(error, NotTraceableError):
            raise NotTraceableError(f"apply_edge cannot be traced ({_first_line(error)})") from error
        if str(error) == "apply_edge keeps values of edges" and _held(tracer):
            raise ValueError(f"{error} outside of the layer; keep them in the layer's attributes") from error
        raise
    before.check_draws()
    tracer.check_unchanged()
    return Traced(tracer.operations, tracer.tensors)


def _held(tracer: _Tracer) -> bool:
    """Return whether something still holds a value of edges."""
    if all(each() is None for each in tracer.made):
        return False
    gc.collect()  # of a function that calls itself, which holds what it reads
    return any(each() is not None for each in tracer.made)


def exemplify(
    found: Traced, layer: torch.nn.Module, x: Tensor, data: Callable[[int], Mapping[str, Tensor]]
) -> bool:
    """Store what `Traced` says of nodes, found with edges between rows such as x [n, F].

    data(n): an example of the graph's edge data by name, for n edges. Returns whether a message depends on other edges.
    Raises NotTraceableError if the operations fail, change values in place, or do not return one row per edge, and
    ValueError if they draw random numbers.
    """
    graph, result = found.graph, found.graph.output_node().args[0]
    if not isinstance(result, fx.Node):
        raise NotTraceableError("apply_edge does not return a tensor")
    changes = any(map(_changes, graph.nodes))
    for node in reversed(graph.nodes):
        if not changes and not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), without_draws(x.device):
        for edges, shapes in ((EDGES, "shape"), (MORE, "more")):
            src, dst = (example(edges, (x.shape[1],), x, shift) for shift in (1, 2))
            tensors = [
                each.detach() if each.requires_grad and not changes else each.detach().clone()
                for each in found.tensors
            ]
            before = list(map(_version, tensors))
            try:
                edge = Edge(src, dst, data(edges), x.new_ones(edges, 1))
                values.append(_Run(graph, tensors, shapes=shapes).run(edge))
            except Exception as error:
                raise NotTraceableError(f"apply_edge fails on an example ({_first_line(error)})") from error
    labels = {id(value): name for name, value in (*layer.named_parameters(), *layer.named_buffers())}
    for node in graph.nodes:
        shape, node.meta["ends"] = node.meta["shape"], _ends(node)
        node.meta["rows"] = bool(shape) and shape[0] == EDGES and node.meta["more"] == (MORE, *shape[1:])
        if node.op == "get_attr":
            number = int(str(node.target))
            node.meta["label"] = labels.get(id(found.tensors[number]), f"tensor_{number}")
    wrong = misfit(values[0], EDGES) or misfit(values[1], MORE)
    if not wrong and not _near(values[0], values[1].flip(0)[:EDGES]):
        return True  # as does a width that is the number of edges
    if changes:
        raise NotTraceableError("apply_edge changes values in place")
    if list(map(_version, tensors)) != before:
        raise NotTraceableError("apply_edge changes tensors in place")
    if wrong:
        raise NotTraceableError(wrong)
    return False


def example(edges: int, shape: Sequence[int], like: Tensor, shift: int = 0) -> Tensor:
    """Return values [edges, *shape]: zeros for integers, else numbers, with MORE edges with others before them.

    The EDGES rows are then the last, in reverse order.
    """
    if not like.is_floating_point():
        return like.new_zeros(edges, *shape)
    numbers = torch.arange(edges * math.prod(shape), dtype=torch.float64) + shift
    made = torch.sin(numbers * (shift + 1) + 0.3).reshape(edges, *shape).to(like)
    return made.flip(0) if edges == MORE else made


def misfit(value: Any, edges: int) -> str:
    """Return what is wrong with a value of `Layer.apply_edge`, or ""."""
    if isinstance(value, Tensor) and value.dim() == 2 and len(value) == edges:
        return ""
    what = "None" if value is None else f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        what = f"[{', '.join('E' if size == edges else str(size) for size in value.shape)}]"
    return f"apply_edge returns {what}; expected a row for each edge, [E, F]"


def reads_vertex(layer: torch.nn.Module) -> bool:
    """Return whether an ApplyVertex reads the rows of vertices, or cannot be traced."""
    before, tracer = _State(layer), _Tracer()
    vertex, accum = tracer.argument("vertex"), tracer.argument("accum")
    try:
        with torch.random.fork_rng(devices=[]):
            result = tracer.create_arg(layer.apply_vertex(vertex, accum))  # type: ignore[operator]
    except Exception:  # raised by the layer's own code, which gets proxies of tensors
        return True
    finally:
        before.restore()
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


class DependsError(ValueError):
    """A message that depends on other edges, on several ranks."""

    def __init__(self) -> None:
        super().__init__(
            "a message of apply_edge depends on other edges, of which each rank has its own alone (a mean or softmax "
            "over edges, or torch's BatchNorm); compute it for each vertex, with mgg.nn.BatchNorm for BatchNorm"
        )


@contextmanager
def without_draws(device: torch.device, tracer: _Tracer | None = None, ranks: int = 1) -> Iterator[None]:
    """Raise DrawsError in or after a block that draws from a generator of Python, NumPy or torch.

    tracer: learns of the functions of torch that are called. ranks: if several, raise DependsError for a BatchNorm.
    """
    before = _generators(device)
    with _Watch(tracer, ranks):
        yield
    if _generators(device) != before:
        raise DrawsError


class _Watch(TorchFunctionMode):
    """Refuses torch's random functions, whichever generator they draw from, and on several ranks its BatchNorm."""

    def __init__(self, tracer: _Tracer | None, ranks: int) -> None:
        super().__init__()
        self._tracer, self._ranks = tracer, ranks

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, name = (*args, *kwargs.values()), getattr(function, "__name__", "")
        if name in DRAWS or any(type(each) is torch.Generator for each in given):
            raise DrawsError
        if self._ranks > 1 and name == "batch_norm" and kwargs.get("training", args[5:6] == (True,)):
            raise DependsError
        if self._tracer is not None:
            self._tracer.called(function, args, kwargs)
        return function(*args, **kwargs)


def _generators(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators that draws without a generator of their own use."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    held: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    values = *held.pop("state").values(), *held.values()
    numbers = [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]
    return random.getstate(), numbers, *(each.numpy().tobytes() for each in states)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | a.isnan() & b.isnan()).all())


def _near(a: Tensor, b: Tensor) -> bool:
    """Return whether values [E, ...] are equal but for rounding, which is a share of the largest value of a column."""
    if a.shape != b.shape:
        return False
    share = 0.02 if a.is_floating_point() and a.dtype.itemsize == 2 else 1e-3
    a, b = a.double(), b.double()
    size = a.nan_to_num(0, 0, 0).abs().amax(0) if a.numel() else a
    alike = (a == b) | ((a - b).abs() <= share * size) | (a.isnan() & b.isnan())
    return bool(alike.all())


class _State:
    """What a layer holds, in attributes, containers and objects, but tensors' values."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self._held: list[tuple[Any, Any]] = []
        self._drawn: list[tuple[Any, Any]] = []
        todo, seen = list[Any]([layer]), set[int]()
        while todo and len(seen) < MOST_HELD:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, (np.random.Generator, np.random.RandomState, random.Random)):
                self._drawn.append((each, _drawn(each)))
            elif isinstance(each, np.ndarray):
                if each.nbytes <= MOST_BYTES:
                    self._held.append((each, each.copy()))
            elif isinstance(each, (dict, list, set, deque, tuple)):
                if len(each) > MOST_HELD:  # too much to keep
                    continue
                todo += [
                    v for v in (each.values() if isinstance(each, dict) else each) if type(v) not in ATOMS
                ]
                if not isinstance(each, tuple):
                    self._held.append((each, copy(each)))
            elif isinstance(each, torch.nn.Module):
                self._held.append((vars(each), vars(each).copy()))
                todo += [v for k, v in vars(each).items() if type(v) not in ATOMS and k not in UNSEEN]
            elif hasattr(each, "__dict__") and not (isinstance(each, OUTSIDE) or callable(each)):
                todo.append(vars(each))

    def restore(self) -> None:
        """Undo changes."""
        for held, before in self._held:
            if isinstance(held, np.ndarray):
                held[...] = before
            elif isinstance(held, (dict, set)):
                held.clear()
                held.update(before)
            else:
                held.clear()
                held.extend(before)

    def check_draws(self) -> None:
        """Raise DrawsError if a generator that the layer holds was drawn from."""
        if any(_drawn(each) != before for each, before in self._drawn):
            raise DrawsError


def _drawn(generator: Any) -> Any:
    """Return the state of a generator of Python or NumPy."""
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    return pickle.dumps(generator)


def _is_in_place(name: str) -> bool:
    """Return whether a function or method of this name changes its first argument."""
    return name in CHANGES or (name.endswith("_") and not name.endswith("__"))


def _changes(node: fx.Node) -> bool:
    """Return whether an operation changes a value in place that something else may read."""
    if node.kwargs.get("out") is not None or _is_in_place(name_of(node)):
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
