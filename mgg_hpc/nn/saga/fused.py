"""Scatter, ApplyEdge and Gather in one pass over the edges, forward and backward, with no row per edge.

In the backward, each source sums over its out-edges: destinations publish their operands and the gradient g of
their sum, and the message of each edge is computed again. The gradients of a destination's operands need no
second pass if all operators work column by column: the forward also sums the derivative D of the message over
the edges, and the gradient is g * D. If the program has sums over columns, destinations make a second pass over
their in-edges.

The near end of an edge is the one whose sum is computed, the far end the other: its destination and source in
the forward, the reverse in a pass over out-edges.
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
from ...runtime.backends.edges import TapeArrays
from ...runtime.backends.tape import Tape
from .. import spans
from ..autograd.aggregation import mean_scale
from ..graph.matrix import Adjacency, EdgeValues
from ..graph.view import GraphView
from ..spans import first_order, span
from ..workspace import accumulator, as_array
from .expression import Expressions, Node, Result, compiled, constant_room


@dataclass(frozen=True)
class Operands:
    """Operands of one end of the edges.

    nodes: their nodes in the program. widths: number of columns of each, over all types if it has columns per
    type.
    """

    nodes: tuple[Node, ...]
    widths: tuple[int, ...]

    @property
    def places(self) -> list[int]:
        """First column of each operand after concatenation, and the total number of columns."""
        places = [0]
        for width in self.widths:
            places.append(places[-1] + width)
        return places


@dataclass
class Propagation:
    """A column program with its operands, and the tapes that were compiled from it.

    result: node of the message. columns: number of columns of wide values. src, dst: operands of sources and of
    destinations, in the order of their tensors. shared: number of operands that all edges share. edge: for each
    operand in the edge data, its column there. reduce: "sum", "mean" or "max".
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
        """Return True if the gradients of ``wrt`` need no second pass, as `forward` can sum the derivatives.

        wrt: numbers of operands, as for `forward`.
        """
        crosses = any(self.program.nodes[i].op == "column_sum" for i in self.program.needed([self.result]))
        targets = [self.program.nodes[self._target(i)] for i in wrt]
        return not crosses and all(node.wide and node.type < 0 for node in targets)

    def forward(self, wrt: tuple[int, ...], *, trains: bool) -> tuple[Tape, list[float]]:
        """Return the forward tape, which reduces the messages, and its constants.

        wrt: numbers of operands, those of dst first, then the shared ones; the tape has a further output for
        the derivative by each. trains: if messages are reduced to a maximum, count the edges that attain it,
        too.
        """
        results, one = [Result(self.result, self.width)], self.program.constant(1)
        if trains and self.reduce == "max":
            results.append(Result(one, self.columns))
        if wrt:
            derivatives = self.program.gradients(self.result, one, [self._target(i) for i in wrt])
            results += [Result(node, self.columns) for node in derivatives]
        return self._compiled(("forward", wrt, trains and self.reduce == "max"), results, self.src, self.dst)

    def gradients(self, end: str, wrt: tuple[int, ...]) -> tuple[Tape, list[float]]:
        """Return the tape that sums the gradients of operands at one end of the edges, and its constants.

        It reads the rows that `backward` returns. end: "src" to sum over out-edges, "dst" over in-edges. wrt:
        numbers of operands: of src, or, for "dst", of dst first, then the shared ones.
        """
        count = 1 + (self.reduce == "max")
        wide = self.width == self.columns
        added = [Node("dst", index=len(self.dst.nodes) + i, wide=wide) for i in range(count)]
        published = Operands((*self.dst.nodes, *added), (*self.dst.widths, *[self.width] * count))
        seed, *most = [self.program.add(node) for node in added]
        if most:
            seed = self.program.binary("mul", self.program.binary("equal", self.result, most[0]), seed)
        if end == "src":
            nodes = [self.program.add(self.src.nodes[i]) for i in wrt]
            widths, far, near = self.src.widths, published, self.src
        else:
            nodes = [self._target(i) for i in wrt]
            widths, far, near = (*self.dst.widths, *[self.columns] * self.shared), self.src, published
        found = self.program.gradients(self.result, seed, nodes)
        results = [
            Result(gradient, widths[i], self.program.nodes[node].type)
            for i, node, gradient in zip(wrt, nodes, found, strict=True)
        ]
        return self._compiled((end, wrt), results, far, near)

    def backward(
        self, gradient: Tensor, kept: Sequence[Tensor], inverse_degree: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the rows that destinations publish, and the gradients of the operands ``wrt`` of `forward`.

        The rows are the gradient of each message of the destination and, for maxima, the maximum; all are [n,
        width]. gradient: [n, width], gradient of the reduced messages. kept: outputs of the forward tape, for
        sums and means without the first. inverse_degree: [n], for means.
        """
        if self.reduce == "max":
            most, ties, *derivatives = kept
            share = gradient / ties.clamp(min=1)
            return [share, most], [share * each for each in derivatives]
        products = [gradient * each for each in kept]
        if inverse_degree is not None:
            gradient = gradient * inverse_degree[:, None].to(gradient.dtype)
        return [gradient], products

    def _target(self, i: int) -> int:
        if i < len(self.dst.nodes):
            return self.program.add(self.dst.nodes[i])
        return self.program.operand("shared", i - len(self.dst.nodes), wide=True)

    def _compiled(
        self, key: tuple[Any, ...], results: Sequence[Result], far: Operands, near: Operands
    ) -> tuple[Tape, list[float]]:
        """Return the tape that computes ``results``, and its constants. It is compiled once for each ``key``.

        far, near: operands of the far and the near end of the edges.
        """
        if key in self._tapes:
            return self._tapes[key]
        places: dict[Node, tuple[str, int]] = {node: ("edge", at) for node, at in self.edge.items()}
        places |= {node: ("far", at) for node, at in zip(far.nodes, far.places, strict=False)}
        places |= {node: ("near", at) for at, node in enumerate(near.nodes)}
        places |= {
            Node("shared", index=i, wide=True): ("shared", i * self.columns) for i in range(self.shared)
        }
        self._tapes[key] = compiled(
            self.program,
            results,
            places,
            columns=self.columns,
            far_columns=max(far.places[-1], 1),
            shared=self.shared * self.columns,
            reduce=self.reduce if key[0] == "forward" else "sum",
        )
        return self._tapes[key]


@dataclass(frozen=True)
class Call:
    """Arguments of `Propagate` that are not tensors.

    of: the program. edge: edge data that it reads, or None. trains: torch.is_grad_enabled() at the call; within
    an autograd Function it is always False.
    """

    of: Propagation
    graph: GraphView
    adjacency: Adjacency
    edge: EdgeValues | None
    trains: bool


class Propagate(autograd.Function):
    """Compute messages and reduce them over the in-edges of each destination, [n, width].

    Collective, as its backward. tensors: [rows, width] for each source operand, then [n, width] for each
    destination operand, then [columns] for each shared operand.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Tensor:
        of = call.of
        src, dst, shared = _split(of, tensors)
        needs = [call.trains and need for need in ctx.needs_input_grad[1:]]
        wrt = tuple(i for i, need in enumerate(needs[len(src) :]) if need)
        made = of.forward(wrt if of.by_target(wrt) else (), trains=any(needs))
        with span("forward: propagate"):
            results = _run(call, made, src, dst, shared)
        ctx.call, ctx.layer, ctx.wrt, ctx.needs = call, spans.current(), wrt, needs
        ctx.save_for_backward(*tensors, *(results if of.reduce == "max" else results[1:]))
        return results[0].to(call.graph.dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        of, graph, wrt, needs = call.of, call.graph, ctx.wrt, ctx.needs
        tensors, kept = ctx.saved_tensors[: len(needs)], ctx.saved_tensors[len(needs) :]
        src, dst, shared = _split(of, tensors)
        wide = gradient.to(accumulator(graph.dtype))
        inverse = mean_scale(graph, call.adjacency) if of.reduce == "mean" else None
        found: list[Tensor | None] = [None] * len(needs)
        with span("backward: propagate"):
            published, products = of.backward(wide, kept, inverse)
            if wrt and not of.by_target(wrt):
                products = _run(call, of.gradients("dst", wrt), src, [*dst, *published], shared)
            for i, product in zip(wrt, products, strict=True):
                found[len(src) + i] = product if i < len(dst) else product.sum(0)
            sources = tuple(i for i in range(len(src)) if needs[i])
            if sources:
                made = of.gradients("src", sources)
                parts = _run(call, made, [*dst, *published], src, shared, backward=True)
                for i, part in zip(sources, parts, strict=True):
                    found[i] = part
        return None, *(None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True))


def _split(of: Propagation, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
    """Split ``tensors`` into those of source, destination and shared operands."""
    count, end = len(of.src.nodes), len(of.src.nodes) + len(of.dst.nodes)
    return tensors[:count], tensors[count:end], tensors[end:]


def _run(
    call: Call,
    made: tuple[Tape, list[float]],
    far: Sequence[Tensor],
    near: Sequence[Tensor],
    shared: Sequence[Tensor],
    *,
    backward: bool = False,
) -> list[Tensor]:
    """Publish the operands of the far ends of the edges, and run a tape over this rank's edges. Collective.

    made: the tape and its constants. far: operands of this rank's nodes as far ends, [n, width] each; ranks
    read those of the others. near: operands of its nodes as near ends, [n, width] each. shared: [columns] each.
    backward: True to run over out-edges (the far end is the destination), False over in-edges. Returns the
    tape's outputs, [n, width] each.
    """
    graph, plan = call.graph, call.adjacency.backward if backward else call.adjacency.forward
    rows, local = graph.exchange(max(sum(value.shape[1] for value in far), 1), backward=backward)
    at = 0
    for value in far:
        local[:, at : at + value.shape[1]].copy_(value)
        at += value.shape[1]
    graph.publish(rows, plan)
    edge = None
    if call.edge is not None:
        edge = (call.edge.backward if backward else call.edge.forward).contiguous()
    return run_tape(graph.backend, graph.dtype, plan, made, rows, near, shared, edge)


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
    """Run a tape over a plan; return its outputs, [n, width] each, of the accumulator's dtype.

    made: the tape and its constants. rows: published operands of the far ends of the edges, of ``dtype``. near:
    operands of the near ends, [n, width] each. shared: operands of all edges, [columns] each. edge: edge data
    [E, D] in the plan's order, or None.
    """
    tape, constants = made
    wide, kernels, device = accumulator(dtype), backend.edges, backend.capabilities.device
    if kernels is None:
        raise TypeError(f"the backend {backend.capabilities.name} has no kernels over edges")
    # Both ends of an edge read the same values: rounded to the type of the rows that are exchanged.
    here = [value.to(dtype).to(wide).contiguous() for value in near]
    behind = torch.tensor(constants, dtype=wide, device=device)
    together = torch.cat(
        [
            *(value.to(wide).reshape(-1) for value in shared),
            behind.repeat_interleave(constant_room(tape.columns)),
        ]
    )
    out = [torch.empty(plan.destinations, each.width, dtype=wide, device=device) for each in tape.outputs]
    arrays = TapeArrays([*map(as_array, here)], as_array(together), [*map(as_array, out)], as_array(edge))
    kernels.propagate(plan, tape, rows, arrays)
    return out
