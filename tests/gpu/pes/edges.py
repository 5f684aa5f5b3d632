"""What is computed edge by edge, for the table of cases: attention, maxima and values of edges, each way and by any
transfer; against float64."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import cases
import ml_dtypes
import numpy as np
import reference
import torch

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Geometry, RngKey
from mgg_hpc.runtime.backends.edges import Attention, TailedRows
from mgg_hpc.runtime.backends.simulated import all_reachable

from .engine import SMALL, Engine
from .played import Played, drawn_reach

# Heads, and columns of each: parts of a pack and whole ones, in one pass and in two.
SHAPES = [(1, 1), (5, 1), (1, 7), (3, 7), (8, 4), (8, 8), (2, 33), (2, 40), (1, 129), (1, 160)]
# Over a halo, which holds its staging: from the third call on credits are waited for, and who only sends runs ahead.
CALLS, FEW_CALLS = 5, 3
BOUND = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}  # of the largest value
SLOPE = 0.25


def drawn_shape(rng: np.random.Generator) -> tuple[int, int]:
    """(heads, columns of each)."""
    return SHAPES[rng.integers(len(SHAPES))]


def reversed_edges(case: cases.Case) -> cases.Case:
    """What a backward sums over."""
    source, destination = reference.edge_list(case.indptr, case.indices)
    return cases.csr(destination, source, case.nodes, case.bounds)


def as_rows(
    layout: TailedRows, values: list[np.ndarray], tail: list[np.ndarray], ids: np.ndarray
) -> np.ndarray:
    """All nodes' rows, bit by bit: arrays of the rows' type side by side, then of the accumulator's, then ids."""
    gap = layout.first * layout.accumulator.itemsize - layout.values * layout.dtype.itemsize
    arrays = [*values, np.zeros((len(ids), gap), np.uint8), *tail]
    arrays += [ids.astype(np.int64)[:, None]] if layout.with_id else []
    parts = [np.ascontiguousarray(each).view(np.uint8) for each in arrays if each.shape[1]]
    return np.ascontiguousarray(np.concatenate(parts, 1)).view(layout.dtype)


class Edges:
    """A case on every rank, with calls over several sets of rows. halo: as they arrive; else by pointers."""

    def __init__(
        self, engine: Engine, case: cases.Case, entry: Any, rng: np.random.Generator, halo: bool
    ) -> None:
        self.engine, self.case, self.rng, self.threads = engine, case, rng, 2
        self.transfer = "halo" if halo else str(rng.choice(["direct", "get"]))
        if engine.device == "serial":
            self.transfer = entry.transfer
        self.geometry = rng.choice([SMALL, Geometry(3, 2, 1), Geometry(32, 2, 2)])  # type: ignore[arg-type]
        self.reaches = drawn_reach(engine, len(case.bounds) - 1, rng) if halo else all_reachable

    def again(self) -> Edges:
        """What must give the same bits: by pointers, or on CPUs with another number of threads."""
        other = copy(self)
        if self.engine.device == "serial":
            other.threads = 3
        else:
            other.transfer, other.reaches = "direct", all_reachable
        return other

    def calls(self, case, layout, shape, sets, outputs, given, call, ready=None):
        """`Played.run`, in float64. sets: of all nodes' rows. shape: heads, and columns of each, of `ready_edges`."""
        chunk_bytes = int(self.rng.choice([2000, 1 << 17]))
        played = Played(
            self.engine,
            case,
            sets[0],
            self.geometry,
            self.transfer,
            self.reaches,
            chunk_bytes,
            threads=self.threads,
        )

        def ready_edges(backend, plan, rows):
            backend.edges.ready_edges(plan, rows, layout, *shape)

        rows = [played.rows, *(played.more_rows(x) for x in sets[1:])]
        found = played.run(self.rng, rows, outputs, given, call, ready or ready_edges)
        return [{name: array.astype(np.float64) for name, array in each.items()} for each in found]


def close(found: np.ndarray, wanted: np.ndarray, dtype: np.dtype, terms: float = 0.0) -> float:
    """The worst error as a share of what is allowed. terms: how large the values are whose differences are wanted."""
    assert found.shape == wanted.shape
    assert np.isfinite(found).all(), "values that are not finite"
    bound = BOUND[dtype.name] * np.abs(wanted).max(initial=max(terms, 1e-30))
    worst = float(np.abs(found - wanted).max(initial=0.0) / bound)
    assert worst <= 1, f"beyond the bound by a factor of {worst:.3g}"
    return worst


@dataclass
class Problem:
    """Attention over a case with everything drawn, and what torch finds in float64 by the formula."""

    case: cases.Case
    dtype: np.dtype
    rng: np.random.Generator
    graphs: bool  # whether the epoch may lie in memory, as CUDA graphs have it

    def __post_init__(self) -> None:
        rng, nodes = self.rng, self.case.nodes
        self.shape = heads, channels = drawn_shape(rng)
        p = float(rng.choice([0.0, 0.4]))
        key = RngKey(p, int(rng.integers(2**62)), int(rng.integers(1, 300)), 0x4001) if p else None
        self.ids = rng.permutation(np.arange(nodes) + (1 << 33))
        self.how = Attention(heads, channels, bool(rng.random() < 0.6), SLOPE, key)
        self.epoch_at = self.graphs and bool(rng.random() < 0.5)
        wide = TailedRows(self.dtype, 1).accumulator
        self.h = [self._drawn(self.how.columns, self.dtype) for _ in range(FEW_CALLS)]
        self.scores = [self._drawn(heads, wide) * 2 for _ in range(2)]
        self.gradient = self._drawn(self.how.columns, self.dtype)
        self.scored = self.how.additive and bool(rng.random() < 0.5)  # whether edges have scores of their own
        of_edges = rng.standard_normal((len(self.case.indices), heads)) * self.scored
        self.edge_score = of_edges.astype(wide)
        if rng.random() < 0.3:  # few numbers: equal ones, and 0, are among those of each destination
            self.scores, self.edge_score = [np.rint(each) for each in self.scores], np.rint(self.edge_score)
        # Weights depend on differences of scores, and float32's exp ends at 88.
        self.large = self.how.additive and bool(rng.random() < 0.1)
        self.scores[1] += wide.type(4000 * self.large * rng.choice([-1, 1]))
        self.bias = rng.standard_normal(self.how.columns).astype(wide)
        self.source, self.destination = reference.edge_list(self.case.indptr, self.case.indices)
        self.common = {"ids": self.ids, "epoch": np.array([key.epoch if key else 0], np.int32)}
        self.keep = np.ones((len(self.source), heads))
        if key:
            ends = self.ids[self.source], self.ids[self.destination]
            self.keep = reference.kept_edges(*ends, heads, p, key.seed, key.epoch, key.stream)

    def _drawn(self, columns: int, dtype: np.dtype) -> np.ndarray:
        return self.rng.standard_normal((self.case.nodes, columns)).astype(dtype)

    def on(self, mine: dict) -> Attention:
        """The attention as one rank calls for it."""
        key = self.how.key
        if key and self.epoch_at:
            key = replace(key, epoch=0, epoch_at=mine["epoch"])
        return replace(self.how, ids=mine["ids"], key=key) if key else self.how

    def by_head(self, rows: np.ndarray) -> np.ndarray:
        return rows.astype(np.float64).reshape(len(rows), self.how.heads, self.how.channels)

    def output(self, h: np.ndarray) -> np.ndarray:
        """In float64, by the reference."""
        ends = self.source, self.destination
        rows = self.by_head(h)
        scores = reference.dot_scores(*ends, rows)
        if self.how.additive:
            scores = reference.additive_scores(*ends, *self.scores, SLOPE, self.edge_score)
        found = reference.attention(*ends, self.case.nodes, rows, scores, self.keep)
        return found.reshape(self.case.nodes, self.how.columns) + self.bias

    def gradients(self) -> list[np.ndarray]:
        """Return torch's gradients of the last h, and of the three scores where attention is additive."""
        given = (self.h[-1], *self.scores, self.edge_score)
        h, *scores = (torch.tensor(each.astype(np.float64), requires_grad=True) for each in given)
        u, v = torch.from_numpy(self.source), torch.from_numpy(self.destination)
        rows = h.view(self.case.nodes, self.how.heads, self.how.channels)
        score = (rows[u] * rows[v]).sum(2) * self.how.scale
        if self.how.additive:
            score = torch.nn.functional.leaky_relu(scores[0][u] + scores[1][v] + scores[2], SLOPE)
        index = v[:, None].expand_as(score)
        lowest = torch.full((self.case.nodes, self.how.heads), -torch.inf, dtype=torch.float64)
        most = lowest.scatter_reduce(0, index, score.detach(), "amax")
        weight = torch.exp(score - most[v])
        weight = weight / torch.zeros_like(lowest).scatter_add(0, index, weight)[v]
        messages = (weight * torch.from_numpy(self.keep))[:, :, None] * rows[u]
        out = torch.zeros_like(rows).index_add(0, v, messages)
        out.backward(torch.from_numpy(self.by_head(self.gradient)))
        return [np.zeros(0) if each.grad is None else each.grad.numpy() for each in (h, *scores)]


def of_call(mine: dict) -> dict:
    """What a call takes of arrays that are not the key's."""
    return {name: array for name, array in mine.items() if name not in ("ids", "epoch")}


def attention(engine, case, entry, rng, *, halo=False):
    """Forward over several sets of rows, then the gradients of the last: at sources, and at targets."""
    dtype = np.dtype(entry.dtype)
    task, edges = Problem(case, dtype, rng, engine.device != "serial"), Edges(engine, case, entry, rng, halo)
    how, wide = task.how, TailedRows(dtype, 1).accumulator
    of_head, of_rows, of_sums = (
        RowFormat(each, width)
        for each, width in ((wide, how.heads), (dtype, how.columns), (wide, how.columns))
    )
    layout, bias = how.forward_rows(dtype), engine.array(task.bias)
    tail = [task.scores[0]] if how.additive else []
    given = task.common | ({"score": task.scores[1]} if how.additive else {"h": task.h[-1]})
    given |= {"edge_score": task.edge_score} if task.scored else {}
    sets = task.h if how.additive else task.h[-1:]  # of dot products targets' rows would change too
    made = {"out": of_rows, "log_sum": of_head}
    made |= {"above": of_sums, "above_weight": of_head} if how.additive else {}

    def forward(backend, plan, rows, out, mine):
        backend.edges.attend(plan, task.on(mine), rows, bias=bias, **out, **of_call(mine))

    sets_of_rows = [as_rows(layout, [h], tail, task.ids) for h in sets]
    found = edges.calls(case, layout, task.shape, sets_of_rows, made, given, forward)
    # Scores of thousands have steps of 2e-4: outputs are compared as half rows are, and gradients are not.
    kind = np.dtype(np.float16) if task.large and dtype.itemsize > 2 else dtype
    worst = max(close(each["out"], task.output(h), kind) for each, h in zip(found, sets, strict=True))
    last = found[-1]
    (again,) = edges.again().calls(case, layout, task.shape, sets_of_rows[-1:], made, given, forward)
    for name in made:
        assert again[name].tobytes() == last[name].tobytes(), (
            f"{edges.transfer}: other bits of {name} the second time"
        )
    if task.large:
        return worst
    # Of stored outputs the dot products would carry their rounding to the gradients of all edges.
    exact = task.output(sets[-1]) - task.bias
    dot = (task.by_head(task.gradient) * task.by_head(exact)).sum(2).astype(wide)
    kept = [last["log_sum"].astype(wide), dot]
    return max(worst, gradients(task, edges, last, kept))


def gradients(task, edges, forward, kept):
    """See `attention`. kept: log_sum and dot of each node."""
    how, dtype, case = task.how, task.dtype, task.case
    wide = kept[0].dtype
    of_rows, of_head = RowFormat(dtype, how.columns), RowFormat(wide, how.heads)
    layout, h = how.backward_rows(dtype), task.h[-1]
    values, tail = ([task.gradient], [task.scores[1], *kept]) if how.additive else ([task.gradient, h], kept)
    given = task.common | {"h": h} | ({"score": task.scores[0]} if how.additive else {})
    made = {"out": of_rows} | ({"score_gradient": of_head} if how.additive else {})
    reverse = np.lexsort((task.destination, task.source))  # as reversed_edges sorts them
    if task.scored:
        given |= {"edge_score": task.edge_score[reverse]}
        made |= {"edge_score_gradient": how.heads}

    def at_source(backend, plan, rows, out, mine):
        backend.edges.attend_back(plan, task.on(mine), rows, at_source=True, **out, **of_call(mine))

    sets = [as_rows(layout, values, tail, task.ids)]
    (ends,) = edges.calls(reversed_edges(case), layout, task.shape, sets, made, given, at_source)
    wanted = task.gradients()
    terms = float(np.abs(task.gradient).max(initial=0) * np.abs(h).max(initial=0)) * how.channels**0.5
    if how.additive:
        product = (task.by_head(task.gradient) * task.by_head(forward["above"])).sum(2)
        of_target = (1 - SLOPE) * (product - kept[1] * forward["above_weight"])
        by_edge = ends.get("edge_score_gradient", np.zeros((0, how.heads)))
        return max(
            close(by_edge, wanted[3][reverse][: len(by_edge)], dtype, terms),
            close(ends["out"], wanted[0], dtype),
            close(ends["score_gradient"], wanted[1], dtype, terms),
            close(of_target, wanted[2], dtype, terms),
        )
    layout, given = how.forward_rows(dtype), given | {"gradient": task.gradient}
    given |= {"log_sum": kept[0], "dot": kept[1]}

    def at_target(backend, plan, rows, out, mine):
        backend.edges.attend_back(plan, task.on(mine), rows, at_source=False, **out, **of_call(mine))

    sets = [as_rows(layout, [h], [], task.ids)]
    (others,) = edges.calls(case, layout, task.shape, sets, {"out": of_rows}, given, at_target)
    return close(ends["out"] + others["out"], wanted[0], dtype)


def maxima_back(engine, case, entry, rng, *, halo=False):
    """Maxima with their ties, exact; and their adjoint, of whole numbers exact too but for storing halves."""
    dtype, (_, width) = np.dtype(entry.dtype), drawn_shape(rng)
    edges = Edges(engine, case, entry, rng, halo)
    # Neighbouring numbers of the type, and finer ones that are rounded to them: ties, and what is none by a bit.
    step = float(ml_dtypes.finfo(dtype).eps) / 4
    sets = [(1 + rng.integers(-12, 13, (case.nodes, width)) * step).astype(dtype) for _ in range(CALLS)]
    source, destination = reference.edge_list(case.indptr, case.indices)
    made = {"out": RowFormat(dtype, width), "ties": RowFormat(TailedRows(dtype, width).accumulator, width)}

    def forward(backend, plan, rows, out, mine):
        backend.edges.max_ties(plan, rows, **out)

    found = edges.calls(case, TailedRows(dtype, width), (1, width), sets, made, {}, forward)
    for x, each in zip(sets, found, strict=True):
        most = reference.aggregate(source, destination, case.nodes, x, reduce="max")
        assert (each["out"] == most).all(), "other maxima"
        assert (each["ties"] == reference.max_ties(source, destination, case.nodes, x)).all(), "other ties"
    gradient = rng.integers(-4, 5, x.shape).astype(dtype)
    wanted = np.zeros(x.shape)
    np.add.at(wanted, source, np.where(x[source] == most[destination], gradient[destination], 0))
    layout = TailedRows(dtype, 2 * width)

    def back(backend, plan, rows, out, mine):
        backend.edges.max_back(plan, rows, mine["x"], **out)

    rows = [np.concatenate([gradient, most.astype(dtype)], 1)]
    made = {"out": made["out"]}
    (found,) = edges.calls(reversed_edges(case), layout, (1, width), rows, made, {"x": x}, back)
    return close(found["out"], wanted.astype(dtype).astype(np.float64), dtype)


def values_by_head(engine, case, entry, rng, *, halo=False):
    """Sums with a weight for each edge and head, and dot products for each edge and head."""
    dtype, edges = np.dtype(entry.dtype), Edges(engine, case, entry, rng, halo)
    heads, channels = drawn_shape(rng)
    columns = heads * channels
    layout, of_rows = TailedRows(dtype, columns), RowFormat(dtype, columns)
    x, y = (rng.standard_normal((case.nodes, columns)).astype(dtype) for _ in range(2))
    weight = rng.standard_normal((len(case.indices), heads)).astype(layout.accumulator)
    weight[rng.random(weight.shape) < 0.2] = 0
    source, destination = reference.edge_list(case.indptr, case.indices)
    each = [slice(k * channels, (k + 1) * channels) for k in range(heads)]

    def sums(backend, plan, rows, out, mine):
        backend.edges.weighted(plan, rows, mine["edges"], **out)

    (found,) = edges.calls(case, layout, (heads, channels), [x], {"out": of_rows}, {"edges": weight}, sums)
    wanted = [
        reference.aggregate(source, destination, case.nodes, x[:, of], weight[:, k])
        for k, of in enumerate(each)
    ]
    worst = close(found["out"], np.concatenate(wanted, 1), dtype)

    def products(backend, plan, rows, out, mine):
        backend.edges.sddmm(plan, rows, mine["y"], out["edges"])

    (found,) = edges.calls(case, layout, (heads, channels), [x], {"edges": heads}, {"y": y}, products)
    wanted = [reference.sddmm(source, destination, x[:, of], y[:, of]) for of in each]
    terms = float(reference.sddmm(source, destination, np.abs(x), np.abs(y)).max(initial=0))
    return max(worst, close(found["edges"], np.stack(wanted, 1), layout.accumulator, terms))


def over_a_halo(engine, case, entry, rng):
    """One of them."""
    check = (attention, maxima_back, values_by_head)[rng.integers(3)]
    return check(engine, case, entry, rng, halo=True)
