"""Scatter, ApplyEdge and Gather in one pass over the edges, forward and backward, without values of edges in memory.

Backward, sources sum over their out-edges: targets publish what the message read of them and the gradient g of their
sum, and each edge's message is computed anew. What the message read of a target needs no pass of its own where it is
computed column by column: the forward sums the message's derivative D over the edges, and the gradient is g D. Where
operators go across columns, targets take a second pass over their in-edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, autograd

from ...plan.workload import Plan
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.backends.tape import Tape
from .. import spans
from ..autograd.aggregation import mean_scale
from ..graph.matrix import Adjacency, EdgeValues
from ..graph.view import GraphView
from ..spans import first_order, span
from ..workspace import accumulator, as_array
from .compiling import Result, compiled, constant_room
from .expression import Expressions, Node


@dataclass(frozen=True)
class Operands:
    """Operands of one end. nodes: of the program. widths: columns of each, for all types where there are types."""

    nodes: tuple[Node, ...]
    widths: tuple[int, ...]

    @property
    def places(self) -> list[int]:
        """The first column of each where they lie beside each other, and the number of all columns."""
        places = [0]
        for width in self.widths:
            places.append(places[-1] + width)
        return places


@dataclass
class Propagation:
    """A column program with its operands, and the tapes that were made of it.

    result: the message's node. src, dst: operands that tensors are given for, in their order. shared: number of
    operands that all edges share. edge: the column of each operand of the edges.
    """

    program: Expressions
    result: int
    columns: int
    src: Operands
    dst: Operands
    shared: int
    edge: Mapping[Node, int]
    reduce: str
    _tapes: dict[tuple[Any, ...], tuple[Tape, list[float]]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Number of columns of the message."""
        return self.columns if self.program.nodes[self.result].wide else 1

    def by_target(self, wrt: tuple[int, ...]) -> bool:
        """Return whether gradients with respect to ``wrt`` follow from sums of derivatives (`forward`)."""
        crosses = any(self.program.nodes[i].op == "column_sum" for i in self.program.needed([self.result]))
        targets = [self.program.nodes[self._target(i)] for i in wrt]
        return not crosses and all(node.wide and node.type < 0 for node in targets)

    def forward(self, wrt: tuple[int, ...]) -> tuple[Tape, list[float]]:
        """Return the tape of the message and, by target, of its derivatives. wrt: numbers of dst, then of shared."""
        results = [Result(self.result, self.width)]
        if wrt:
            one = self.program.constant(1)
            if self.reduce == "max":
                results.append(Result(one, self.columns))
            for node in self.program.gradients(self.result, one, [self._target(i) for i in wrt]):
                results.append(Result(node, self.columns))
        places = self._places(far=self.src, near=self.dst)
        return self._made(("forward", wrt), results, places, self.src.places[-1])

    def maximum(self) -> tuple[Tape, list[float]]:
        """Return the tape of a maximum and the number of edges that reach it."""
        results = [Result(self.result, self.width), Result(self.program.constant(1), self.columns)]
        return self._made(
            ("maximum",), results, self._places(far=self.src, near=self.dst), self.src.places[-1]
        )

    def to_sources(self, wrt: tuple[int, ...]) -> tuple[Tape, list[float]]:
        """Return the tape of gradients of sources' operands, over out-edges."""
        far, gradient = self._with_gradient(self.dst)
        nodes = [self.program.add(self.src.nodes[i]) for i in wrt]
        results = [
            Result(node, self.src.widths[i], self.program.nodes[nodes[at]].type)
            for at, (i, node) in enumerate(zip(wrt, self._gradients(gradient, nodes), strict=True))
        ]
        return self._made(("sources", wrt), results, self._places(far=far, near=self.src), far.places[-1])

    def to_targets(self, wrt: tuple[int, ...]) -> tuple[Tape, list[float]]:
        """Return the tape of gradients of targets' and shared operands, over in-edges. wrt: as in `forward`."""
        near, gradient = self._with_gradient(self.dst)
        nodes = [self._target(i) for i in wrt]
        widths = [*self.dst.widths, *[self.columns] * self.shared]
        results = [
            Result(node, widths[i], self.program.nodes[target].type)
            for i, target, node in zip(wrt, nodes, self._gradients(gradient, nodes), strict=True)
        ]
        return self._made(
            ("targets", wrt), results, self._places(far=self.src, near=near), self.src.places[-1]
        )

    def _target(self, i: int) -> int:
        if i < len(self.dst.nodes):
            return self.program.add(self.dst.nodes[i])
        return self.program.operand("shared", i - len(self.dst.nodes), wide=True)

    def _with_gradient(self, dst: Operands) -> tuple[Operands, list[int]]:
        """Return targets' operands with the gradient behind them, and with the maximum; and the nodes of these."""
        wide = self.width == self.columns
        count = 1 + (self.reduce == "max")
        added = [Node("dst", index=len(dst.nodes) + i, wide=wide) for i in range(count)]
        widened = Operands((*dst.nodes, *added), (*dst.widths, *[self.width] * count))
        return widened, [self.program.add(node) for node in added]

    def _gradients(self, gradient: list[int], wrt: list[int]) -> list[int]:
        seed = gradient[0]
        if self.reduce == "max":
            seed = self.program.binary("mul", self.program.binary("equal", self.result, gradient[1]), seed)
        return self.program.gradients(self.result, seed, wrt)

    def _places(self, *, far: Operands, near: Operands) -> dict[Node, tuple[str, int]]:
        places: dict[Node, tuple[str, int]] = {node: ("edge", at) for node, at in self.edge.items()}
        places |= {node: ("far", at) for node, at in zip(far.nodes, far.places, strict=False)}
        places |= {node: ("near", at) for at, node in enumerate(near.nodes)}
        places |= {
            Node("shared", index=i, wide=True): ("shared", i * self.columns) for i in range(self.shared)
        }
        return places

    def _made(
        self,
        key: tuple[Any, ...],
        results: Sequence[Result],
        places: Mapping[Node, tuple[str, int]],
        far: int,
    ) -> tuple[Tape, list[float]]:
        if key not in self._tapes:
            self._tapes[key] = compiled(
                self.program,
                results,
                places,
                columns=self.columns,
                far_columns=max(far, 1),
                shared=self.shared * self.columns,
                reduce=self.reduce if key[0] in ("forward", "maximum") else "sum",
            )
        return self._tapes[key]


@dataclass(frozen=True)
class Call:
    """Arguments of a propagation beside its tensors. edge: the edges' values, or None. trains: whether gradients are
    wanted at all, which a Function cannot ask itself.
    """

    of: Propagation
    graph: GraphView
    adjacency: Adjacency
    edge: EdgeValues | None
    trains: bool


def propagate(call: Call, src: Sequence[Tensor], dst: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
    """Return the messages reduced over the in-edges of each destination, [n, width]. Collective, its backward too.

    src: [rows, width] for each of the sources' operands, dst: [n, width], shared: [columns].
    """
    out: Tensor = _Propagate.apply(call, *src, *dst, *shared)
    return out


class _Propagate(autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Tensor:
        of, graph = call.of, call.graph
        count = len(of.src.nodes)
        needs = [call.trains and need for need in ctx.needs_input_grad[1:]]
        wrt = tuple(i for i, need in enumerate(needs[count:]) if need)
        derived = wrt if of.by_target(wrt) else ()
        plan = call.adjacency.forward
        made = of.maximum() if of.reduce == "max" and any(needs) and not derived else of.forward(derived)
        end = count + len(of.dst.nodes)
        with span("forward: propagate"):
            rows = _offered(graph, tensors[:count], backward=False)
            graph.publish(rows, plan)
            near, shared = tensors[count:end], tensors[end:]
            results = run_tape(graph.backend, graph.dtype, plan, made, rows, near, shared, _edge(call, False))
        ctx.call, ctx.layer, ctx.wrt, ctx.needs = call, spans.current(), wrt, needs
        ctx.save_for_backward(*tensors, *(results if of.reduce == "max" else results[1:]))
        return results[0].to(graph.dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        of, graph, wrt, needs = call.of, call.graph, ctx.wrt, ctx.needs
        count, targets = len(of.src.nodes), len(of.dst.nodes)
        tensors = ctx.saved_tensors[: len(needs)]
        kept = list(ctx.saved_tensors[len(needs) :])
        wide = gradient.to(accumulator(graph.dtype))
        inverse = mean_scale(graph, call.adjacency) if of.reduce == "mean" else None
        of_rows = per_edge(of, wide, kept, inverse)
        found: list[Tensor | None] = [None] * len(needs)
        with span("backward: propagate"):
            derivatives = kept[2:] if of.reduce == "max" else kept
            if wrt and of.by_target(wrt):
                seed = wide if of.reduce == "mean" else of_rows[0]
                products = [seed * each for each in derivatives]
            elif wrt:
                products = _at_targets(call, wrt, tensors, of_rows)
            else:
                products = []
            for i, product in zip(wrt, products, strict=True):
                found[count + i] = product if i < targets else product.sum(0)
            sources = tuple(i for i in range(count) if needs[i])
            if sources:
                parts = _at_sources(call, sources, tensors, of_rows)
                for i, part in zip(sources, parts, strict=True):
                    found[i] = part
        return None, *(None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True))


def per_edge(
    of: Propagation, gradient: Tensor, kept: Sequence[Tensor], inverse_degree: Tensor | None
) -> list[Tensor]:
    """Return the gradient that each edge of a destination takes, and the maximum where only those that reach it do.

    kept: what the forward has kept: of a maximum, it and its ties. inverse_degree: [n], of means.
    """
    if of.reduce == "max":
        most, ties = kept[:2]
        return [gradient / ties.clamp(min=1), most]
    if inverse_degree is not None:
        return [gradient * inverse_degree[:, None].to(gradient.dtype)]
    return [gradient]


def _at_sources(
    call: Call, wrt: tuple[int, ...], tensors: Sequence[Tensor], gradient: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of sources' operands: sums over their out-edges."""
    of, graph, plan = call.of, call.graph, call.adjacency.backward
    count, end = len(of.src.nodes), len(of.src.nodes) + len(of.dst.nodes)
    rows = _offered(graph, [*tensors[count:end], *gradient], backward=True)
    graph.publish(rows, plan)
    made, near, shared = of.to_sources(wrt), tensors[:count], tensors[end:]
    return run_tape(graph.backend, graph.dtype, plan, made, rows, near, shared, _edge(call, True))


def _at_targets(
    call: Call, wrt: tuple[int, ...], tensors: Sequence[Tensor], gradient: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of targets' and shared operands: sums over in-edges."""
    of, graph, plan = call.of, call.graph, call.adjacency.forward
    count, end = len(of.src.nodes), len(of.src.nodes) + len(of.dst.nodes)
    rows = _offered(graph, tensors[:count], backward=False)
    graph.publish(rows, plan)
    made, near, shared = of.to_targets(wrt), [*tensors[count:end], *gradient], tensors[end:]
    return run_tape(graph.backend, graph.dtype, plan, made, rows, near, shared, _edge(call, False))


def _offered(graph: GraphView, values: Sequence[Tensor], *, backward: bool) -> Rows:
    """Return rows with these values beside each other, to be read along edges."""
    width = sum(value.shape[1] for value in values)
    rows, local = graph.exchange(max(width, 1), backward=backward)
    at = 0
    for value in values:
        local[:, at : at + value.shape[1]].copy_(value)
        at += value.shape[1]
    return rows


def _edge(call: Call, backward: bool) -> Tensor | None:
    if call.edge is None:
        return None
    return (call.edge.backward if backward else call.edge.forward).contiguous()


def run_tape(
    backend: Backend,
    dtype: torch.dtype,
    plan: Plan,
    made: tuple[Tape, list[float]],
    rows: Rows,
    near: Sequence[Tensor],
    shared: Sequence[Tensor],
    edge: Tensor | None,
) -> list[Tensor]:
    """Run a tape over a plan; return its outputs, [n, width] each, of the accumulator's type.

    made: the tape and its constants. rows: published, of ``dtype``. near: [n, width] of this end. shared: [columns] of
    all edges. edge: [E, D] in the plan's order, or None.
    """
    tape, constants = made
    wide, kernels, device = accumulator(dtype), backend.edges, backend.capabilities.device
    if kernels is None:
        raise TypeError(f"the backend {backend.capabilities.name} has no kernels over edges")
    # Both ends of an edge see the same values: those that crossed in rows of the graph's type.
    here = [value.to(dtype).to(wide).contiguous() for value in near]
    behind = torch.tensor(constants, dtype=wide, device=device)
    together = torch.cat(
        [
            *(value.to(wide).reshape(-1) for value in shared),
            behind.repeat_interleave(constant_room(tape.columns)),
        ]
    )
    out = [torch.empty(plan.destinations, each.width, dtype=wide, device=device) for each in tape.outputs]
    kernels.propagate(
        plan,
        tape,
        rows,
        near=[as_array(value) for value in here],
        shared=as_array(together),
        edge=as_array(edge),
        out=[as_array(value) for value in out],
    )
    return out
