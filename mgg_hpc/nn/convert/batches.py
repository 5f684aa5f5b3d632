"""Converted models on sampled batches: each layer runs over the block that its input is the sources of.

All rows of a batch go through the model. After t layers the first ``blocks[t].rows`` of them are right, since the
destinations of a block are the sources of the next; t is the *depth* of a tensor. What takes rows by sources of a
block's edges at a greater depth, as a second propagation, or degrees of both ends, is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import Module

from ...errors import InputError
from ..layers.random import Dropout
from ..sampling.batches import Batch, Block
from .fused import fused_forward
from .layouts import PLAIN, Count, Divided, Domain, Numbers, dims, layout, over, put
from .rules import Refused, tensors_in
from .running import Lists, Run, ids_of, pairs

_DEPTH = "_mgg_depth"  # attribute of tensors


class _OfBlocks:
    """Stands for the edges of all blocks, or data of them, until a layer takes those of its block."""

    def __init__(self, of: Sequence[Any], run: BatchRun) -> None:
        self.of, self.run = of, run

    def _used(self, *args: Any, **kwargs: Any) -> Any:
        raise self.run.refused(
            Refused(
                "uses the edges of a batch itself; only layers (MessagePassing) take them, each those of its block"
            )
        )

    __getattr__ = __getitem__ = __len__ = __torch_function__ = _used


def blocks_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Block]:
    """Return the blocks that are passed in place of edges, or []."""
    for each in (*args, *kwargs.values()):
        found = each.blocks if isinstance(each, Batch) else each
        if isinstance(found, list) and found and all(isinstance(block, Block) for block in found):
            return found
    return []


class _BatchLists(Lists):
    """The rows of a batch, and the edges of the block whose layer runs."""

    def __init__(self, blocks: list[Block]) -> None:
        self.graph: Any = blocks[0]
        rows = self.graph.rows
        self.nodes = Domain("nodes of the batch", rows, rows, lambda: ids_of(blocks[0]))
        self.halo = self.nodes.beyond = Domain("sources of the block", rows, rows, lambda: ids_of(blocks[0]))
        self.halo.owner = self.nodes
        self.blocks, self.typed, self._made = blocks, dict[Any, Domain](), WeakValueDictionary()
        self.made = dict[int, tuple[Tensor, Domain]]()

    def turn(self, number: int) -> None:
        """Make a block's edges those of the layers that run now."""
        if number not in self.made:
            index = self.blocks[number].edge_index()
            edges = Domain(
                "sampled edges", index.shape[1], index.shape[1], functools.partial(pairs, self.graph, index)
            )
            edges.ends = lambda: index
            over(index, edges, 1, (Numbers(self.nodes, halo=True), Numbers(self.nodes)))
            self.made[number] = index, edges
        self.index, self.edges = self.made[number]
        names = self.blocks[number].edge_names
        self.weight = self.blocks[number].edge_data("weight") if "weight" in names else None


class BatchRun(Run):
    """A call of a converted model on this rank's part of a batch, without other ranks. block: of the running layer."""

    lists: _BatchLists

    def __init__(self, blocks: list[Block], model: Module, draws: Dropout | None) -> None:
        super().__init__(_BatchLists(blocks), model, draws, {})
        self.blocks, self.block = blocks, len(blocks)

    def taken(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the model with layouts, and `_OfBlocks` for edges. Raises InputError."""
        count = len(self.blocks)

        def one(value: Any) -> Any:
            if isinstance(value, (Batch, list, tuple)) and len(
                given := value.blocks if isinstance(value, Batch) else value
            ):
                if len(given) != count:
                    raise InputError(f"convert: a list of {len(given)} for a batch of {count} blocks")
                return _OfBlocks(given, self)
            if isinstance(value, Tensor) and value.dim() and len(value) == self.graph.rows:
                setattr(over(value, self.lists.nodes), _DEPTH, 0)
            elif isinstance(value, Tensor):
                put(value, PLAIN)
            elif not isinstance(value, (int, float, str, type(None))):
                raise InputError(
                    f"convert: takes dense tensors with a batch; this is a {type(value).__name__}"
                )
            return value

        return [one(each) for each in args], {name: one(each) for name, each in kwargs.items()}

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Let layers of the model run over blocks, within a block of code."""
        convs = {path: each for path, each in self.modules.items() if hasattr(type(each), "propagate")}
        kept = {path: vars(each).get("forward") for path, each in convs.items()}
        forwards = {
            path: kept[path]
            or (fused_forward(self, path, each) if _as_pyg(each) else None)
            or functools.partial(type(each).forward, each)
            for path, each in convs.items()
        }
        for path, conv in convs.items():
            vars(conv)["forward"] = functools.partial(self._layer, forwards[path])
        try:
            yield
        finally:
            for path, conv in convs.items():
                del vars(conv)["forward"]
                vars(conv).update({} if kept[path] is None else {"forward": kept[path]})
            self.lists.halo.owner = None  # they would keep each other, and the blocks, in memory
            for index, _ in self.lists.made.values():
                vars(index).clear()  # else its layout, which has it, keeps it in memory

    def _layer(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a layer over the block of its input's depth."""
        if not any(isinstance(each, _OfBlocks) for each in (*args, *kwargs.values())):
            return forward(*args, **kwargs)
        number = max(map(self._depth, tensors_in((args, kwargs))), default=0)
        if number >= len(self.blocks):
            self._uneven("more")
        before, self.block = self.block, number
        try:
            with self.local():
                self.lists.turn(number)
                args, kwargs = tuple(map(self._given, args)), {k: self._given(v) for k, v in kwargs.items()}
            out = forward(*args, **kwargs)
        finally:
            self.block = before
        for each in tensors_in((out,)):
            if layout(each) is not PLAIN:
                setattr(each, _DEPTH, number + 1)
        return out

    def _given(self, value: Any) -> Any:
        """Return what a layer gets of an argument."""
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
        setattr(over(mine, lists.edges), _DEPTH, 0)
        layout(mine).data = "weight" * own
        return mine

    def over(self, layer: Any, x: Tensor, more: dict[str, Any]) -> Tensor:
        try:
            self._check_right(x)
        except Refused as error:
            raise self.refused(error) from None
        block = self.blocks[self.block]
        out: Tensor = layer(x[: block.rows], block, **more)
        out = torch.nn.functional.pad(out, (0, 0, 0, len(x) - len(out)))
        setattr(out, _DEPTH, self.block + 1)
        return out

    def _depth(self, tensor: Tensor) -> int:
        if layout(tensor) is PLAIN:
            return 0
        unknown = len(self.blocks) + 1
        base = tensor._base
        of_base = 0 if base is None or layout(base) is PLAIN else getattr(base, _DEPTH, 0)
        return max(of_base, getattr(tensor, _DEPTH, unknown))

    def after(self, given: Any, out: Any) -> None:
        """Set the depth of an operation's results."""
        tensors = list(tensors_in(given))
        depth = max(map(self._depth, tensors), default=0)
        for each in tensors_in((tensors[:1] if out is None else out,)):
            domains = {entry.domain for entry in dims(each) if entry}
            if self.lists.nodes in domains and any(
                entry and entry.domain is not self.lists.nodes for one in tensors for entry in dims(one)
            ):
                depth = max(depth, self.block + 1)
            for one in (each, each._base):
                if one is not None and PLAIN not in (layout(each), layout(one)):
                    setattr(one, _DEPTH, max(depth, getattr(one, _DEPTH, 0)))

    def leave(self, out: Any) -> Any:
        """Return the rows of a result that are the batch's own. Raises InputError for other results."""
        if Count.used and Count.read:
            raise InputError(
                "convert: the model computes with the number of rows or edges, of which a batch has some"
            )
        if isinstance(out, (list, tuple)):
            found = list(map(self.leave, out))
            return type(out)(*found) if hasattr(out, "_fields") else type(out)(found)
        if isinstance(out, dict):
            return {name: self.leave(each) for name, each in out.items()}
        if not isinstance(out, (Tensor, int, float, str, type(None))):
            raise InputError(f"convert: on a batch a model returns tensors; this is a {type(out).__name__}")
        if not isinstance(out, Tensor) or layout(out) is PLAIN:
            return out
        if dims(out)[:1] != (Divided(self.lists.nodes),):
            raise InputError("convert: on a batch a model returns rows of the nodes alone")
        if self._depth(out) < len(self.blocks):
            self._uneven("fewer")
        return out[: self.blocks[-1].destinations]

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
        return over(out, self.lists.halo, dim, layout(x).numbers)

    def _check_right(self, x: Tensor) -> None:
        """Raise Refused unless a layer of the model runs, and the rows of all sources of its block are right."""
        if self.block >= len(self.blocks) or self._depth(x) > self.block:
            raise Refused(
                "needs rows of neighbours outside of this block, as of their degrees, a second propagation, or edges "
                "that a layer returned; use the whole graph"
            )

    def folded(self, x: Tensor, dim: int) -> Tensor:
        raise Refused("sums at the sources of edges, and a block has only some of their edges")

    def settled(self, index: Tensor) -> Tensor:
        raise Refused("puts values at the sources of edges, and a block has only some of their edges")

    def summed(self, part: Tensor) -> Tensor:
        raise Refused("reduces the rows of a batch, of which each rank has its own")

    def most(self, part: Tensor, least: bool = False) -> Tensor:
        return self.summed(part)

    def same(self, drawn: Tensor) -> None:
        raise Refused("draws random numbers on each rank; F.dropout draws by the numbers of nodes and edges")


def _as_pyg(conv: Any) -> bool:
    """Return whether the fused layer of a block computes what PyG's does on its edges, or, GCNConv, by all degrees."""
    return type(conv).__name__ in ("GCNConv", "GATConv") or (
        type(conv).__name__ == "SAGEConv" and conv.aggr in ("mean", "max")
    )
