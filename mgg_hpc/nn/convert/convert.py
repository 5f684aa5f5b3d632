"""`mgg.convert`: a model of another library that runs over a distributed graph, exactly."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from ...errors import InputError
from ...runtime import mpi
from ...runtime.watchdog import calling, collective
from ..gradients import check_alike, digest
from ..graph.dist_graph import DistGraph
from ..layers.random import DRAWS, Dropout
from .batches import BatchRun, blocks_of
from .compare import evaluating, some_rows
from .functions import Above
from .fused import fused, signature
from .layouts import PLAIN, dims, divided, layout, over, put, unchanged
from .running import Below, Run, lists_of

# What a tensor fits; TYPED: the type that is its key; DATA times 2^i for the i-th data of edges.
NODES, EDGES, INDEX, KEPT, TYPED, DATA = (1, 2, 4, 8, 16, 32)
OF_EDGES = ("edge", "weight", "attr", "type", "rel")  # in names of arguments, where sizes do not tell


class Conversion:
    """The graph that a converted model runs over, and what is kept between its calls.

    lists: the graph's nodes and edges as `Domain` objects. unchecked: whether the next call compares rows. unsaid:
    whether a batch is to be warned of. drops: whether dropout drops. last: the `Run` of the last call, or None.
    """

    def __init__(self, graph: DistGraph, check: bool) -> None:
        self.graph, self.lists = graph, lists_of(graph)
        self.unchecked, self.unsaid, self.drops = check, check, True
        self.last: Run | None = None
        self._caches: WeakKeyDictionary[Module, dict[str, Any]] = WeakKeyDictionary()
        self._programs: WeakKeyDictionary[Module, Any] = WeakKeyDictionary()

    def call(self, model: Module, call: Any, args: Any, kwargs: Any) -> Any:
        """Return what a call of a model returns, for this rank's rows. Collective."""
        self.graph.check_open()
        draws = model.__dict__[DRAWS]
        draws.training = True
        if blocks := blocks_of(args, kwargs):
            if self.unsaid and self.graph.rank == 0:
                warnings.warn(
                    "mgg.convert: outputs on batches are not compared with the model's own (check=False: no warning)",
                    stacklevel=3,
                )
            self.unsaid = False
            with mpi.agree(blocks[0].comm):
                return self._on_batch(BatchRun(blocks, model, draws, self.graph), call, args, kwargs)
        if self.unchecked:
            self.unchecked = False
            self._check(model, call, args, kwargs)
        run = Run(self.lists, model, draws if self.drops else None, self._programs)
        try:
            self._enter(run, model, args, kwargs)
            with _own_caches(run.modules, self._caches), fused(run), Below(run), Above(run):
                out = call(*args, **kwargs)
            _leave(run, out)
        except BaseException as error:
            if isinstance(error, Exception):
                run.sync(error)
            raise
        run.sync()
        self.last = run
        return out

    def _on_batch(self, run: BatchRun, call: Any, args: Any, kwargs: Any) -> Any:
        """Call a model on a batch, and return the rows of its result that are the batch's own."""
        args, kwargs = run.taken(args, kwargs)
        with _own_caches(run.modules, {}), run.layers(), Below(run), Above(run):
            out = call(*args, **kwargs)
        _leave(run, out)
        self.last = run
        return run.leave(out)

    def _check(self, model: Module, call: Any, args: Any, kwargs: Any) -> None:
        """Compare some rows of the result, in evaluation, with those of the unconverted model. Collective.

        Raises InputError if they differ.
        """

        def alone(*args: Any, **kwargs: Any) -> Any:
            with _own_caches(dict(model.named_modules()), {}):
                return original(model)(*args, **kwargs)

        draws = model.__dict__[DRAWS].draws
        epoch = draws.epoch
        with (
            evaluating(model),
            torch.random.fork_rng([self.graph.device] if "cuda" in self.graph.device else []),
        ):
            try:
                out = self.call(model, call, args, kwargs)
                assert self.last is not None
                why = some_rows(self.last, alone, out, args, kwargs)
            except InputError:
                raise
            except Exception as error:  # on all ranks; the call itself tells, if it fails too
                why = f"in evaluation it does not run ({type(error).__name__}: {error})"
        draws.begin(epoch)  # a model may draw in evaluation
        if why and self.graph.rank == 0:
            warnings.warn(f"mgg.convert: no rows were compared with the model's own: {why}", stacklevel=4)

    def _enter(self, run: Run, model: Module, args: Any, kwargs: Any) -> None:
        """Find the layouts of the tensors that are passed, by what they are or by their numbers of rows. Collective."""
        graph, lists = self.graph, self.lists
        try:
            forward, of = vars(model).get("forward"), () if "forward" in vars(model) else (model,)
            named = signature(forward or type(model).forward).bind(*of, *args, **kwargs).arguments
        except (TypeError, ValueError):  # torch's own error follows
            named = dict(enumerate(args)) | kwargs
        found = list(_tensors(named))
        fits = np.array([self._fit(name, each) for name, each in found], np.int64)
        if graph.ranks > 1:
            every = graph.comm.allgather(fits)
            run.note(f"{len(found)} tensors")
            if len({len(each) for each in every}) == 1:
                fits = np.bitwise_and.reduce(np.array(every), 0)
        for (name, each), fit in zip(found, fits.tolist(), strict=True):
            of_edges = fit == EDGES or (fit == NODES + EDGES and any(word in str(name) for word in OF_EDGES))
            if fit == KEPT:
                run.note(str(layout(each)))
            elif fit == INDEX:
                edges: Any = lists.typed[name[1]] if lists.typed and _is_key(name) else lists.edges
                over(each, edges, 1, layout(edges.ends()).numbers)
            elif fit == TYPED:
                over(each, lists.typed[name[1]])
            elif fit >= DATA:
                over(each, lists.edges, data=lists.names[(fit // DATA & -(fit // DATA)).bit_length() - 1])
            elif fit:
                over(each, lists.edges if of_edges else lists.nodes)
            elif each.dtype == torch.int64 and each.shape[:1] == (2,) and "edge_index" in str(name):
                raise InputError(
                    f"convert: {name} {list(each.shape)} is not graph.edge_index() of the graph that the model "
                    "was converted for; for another graph call mgg.convert again"
                )
            else:
                put(each, PLAIN)
                with run.local():
                    run.note(
                        f"taking {name} {list(each.shape)}, which has a row neither for each node nor for each edge of "
                        f"this rank (graph.edge_index() are its edges), {digest(each.detach())}"
                    )
        run.sync()

    def _fit(self, name: str, given: Any) -> int:
        """Return what a tensor fits, as bits. Raises InputError for one that is not dense."""
        lists, place = self.lists, divided(given)
        if type(given) not in (Tensor, torch.nn.Parameter) or given.layout != torch.strided:
            raise InputError(
                f"convert: {name} is a {type(given).__name__}, {given.layout}; expected a dense tensor"
            )
        entry = None if place is None else dims(given)[place]
        held = entry is not None and lists.own(entry.domain) and entry.size == given.shape[place]
        if held and unchanged(given):
            return KEPT
        of = lists.typed.get(name[1]) if _is_key(name) else None
        ends = (of or lists.edges).ends
        if ends is not None and given.dtype == torch.int64 and torch.equal(given, ends()):
            return INDEX
        if lists.typed and _is_key(name):
            return TYPED * (of is not None and given.shape[:1] == (of.local,))
        fits = 0
        if given.dim() and len(given) == lists.edges.local:
            for i, each in enumerate(lists.names):
                data = self.graph.edge_data(each)
                alike = data.shape == given.shape and data.is_floating_point() == given.is_floating_point()
                fits |= DATA << i if alike and torch.equal(given, data.to(given.dtype)) else 0
        if fits:
            return fits
        if not given.dim():
            return 0
        return NODES * (len(given) == self.graph.rows) + EDGES * (len(given) == lists.edges.local)


@contextmanager
def _own_caches(
    modules: Mapping[str, Module], kept: MutableMapping[Module, dict[str, Any]]
) -> Iterator[None]:
    """Keep what PyG's layers cache of the graph (``cached=True``) apart from what they cache for the model itself."""

    def swap() -> None:
        for module in modules.values():
            own = vars(module)
            for name in [each for each in own if each[:7] == "_cached"]:
                mine = kept.setdefault(module, {})
                mine[name], own[name] = own[name], mine.get(name)

    swap()
    try:
        yield
    finally:
        swap()


def takes_data(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a forward of these parameters takes a PyG Data alone."""
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    required = [
        each for each in parameters.values() if each.default is each.empty and each.kind not in variable
    ]
    return [each.name for each in required] == ["data"]


def _is_key(name: Any) -> bool:
    return isinstance(name, tuple)


def _tensors(named: Mapping[Any, Any]) -> Iterator[tuple[Any, Tensor]]:
    """Yield all tensors with their names, also those in lists and Data, and in dictionaries, as (name, key)."""
    left = list(named.items())
    while left:
        name, each = left.pop(0)
        if isinstance(each, Tensor):
            yield name, each
        elif isinstance(each, dict):
            left += [((name, key), inside) for key, inside in each.items()]
        elif isinstance(each, (list, tuple)):
            left += [(name, inside) for inside in each]
        elif isinstance(each, DistGraph):
            raise InputError(f"convert: {name} is the graph; pass graph.edge_index()")
        elif type(each).__module__.partition(".")[0] == "torch_geometric" and hasattr(each, "to_dict"):
            if hasattr(each, "node_types"):
                raise InputError(
                    "convert: the model takes a HeteroData; let it take x_dict and edge_index_dict"
                )
            left += each.to_dict().items()


def _leave(run: Run, out: Any) -> None:
    """Raise InputError for a result whose backward would see gradients of this rank's rows alone."""
    for _, each in _tensors({"": out}):
        for entry in dims(each):
            if entry is not None and entry.domain.parts:
                raise InputError(
                    f"convert: the model returns a row for each of {entry}, whose order on all ranks is not that of "
                    "one process; return rows of the nodes or edges"
                )
    nodes = [each.grad_fn for _, each in _tensors({"": out}) if each.grad_fn is not None]
    seen = set[Any]()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            of = type(node)._forward_cls
            if not of.__module__.startswith("mgg_hpc."):
                raise InputError(
                    f"convert: the backward of {of.__name__}, an autograd function or a hook of gradients, would see "
                    "gradients of this rank's rows alone"
                )
        nodes += [each for each, _ in node.next_functions if each is not None]


class _Converted:
    """Base of the classes of converted models."""

    _conversion: Conversion

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from torch._dynamo import disable  # takes seconds to import

            return disable(self.__call__)(*args, **kwargs)
        with calling("a converted model"):
            return self._conversion.call(self, super().__call__, args, kwargs)  # type: ignore[arg-type,misc]


@collective("mgg.convert")
def convert(model: Any, graph: DistGraph, *, check: bool = True) -> Any:
    """Return a model of torch or torch_geometric that computes over all ranks' rows what it computes in one process.

    It is called as the model is, with ``graph.x`` and ``graph.edge_index()`` in place of the whole graph's, and further
    tensors with a row for each of this rank's nodes or edges. It shares parameters, buffers and attributes with
    ``model``, which goes on working by itself. What it cannot compute on a part of the rows it refuses, when it is
    called: InputError names the module, what is wrong and what would do. check: before its first call on several ranks
    compare eight rows, in evaluation, with the model's own over the edges that they depend on. Collective, as are its
    calls and their backwards. Raises InputError for another object or graph.

    Methods other than forward run unconverted. A scalar that forward returns, as an auxiliary loss, counts once a rank
    when gradients are summed: divide it by ``graph.ranks``.
    """
    with mpi.agree(graph.comm if isinstance(graph, DistGraph) else mpi.world()):
        _check(model, graph)
        model = original(model)
    check_alike("convert", {**dict(model.named_parameters()), **dict(model.named_buffers())}, graph.comm)
    kind = type(model)
    own = {"_conversion": Conversion(graph, check), "__module__": kind.__module__}
    converted = _over(type(kind.__name__, (_Converted, kind), own), model)
    if DRAWS not in model.__dict__:
        model.__dict__[DRAWS] = Dropout(0.5)
    return converted


def original(model: Any) -> Any:
    """Return the model that a converted one was made of; another model as it is."""
    return _over(type(model).__mro__[2], model) if isinstance(model, _Converted) else model


def _over(kind: type, model: Any) -> Any:
    """Return an object of class ``kind`` that shares all attributes with ``model``."""
    made: Any = object.__new__(kind)
    object.__setattr__(made, "__dict__", model.__dict__)
    return made


def _check(model: Any, graph: Any) -> None:
    if not isinstance(graph, DistGraph):
        name = type(graph).__name__
        raise InputError(
            f"convert: takes a graph in memory, as mgg.open and mgg.from_pyg return; this is a {name}"
        )
    graph.check_open()
    if not isinstance(model, Module):
        raise InputError(f"convert: takes a torch.nn.Module, and this is a {type(model).__name__}")
    for path, module in model.named_modules():
        kind = type(module).__name__
        wrong = "is compiled by torch.jit; give the module that it was made of" * isinstance(
            module, torch.jit.ScriptModule
        )
        if kind == "OptimizedModule":
            wrong = "is compiled; convert first, then torch.compile"
        elif kind in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
            wrong = "divides batches between devices; give the module inside it"
        elif kind in ("HGTConv", "HEATConv"):
            wrong = "joins nodes of all types in one list; HANConv or to_hetero(SAGEConv or GATConv) do not"
        if wrong:
            raise InputError(f"convert: {path + ' ' if path else ''}({kind}) {wrong}")
