"""Bags of embedding rows, pooled: rows are gathered once, and the kernels of aggregations sum them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from ...plan.blocks import BlockPlans, block_plans
from ...plan.workload import prefix_sum, rectangular
from ...runtime.backends.arguments import Rows
from ..graph.view import wrap_rows
from ..spans import first_order, span
from ..workspace import as_array
from .rows import ShardedRows


@dataclass(eq=False)
class Bags:
    """Bags of rows on one rank. A bag is a destination, and an entry of it an edge.

    rank: of the backend that sums. ids: int64 [E], numbers of rows among those of all ranks. lengths: int64 [n], number
    of entries of each bag.
    weight: [E], of the entries of sums, or None. divisor: [n], by which sums are divided, or None.
    """

    rank: int
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    weight: Tensor | None = None
    divisor: Tensor | None = None

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """Bounds of the bags' entries, int64 [n + 1]."""
        return prefix_sum(self.lengths)

    @cached_property
    def single(self) -> bool:
        """Whether each bag is the copy of one row."""
        return self.weight is None and len(self.ids) == len(self.lengths) and bool((self.lengths == 1).all())

    @cached_property
    def distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Distinct rows, ascending, and for each entry its place among them."""
        found, place = np.unique(self.ids, return_inverse=True)
        return found, place.astype(np.int32)

    @cached_property
    def plans(self) -> BlockPlans:
        """Plans of both directions over the distinct rows."""
        rows, place = self.distinct
        return block_plans(self.rank, self.indptr, place, len(rows))

    def plan(self) -> Bags:
        """Make the plans now. May be called from any thread, while another batch is computed."""
        _ = self.plans
        return self


WAYS = ("auto", "distinct", "direct")
TRIALS = 5  # of each way, the fastest of which counts


class Pooling:
    """Computes sums, means and maxima of bags over sharded rows.

    way: "distinct" gathers each distinct row of a batch once; "direct" copies a row for every entry of a bag
    through pointers, and needs no plan if every bag has one entry. "auto" times both on the first batch in
    training, and on the first in evaluation, and then uses the faster one. Both give bitwise equal results.
    Without pointers, with weights and for maxima, "distinct" is used in any case.
    """

    def __init__(self, rows: ShardedRows, way: str = "auto") -> None:
        self.rows, self.way, self._faster = rows, way, dict[bool, str]()

    def __call__(self, bags: Bags, maximum: bool = False) -> Tensor:
        """Return the pooled rows, [n, dim]. Collective, as its backward."""
        self.rows.publish()
        trains = torch.is_grad_enabled() and (
            self.rows.weight.requires_grad or (bags.weight is not None and bags.weight.requires_grad)
        )
        call = self, bags, maximum and not bags.single, trains
        out: Tensor = _Pooled.apply(self.rows.weight, bags.weight, call)
        return out

    def summed(self, bags: Bags, trains: bool) -> tuple[Tensor, Tensor | None]:
        """Return the sums [n, dim], and the distinct rows that they are of, if those were gathered."""
        way = self.way if self.rows.pointers and bags.weight is None else "distinct"
        if way == "auto":
            if trains not in self._faster and len(bags.ids):
                self._faster[trains] = self._measured(bags, trains)
            way = self._faster.get(trains, "distinct")
        return self._direct(bags) if way == "direct" else self._distinct(bags)

    def _measured(self, bags: Bags, trains: bool) -> str:
        if trains:
            bags.plan()  # the backward needs it in any case
        meter, taken = self.rows.backend.stream.meter, dict[str, float]()
        before = meter.taken()
        for name, run in (("distinct", self._distinct), ("direct", self._direct)) * TRIALS:
            new = bags if trains else replace(bags)
            began = time.perf_counter()
            run(new)
            self.rows.backend.stream.finish()
            taken[name] = min(taken.get(name, np.inf), time.perf_counter() - began)
        meter.taken()  # not of the batches
        meter.add(before)
        return min(taken, key=taken.__getitem__)

    def _distinct(self, bags: Bags) -> tuple[Tensor, Tensor]:
        x = self.rows.read(bags.distinct[0])
        return self.sum_rows(bags.plans.forward, x, bags.weight), x

    def _direct(self, bags: Bags) -> tuple[Tensor, None]:
        x = self.rows.read(bags.ids)
        if bags.single:
            return x, None
        places = np.arange(len(bags.ids), dtype=np.int32)
        return self.sum_rows(rectangular(bags.rank, bags.indptr, places, len(places)), x), None

    def sum_rows(self, plan: Any, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the sums of a plan of one chunk over private rows x."""
        out = self.rows.workspace.rows(plan.destinations, self.rows.dim, self.rows.dtype)
        self.rows.backend.aggregate(plan, "sum", self.wrapped(x), as_array(out), edge=as_array(weight))
        return out

    def wrapped(self, x: Tensor) -> Rows:
        """Return x [n, dim] as kernels' rows, copied where its layout is another one."""
        found = wrap_rows(x, self.rows.backend)
        if found is None:
            laid = self.rows.workspace.rows(len(x), x.shape[1], x.dtype).copy_(x)
            found = wrap_rows(laid, self.rows.backend)
        assert found is not None  # rows of the workspace are laid out as kernels' rows
        return found


class _Pooled(Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, sample: Tensor | None, call: tuple[Pooling, Bags, bool, bool]
    ) -> Tensor:
        pooling, bags, maximum, trains = call
        ctx.call, x, most = (pooling, bags), None, None
        with span("forward: embedding bags"):
            if maximum:
                x = pooling.rows.read(bags.distinct[0])
                out, most = _maximum(x, bags)
            else:
                out, x = pooling.summed(bags, trains)
            if bags.divisor is not None:
                out.div_(bags.divisor.to(out)[:, None])
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, most)
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        pooling, bags = ctx.call
        x, most = ctx.saved_tensors
        of_weight = of_sample = None
        with span("backward: embedding bags"):
            rows = pooling.rows
            if bags.divisor is not None:
                gradient = gradient / bags.divisor.to(gradient)[:, None]
            if x is not None and ctx.needs_input_grad[1]:
                of_sample = torch.empty(len(bags.ids), 1, dtype=bags.weight.dtype, device=gradient.device)
                target = as_array(gradient.contiguous())
                rows.backend.edges.sddmm(bags.plans.forward, pooling.wrapped(x), target, as_array(of_sample))
                of_sample = of_sample[:, 0]
            if ctx.needs_input_grad[0]:
                if most is not None:
                    summed = gradient.new_zeros(len(bags.distinct[0]), rows.dim)
                    # Of each element serially on CPUs. An empty bag has no maximum.
                    summed.scatter_add_(0, most[bags.lengths > 0], gradient[bags.lengths > 0])
                else:
                    edge = bags.weight
                    if edge is not None:
                        edge = edge.detach()[torch.from_numpy(bags.plans.order).to(edge.device)]
                    summed = pooling.sum_rows(bags.plans.backward, gradient, edge)
                of_weight = rows.change(*rows.collect(bags.distinct[0], summed))
        return of_weight, of_sample, None


def _maximum(x: Tensor, bags: Bags) -> tuple[Tensor, Tensor]:
    """Return the maxima [n, dim] of bags, and the place of each one's row: of the first of equal ones, as torch."""
    if not len(bags.ids):
        empty = x.new_zeros(len(bags.lengths), x.shape[1])
        return empty, empty.long()
    there = x.device
    place, offsets = (
        torch.from_numpy(each).to(there, torch.int64) for each in (bags.distinct[1], bags.indptr)
    )
    out, _, _, most = torch.embedding_bag(x.contiguous(), place, offsets, False, 2, include_last_offset=True)
    return out, most
