"""Layers of PyG that run as fused layers of this package, or as programs, within a converted model.

A layer that is exactly of the class, and with nothing in it that was changed, gets another forward or another propagate
for the length of a call. All others run their own code, over rows that were extended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Sequential
from torch.overrides import _pop_mode_temporarily as without_functions
from torch.utils._python_dispatch import _pop_mode_temporarily as without_dispatch

from ..graph.dist_graph import DistGraph
from ..layers.attention import GATConv
from ..layers.conv import Formula, SumConvolution
from ..layers.random import Dropout
from .layouts import Divided, data_of, dims, layout
from .programs import messages, propagated
from .relations import relational
from .running import Run

Layer = Callable[..., Tensor]
signature = functools.lru_cache(256)(inspect.signature)


class _Sum(SumConvolution):
    """A layer of PyG as a formula of its present parameters."""

    def __init__(self, kind: str, made: Callable[[], Formula]) -> None:
        super().__init__()
        self.kind, self._made = kind, made

    @property
    def formula(self) -> Formula:
        return self._made()

    def reset_parameters(self, *given: Any) -> None:
        """Do nothing: the parameters are another layer's."""


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# If an object has its own:
_CHANGED = {"forward", "message", "aggregate", "update", "propagate", "edge_updater"}


def _bare(module: Any, kind: str) -> bool:
    """Return whether a module is exactly of a class, without hooks or anything of its own in place of its class's."""
    own = vars(module)
    changed = (_CHANGED | {"weight", "bias"}) & own.keys()
    return type(module).__name__ == kind and not changed and not any(own[each] for each in _HOOKS)


def _weight(linear: Any) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a linear map. Raises _NotFused for one that was changed."""
    of = "torch_geometric.nn.dense.linear", "torch.nn.modules.linear"
    if linear is None or not _bare(linear, "Linear") or type(linear).__module__ not in of:
        raise _NotFused("a linear map of it is not plain")
    if torch.nn.parameter.is_lazy(linear.weight):
        raise _NotFused("its weights are not there yet")
    return linear.weight, linear.bias


class _NotFused(Exception):  # noqa: N818 - it is a reason, and goes no further
    """Why a layer is not fused."""


def _plain(condition: bool, why: str) -> None:
    if not condition:
        raise _NotFused(why)


def _gcn(conv: Any) -> tuple[Layer, tuple[Any, ...]]:
    _plain(not conv.improved and conv.add_self_loops and conv.normalize, "it normalises in another way")
    _weight(conv.lin)
    return _Sum("gcn", lambda: Formula(weight=conv.lin.weight, bias=conv.bias)), ()


def _sage(conv: Any) -> tuple[Layer, tuple[Any, ...]]:
    _plain(
        not conv.project and conv.aggr in ("mean", "sum", "add", "max"), "it projects, or has another aggr"
    )
    aggr = "sum" if conv.aggr == "add" else conv.aggr
    for linear in (conv.lin_l, *([conv.lin_r] if conv.root_weight else [])):
        _weight(linear)
    rest = (functools.partial(torch.nn.functional.normalize, p=2.0, dim=-1),) if conv.normalize else ()
    root = (lambda: conv.lin_r.weight) if conv.root_weight else lambda: None
    return _Sum("edges", lambda: Formula(aggr, *_weight(conv.lin_l), root())), rest


_BY_ROW = {"Linear", "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Tanh", "Sigmoid", "LayerNorm", "Identity"}


def _gin(conv: Any) -> tuple[Layer, tuple[Any, ...]]:
    if _bare(conv.nn, "Sequential") and type(conv.nn) is Sequential and len(conv.nn):
        try:
            _weight(conv.nn[0])
        except _NotFused:
            pass
        else:
            rest = list(conv.nn)[1:]
            inside = all(type(each).__module__.startswith("torch.nn.") for each in rest)
            inside = inside and all(
                _bare(each, type(each).__name__) and type(each).__name__ in _BY_ROW for each in rest
            )
            made = functools.partial(_gin_of, conv, rest if inside else [])
            return _Sum("edges", made), () if inside else tuple(rest)
    return _Sum("edges", lambda: Formula(eps=conv.eps)), (conv.nn,)


def _gin_of(conv: Any, rest: list[Module]) -> Formula:
    return Formula("sum", *_weight(conv.nn[0]), eps=conv.eps, rest=rest)


def _gat(conv: Any) -> tuple[Layer, tuple[Any, ...]]:
    _weight(conv.lin)
    for linear in (conv.lin_edge, conv.res):
        if linear is not None:
            _weight(linear)
    _plain(not isinstance(conv.fill_value, Tensor), "its fill_value is a tensor")
    options = [getattr(conv, name) for name in signature(GATConv).parameters if hasattr(conv, name)]
    options[-2] = conv.bias is not None
    try:
        return _gat_of(*options), ()
    except ValueError as error:
        raise _NotFused(str(error)) from None


@functools.cache
def _gat_of(*options: Any) -> GATConv:
    """Return a layer of ours without parameters of its own, which `_shared` gives it for each call."""
    with torch.device("meta"):
        return GATConv(*options)


def _rgcn(conv: Any) -> tuple[Layer, tuple[Any, ...]]:
    _plain(
        conv.num_blocks is None and conv.aggr == "mean",
        "it has blocks, or aggregates otherwise than by means",
    )
    return functools.partial(_relational, conv), ()


def _relational(conv: Any, x: Tensor, graph: DistGraph, edge_type: str) -> Tensor:
    """Return the output of an R-GCN. edge_type: name of data of edges."""
    weight = conv.weight
    if conv.num_bases is not None:
        weight = (conv.comp @ weight.view(conv.num_bases, -1)).view(conv.num_relations, *weight.shape[1:])
    out = relational(x, weight, graph, edge_type)
    out = out if conv.root is None else torch.addmm(out, x, conv.root)
    return out if conv.bias is None else out + conv.bias


_FUSED = {"GCNConv": _gcn, "SAGEConv": _sage, "GINConv": _gin, "GATConv": _gat}
_FUSED |= dict.fromkeys(("RGCNConv", "FastRGCNConv"), _rgcn)


def _shared(ours: GATConv, conv: Any, run: Run) -> None:
    """Let our layer have PyG's parameters, dropout and mode."""
    for name in ("att_src", "att_dst", "att_edge", "bias"):
        if getattr(ours, name, None) is not None:
            setattr(ours, name, getattr(conv, name))
    for name in ("lin", "lin_edge", "res"):
        if getattr(ours, name, None) is not None:
            getattr(ours, name).weight = getattr(conv, name).weight
    draws = run.draws or Dropout(0)
    draws.p, draws.training = conv.dropout if run.draws else 0.0, conv.training
    ours.attention_dropout = draws


def _unchanged(conv: Any) -> None:
    """Raise _NotFused if a PyG layer may behave differently from the class that the fused layer replaces.

    That is if its methods were overridden, it has hooks on its messages, its messages flow from targets to
    sources, it is explained or decomposed, or it aggregates in another way.
    """
    hooked = any(each for key, each in vars(conv).items() if key[-6:] == "_hooks" and "forward" in key[8:])
    changed, kind = _CHANGED & vars(conv).keys(), type(conv)
    of_class = kind.forward.__module__ == kind.__module__
    _plain(of_class and not changed and not hooked, "it was changed, or has hooks of its messages")
    _plain(
        conv.flow == "source_to_target" and not conv.explain and conv.decomposed_layers == 1,
        "its messages go otherwise",
    )
    if kind.__name__ in _FUSED:
        _plain(kind.__module__.startswith("torch_geometric.nn.conv."), "there is no fused layer of it")
        _plain(
            _FUSED[kind.__name__] in (_sage, _rgcn) or conv.aggr in ("add", "sum"), "it aggregates otherwise"
        )


def called(run: Run, conv: Module, given: dict[str, Any]) -> str:
    """Return why a call of a fused layer runs the layer's own code, or ""."""
    x, index, lists = given["x"], given["edge_index"], run.lists
    weight, attr = given.get("edge_weight"), given.get("edge_attr")
    of_edges = dims(lists.index)[1:]
    rows = isinstance(x, Tensor) and dims(x) == (Divided(lists.nodes), None) and x.dtype == run.graph.dtype
    same = layout(index).numbers == layout(lists.index).numbers and dims(index)[1:] == of_edges
    more = any(given.get(each) is not None for each in ("size", "return_attention_weights"))
    weighs = type(conv).__name__ == "GCNConv" and (lists.weight is not None or weight is not None)
    own = weight is not None and data_of(weight) == "weight" and not weight.requires_grad
    typed = "num_relations" in vars(conv)
    plain = attr is None or (not attr.requires_grad and attr.dim() < 3 and dims(attr)[:1] == of_edges)
    found = {
        "its rows are not those of the nodes, in the graph's type": not rows,
        "its edges are not the graph's as they are": not same,
        "it is asked for more than rows": more,
        "its weights are not those of the graph": weighs and not own,
        "its edge_attr has gradients, or is not of the graph's edges": not plain,
        "its types are not data of the graph's edges": typed and not data_of(given.get("edge_type")),
        "edge_attr or edge_dim is missing": (attr is None) != (getattr(conv, "edge_dim", None) is None),
    }
    return next((why for why, there in found.items() if there), "")


@contextmanager
def fused(run: Run) -> Iterator[None]:
    """Let layers of the model run fused, or as programs, within a block."""
    layers = {path: conv for path, conv in run.modules.items() if hasattr(type(conv), "propagate")}
    changed = [(vars(conv), replaced(run, path, conv)) for path, conv in layers.items()]
    for own, methods in changed:
        own.update(methods)
    try:
        yield
    finally:
        for own, methods in changed:
            for name in methods:
                del own[name]


def replaced(run: Run, path: str, conv: Any) -> dict[str, Any]:
    """Return a fused forward of a layer, or a propagate that runs a program, by its name; {} for neither."""
    kind = type(conv).__name__
    try:
        _unchanged(conv)
        if kind in _FUSED:
            return {"forward": functools.partial(_forward, run, path, conv, *_FUSED[kind](conv))}
        why = messages(conv)
        _plain(not why, why)
        return {"propagate": functools.partial(_propagate, run, path, conv)}
    except _NotFused as reason:
        run.ways[path] = f"extended, because {reason}"
        return {}


def _propagate(run: Run, path: str, conv: Any, edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
    out = propagated(run, conv, edge_index, kwargs)
    run.ways[path] = f"extended, because {out}" if isinstance(out, str) else "program"
    return type(conv).propagate(conv, edge_index, size=size, **kwargs) if isinstance(out, str) else out


def _forward(
    run: Run, path: str, conv: Any, layer: Layer, rest: tuple[Any, ...], *args: Any, **kwargs: Any
) -> Any:
    own = type(conv).forward
    with without_functions(), without_dispatch():
        given = signature(own).bind(conv, *args, **kwargs).arguments
        why = called(run, conv, given)
        run.ways[path] = f"extended, because {why}" if why else "fused"
        if not why:
            run.again()
            run.note(f"{path} fused")
            run.sync()
            x, attr, types = given["x"], given.get("edge_attr"), given.get("edge_type")
            more = {} if attr is None else {"edge_attr": attr}
            more |= {} if types is None else {"edge_type": data_of(types)}
            if isinstance(layer, GATConv):
                _shared(layer, conv, run)
            out = run.over(layer, x, more)
    if why:
        return own(conv, *args, **kwargs)
    for step in rest:
        out = step(out)
    return out


def explain(model: Any) -> str:
    """Return how each layer of a converted model ran in its last call, and what crossed between ranks, as text."""
    run: Run | None = model._conversion.last if hasattr(model, "_conversion") else None
    if run is None:
        raise ValueError("explain: takes a model that mgg.convert returned, after it was called")
    crossed: dict[str, list[str]] = {}
    for place, what, columns in run.exchanges:
        crossed.setdefault(place, []).append(f"{what} of {columns} columns")
    ways = {run.named(path, each): run.ways[path] for path, each in run.modules.items() if path in run.ways}
    lines = [
        f"{place}: {ways.get(place, 'as it is')}"
        + "".join(f"; {each}" for each in crossed.get(place, ["nothing"]))
        for place in {**ways, **crossed}
    ]
    return "\n".join([*lines, "all rows were reduced" if run.pooled else "no reduction of all rows"])
