"""Converted models on sampled batches: each layer runs over the block that its input's rows are the sources of.

After t layers a tensor has the rows of *level* t: the sources of block t, which are the destinations of the block
before, or at last the batch's own rows. Where tensors of several levels meet, as in a skip connection, the first rows
of each are taken, as many as the latest level has. Within a layer, what is summed at destinations has a row for each
source, too, of which those of destinations alone are right: its *depth*, the level whose rows are right, is the next.
What takes such rows by sources of edges, as a second propagation, or degrees of both ends, is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_map

from ...errors import InputError
from ..graph.dist_graph import DistGraph
from ..layers.random import Dropout
from ..sampling.batches import Block
from .fused import replaced
from .layouts import PLAIN, Divided, Domain, Layout, Numbers, Refused, dims, divided, layout, over, put
from .rules import tensors_in
from .running import Lists, Run, ids_of, pairs

_DEPTH, _CUT = "_mgg_depth", "_mgg_detached"  # attributes of tensors
_USES = "uses the edges of a batch itself; only layers (MessagePassing) take them, each those of its block"
_OUTSIDE = (
    "needs rows of neighbours outside of this block, as of their degrees, a second propagation, or edges that a layer "
    "returned; use the whole graph"
)


class _OfBlocks:
    """Stands for the edges of all blocks, or data of them, until a layer takes those of its block."""

    def __init__(self, of: Sequence[Any], run: BatchRun) -> None:
        self.of, self.run = of, run

    def _used(self, *args: Any, **kwargs: Any) -> Any:
        raise self.run.refused(Refused(_USES))

    @classmethod
    def __torch_function__(cls, *args: Any) -> Any:
        raise Refused(_USES)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = (
    "getattr",
    "getitem",
    "len",
    "float",
    "int",
    "neg",
    "abs",
    "invert",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
)
for _name in (*_OTHERS, *_BINARY, *(f"r{each}" for each in _BINARY)):
    setattr(_OfBlocks, f"__{_name}__", _OfBlocks._used)


def blocks_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Block]:
    """Return the blocks that are passed in place of edges, or []. Raises InputError for blocks in other objects."""
    for each in (*args, *kwargs.values()):
        if found := _blocks_in(each):
            return found
        inside = each if isinstance(each, dict) else getattr(each, "_store", None)
        if inside is not None and any(_blocks_in(value) for value in inside.values()):
            raise InputError(
                f"convert: a batch in a {type(each).__name__}; a model takes one as model(batch.x, batch), and one of "
                "dictionaries by type, or of a Data, takes the whole graph"
            )
    return []


def _blocks_in(given: Any) -> list[Block]:
    found = [given] if isinstance(given, Block) else getattr(given, "blocks", given)
    some = isinstance(found, (list, tuple)) and found and all(isinstance(each, Block) for each in found)
    return list(found) if some else []


class _BatchLists(Lists):
    """The rows of a batch by level, and the edges of the block whose layer runs. level: of each list of rows.

    Their numbers on all ranks are those of the whole graph, so that a model computes with these.
    """

    def __init__(self, blocks: list[Block], whole: DistGraph) -> None:
        self.blocks, self.whole = blocks, whole
        self.typed, self._made = dict[Any, Domain](), WeakValueDictionary()
        numbers, self.levels = blocks[0].numbers, list[Domain]()
        for size in (*(block.rows for block in blocks), blocks[-1].destinations):
            keys = functools.partial(lambda size: ids_of(blocks[0])[:size], size)
            self.levels.append(self._rows("nodes of the batch", size, whole.num_nodes, numbers[:size], keys))
        self.level = {domain: level for level, domain in enumerate(self.levels)}
        self.made = dict[int, tuple[Tensor, Domain]]()
        self.graph, self.nodes = blocks[0], self.levels[0]  # type: ignore[assignment]

    def turn(self, number: int) -> None:
        """Make a block's edges those of the layers that run now."""
        self.graph, self.nodes = self.blocks[number], self.levels[number]  # type: ignore[assignment]
        if number not in self.made:
            index = self.blocks[number].edge_index()
            keys = functools.partial(pairs, self.graph, index)
            edges = Domain("sampled edges", index.shape[1], self.whole.num_edges, keys)
            edges.ends = lambda: index
            _of_depth(over(index, edges, 1, (Numbers(self.nodes, halo=True), Numbers(self.nodes))), 0)
            self.made[number] = index, edges
        self.index, self.edges = self.made[number]
        names = self.blocks[number].edge_names
        self.weight = self.blocks[number].edge_data("weight") if "weight" in names else None


class BatchRun(Run):
    """A call of a converted model on this rank's part of a batch, without other ranks. block: of the running layer."""

    lists: _BatchLists
    graph: Any

    def __init__(self, blocks: list[Block], model: Module, draws: Dropout | None, whole: DistGraph) -> None:
        super().__init__(_BatchLists(blocks, whole), model, draws, {})
        self.blocks, self.block, self.partial = blocks, len(blocks), True

    def taken(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the model with layouts, and `_OfBlocks` for edges. Raises InputError."""
        count, rows = len(self.blocks), list[Tensor]()

        def one(value: Any) -> Any:
            given = _blocks_in(value) or value
            if isinstance(given, (list, tuple)) and given:
                if len(given) != count:
                    raise InputError(f"convert: a list of {len(given)} for a batch of {count} blocks")
                return _OfBlocks(given, self)
            if isinstance(value, Tensor) and value.dim() and len(value) == self.graph.rows:
                rows.append(_of_depth(over(value, self.lists.nodes), 0))
            elif isinstance(value, Tensor):
                put(value, PLAIN)
            elif not isinstance(value, (int, float, str, type(None))):
                raise InputError(
                    f"convert: takes dense tensors with a batch; this is a {type(value).__name__}"
                )
            return value

        found = [one(each) for each in args], {name: one(each) for name, each in kwargs.items()}
        if not rows:
            raise InputError(
                f"convert: no tensor has the {self.graph.rows} rows of the batch, as batch.x has"
            )
        return found

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Let layers of the model run over blocks, within a block of code."""
        convs = {path: each for path, each in self.modules.items() if hasattr(type(each), "propagate")}
        kept = {path: vars(each).get("forward") for path, each in convs.items()}
        forwards = {
            path: kept[path]
            or (replaced(self, path, each).get("forward") if _as_pyg(each) else None)
            or functools.partial(type(each).forward, each)
            for path, each in convs.items()
        }
        for path, conv in convs.items():
            self.ways.setdefault(path, "extended, over the rows of its block")
            vars(conv)["forward"] = functools.partial(self._layer, forwards[path])
        try:
            yield
        finally:
            for path, conv in convs.items():
                del vars(conv)["forward"]
                vars(conv).update({} if kept[path] is None else {"forward": kept[path]})
            for domain in self.lists.levels:  # they would keep each other, and the blocks, in memory
                domain.beyond = None
            for index, _ in self.lists.made.values():
                vars(index).clear()  # else its layout, which has it, keeps it in memory

    def _layer(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a layer over the block of its input's level."""
        if not any(isinstance(each, _OfBlocks) for each in (*args, *kwargs.values())):
            return forward(*args, **kwargs)
        number = max(self._levels(tensors_in((args, kwargs))), default=0)
        if number >= len(self.blocks):
            self._uneven("more")
        before, self.block, self.graph = self.block, number, self.blocks[number]
        try:
            self.again()
            with self.local():
                self.lists.turn(number)
                args, kwargs = tuple(map(self._given, args)), {k: self._given(v) for k, v in kwargs.items()}
            args, kwargs = tree_map(functools.partial(self._cut, number), (args, kwargs))
            out = forward(*args, **kwargs)
        except Refused as error:
            raise self.refused(error) from None
        finally:
            self.block = before
        return tree_map(functools.partial(self._cut, number + 1), out)

    def _levels(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the levels whose rows the dimensions of tensors have."""
        level = self.lists.level
        return {
            level[entry.domain] for each in tensors for entry in dims(each) if entry and entry.domain in level
        }

    def _cut(self, level: int, value: Any) -> Any:
        """Return a tensor with the rows of a level in place of those of an earlier one; other values as they are."""
        if not isinstance(value, Tensor) or (place := divided(value)) is None:
            return value
        entries = list(dims(value))
        entry, now = entries[place], Divided(self.lists.levels[level])
        if entry is None or self.lists.level.get(entry.domain, level) >= level or not entry.plain:
            return value
        with self.local():
            part = value.narrow(place, 0, now.size)
        entries[place] = now
        return _of_depth(put(part, Layout(tuple(entries), layout(value).numbers)), self._depth(value))

    def before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return an operation's arguments, with tensors cut to the rows of the latest level among them.

        Raises Refused if an argument has numbers of rows of an earlier level as values, or if the operation
        would change rows of an earlier level in place.
        """
        tensors = tensors_in((args, kwargs))
        levels = self._levels(tensors) if len(tensors) > 1 else set()
        if not levels:
            return args, kwargs
        last = max(levels)
        for each in tensors:
            numbers = layout(each).numbers
            counted = numbers if isinstance(numbers, tuple) else (numbers,)
            if any(one is not None and self.lists.level.get(one.domain, last) < last for one in counted):
                raise self._outside()
        name = getattr(func, "__name__", "")
        changes = name == "__setitem__" or (name[-1:] == "_" and name[-2:] != "__") or name[:3] == "__i"
        if changes and any(hasattr(one, _CUT) for one in (tensors[0], tensors[0]._base)):
            raise Refused(
                f"{name}: changes rows that detach or .data took out of another tensor; clone() them"
            )
        if len(levels) == 1:
            return args, kwargs
        if changes and self._levels(tensors[:1]) != {last}:
            raise Refused(
                f"{name}: changes rows in place by those of a later layer; write x = x + h, not x += h"
            )
        found: tuple[Any, Any] = tree_map(functools.partial(self._cut, last), (args, kwargs))
        return found

    def _outside(self) -> Refused:
        """Return what refuses rows that are not right, with why the innermost layer does not run fused."""
        place = self.place()
        ways = [each for path, each in self.ways.items() if self.named(path, self.modules[path]) == place]
        return Refused(_OUTSIDE + "".join(f" (it runs {each})" for each in ways if "because" in each))

    def _given(self, value: Any) -> Any:
        """Return an argument of a layer, with edges of the layer's block in place of those of all blocks."""
        if not isinstance(value, _OfBlocks):
            return value
        mine, lists = value.of[self.block], self.lists
        if isinstance(mine, Block):
            return lists.index
        if not isinstance(mine, Tensor) or len(mine) != lists.edges.local:
            raise InputError(
                "convert: data of a batch's edges are a list, a tensor with a row for each edge of a block"
            )
        own = (
            lists.weight is not None and mine.shape == lists.weight.shape and torch.equal(mine, lists.weight)
        )
        return _of_depth(over(mine, lists.edges, data="weight" * own), 0)

    def over(self, layer: Any, x: Tensor, more: dict[str, Any]) -> Tensor:
        try:
            self._check_right(x)
        except Refused as error:
            raise self.refused(error) from None
        out: Tensor = layer(x, self.blocks[self.block], **more)
        return _of_depth(over(out, self.lists.levels[self.block + 1]), self.block + 1)

    def _depth(self, tensor: Tensor) -> int:
        """Return the depth of a tensor: the level whose rows have the right values in it.

        It is 0 for a tensor without rows of nodes or edges. If it is unknown, it is one more than the last
        level, which no layer accepts.
        """
        if layout(tensor) is PLAIN:
            return 0
        base, unknown = tensor._base, len(self.blocks) + 1
        of_base = 0 if base is None or layout(base) is PLAIN else getattr(base, _DEPTH, 0)
        return max(of_base, getattr(tensor, _DEPTH, unknown))

    def after(self, func: Any, given: Any, out: Any) -> None:
        """Set the depth of an operation's results."""
        if isinstance(out, (int, torch.dtype, torch.device)):
            return
        tensors, levels = tensors_in(given), self.lists.level.keys()
        if func in (Tensor.detach, Tensor.data.__get__):  # type: ignore[attr-defined]
            setattr(out, _CUT, True)
        domains = {entry.domain for each in tensors for entry in dims(each) if entry}
        depth = max(map(self._depth, tensors), default=0)
        for each in tensors_in((tensors[:1] if out is None else out,)):
            mine = {entry.domain for entry in dims(each) if entry}
            if mine & levels and any(each.root not in levels for each in domains - mine):
                depth = max(depth, self.block + 1)
            for one in (each, each._base):
                if one is not None and PLAIN not in (layout(each), layout(one)):
                    _of_depth(one, max(depth, getattr(one, _DEPTH, 0)))

    def leave(self, out: Any) -> Any:
        """Return the rows of a result that are the batch's own. Raises InputError for other results."""
        return tree_map(self._own, out)

    def _own(self, out: Any) -> Any:
        if not isinstance(out, (Tensor, int, float, str, type(None))):
            raise InputError(f"convert: on a batch a model returns tensors; this is a {type(out).__name__}")
        if not isinstance(out, Tensor) or layout(out) is PLAIN:
            return out
        entry = next(iter(dims(out)), None)
        if entry is None or not entry.plain or entry.domain not in self.lists.level:
            raise InputError("convert: on a batch a model returns rows of the nodes alone")
        if entry.domain is not self.lists.levels[-1]:
            self._uneven("fewer")
        return out

    def _uneven(self, what: str) -> None:
        raise InputError(
            f"{self.place()}: the model has {what} layers than the batch has blocks, {len(self.blocks)}; num_neighbors "
            "has a number for each layer"
        )

    # ---- what would need other ranks, or rows that are not right

    def extended(self, x: Tensor, dim: int) -> Tensor:
        self._check_right(x)
        with self.local():
            out = x.view_as(x)
        return over(out, self.lists.nodes.beyond, dim, layout(x).numbers)  # type: ignore[arg-type]

    def _check_right(self, x: Tensor) -> None:
        """Raise Refused unless a layer of the model runs, and the rows of all sources of its block are right."""
        if self.block >= len(self.blocks) or self._depth(x) > self.block:
            raise self._outside()

    def chosen(self, of: Divided, mask: Tensor, count: int) -> Domain:
        made = super().chosen(of, mask, count)
        made.counted = made.chosen_of is None
        return made

    def folded(self, x: Tensor, dim: int) -> Tensor:
        raise Refused("sums at the sources of edges, and a block has only some of their edges")

    def settled(self, index: Tensor) -> Tensor:
        raise Refused("puts values at the sources of edges, and a block has only some of their edges")

    def summed(self, part: Tensor) -> Tensor:
        raise Refused(
            'reduces the rows of a batch, of which each rank has its own; of PyG\'s norms LayerNorm(mode="node") does '
            "not"
        )

    def most(self, part: Tensor, least: bool = False) -> Tensor:
        return self.summed(part)

    def same(self, drawn: Tensor) -> None:
        raise Refused("draws random numbers on each rank; F.dropout draws by the numbers of nodes and edges")


def _of_depth(tensor: Tensor, depth: int) -> Tensor:
    setattr(tensor, _DEPTH, depth)
    return tensor


def _as_pyg(conv: Any) -> bool:
    """Return whether the fused layer of a block computes what PyG's does on its edges, or, GCNConv, by all degrees."""
    return type(conv).__name__ in ("GCNConv", "GATConv") or (
        type(conv).__name__ == "SAGEConv" and conv.aggr in ("mean", "max")
    )
