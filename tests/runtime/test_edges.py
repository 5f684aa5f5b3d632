"""Host kernels over edges against float64, over the table of hard cases: attention, maxima, dot products, each way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import cases
import ml_dtypes
import numpy as np
import pytest
import reference
import torch
from world import geometry_of, plans_of

from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options, RngKey
from mgg_hpc.runtime.backends.edges import Attention, TailedRows
from mgg_hpc.runtime.backends.host.components import padded
from mgg_hpc.runtime.backends.host.serial import SerialBackend
from mgg_hpc.runtime.backends.simulated import World

WORLDS = [(1, "direct"), *((ranks, transfer) for ranks in (2, 4) for transfer in ("direct", "get", "halo"))]
EPS = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}  # of the largest value
SHAPES = [(1, 7), (8, 8), (3, 5), (2, 16), (5, 1), (4, 4)]  # heads, columns of each


@dataclass
class Played:
    """All ranks of a case in one process; ``back`` sums over its edges reversed."""

    case: cases.Case
    transfer: str
    threads: int = 2
    back: bool = False
    world: World = field(init=False)

    def __post_init__(self):
        if self.back:
            source, destination = reference.edge_list(self.case.indptr, self.case.indices)
            self.case = cases.csr(destination, source, self.case.nodes, self.case.bounds)
        ranks = len(self.case.bounds) - 1
        world = World(ranks)
        options = Options(geometry_of(self.case), self.threads)
        self.backends = [SerialBackend(r, world, options) for r in range(ranks)]
        self.plans = plans_of(self.case, self.transfer)

    def mine(self, rank):
        return slice(int(self.case.bounds[rank]), int(self.case.bounds[rank + 1]))

    def run(self, layout, fill, call):
        """Rows by ``layout``, filled by fill(local, rows of the graph); then call(backend, plan, rows, rows of the
        graph) on each rank, twice. What it returns of the second time, by rank.
        """
        counts = np.diff(self.case.bounds)
        rows = [backend.rows(counts, layout.format, symmetric=True) for backend in self.backends]
        for rank, part in enumerate(rows):
            fill(part.local, self.mine(rank))
        for backend, plan in zip(self.backends, self.plans, strict=True):
            backend.prepare(plan, layout.format)

        def play(rank):
            for _ in range(2):
                found = call(self.backends[rank], self.plans[rank], rows[rank], self.mine(rank))
            return found

        with ThreadPoolExecutor(len(rows)) as pool:
            return list(pool.map(play, range(len(rows))))


def fill_with(layout, values, tail=(), ids=None):
    """What fills rows: arrays of the rows' type side by side, then of the accumulator's, then ids."""

    def fill(local, mine):
        local[:, : layout.values] = np.concatenate([each[mine] for each in values], 1)
        if not len(local):
            return
        shape = len(local), local.strides[0] // local.itemsize  # whole rows, padding included
        padded_rows = np.lib.stride_tricks.as_strided(local, shape, (local.strides[0], local.itemsize))
        for row_values, node in zip(padded_rows, range(mine.start, mine.stop), strict=True):
            whole = row_values.view(layout.accumulator)
            at = layout.first
            for each in tail:
                whole[at : at + each.shape[1]] = each[node]
                at += each.shape[1]
            if layout.with_id:
                whole.view(np.uint8)[at * whole.itemsize :][:8] = ids[node : node + 1].view(np.uint8)

    return fill


def nan(shape, kind):
    return np.full(shape, np.nan, kind)


def close(found, wanted, kind, terms=0.0):
    """terms: how large the values are whose differences are wanted."""
    wanted = np.asarray(wanted, np.float64)
    found = np.concatenate(found).astype(np.float64)
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()
    size = np.abs(wanted).max(initial=max(terms, 1e-30))
    assert np.abs(found - wanted).max(initial=0) <= EPS[np.dtype(kind).name] * size


def by_head(rows, how):
    return rows.reshape(len(rows), how.heads, how.channels)


@dataclass
class Problem:
    """Attention over a case with everything drawn, and what torch finds in float64 by the formula."""

    case: cases.Case
    heads: int
    channels: int
    kind: np.dtype
    rng: np.random.Generator
    additive: bool
    p: float
    scored: bool = False  # whether edges have scores of their own
    few: bool = (
        False  # whether scores are few numbers: equal ones, and 0, are among those of each destination
    )

    def __post_init__(self):
        rng, nodes, heads = self.rng, self.case.nodes, self.heads
        draw = lambda columns, kind: rng.standard_normal((nodes, columns)).astype(kind)  # noqa: E731
        layout = TailedRows(self.kind, 1)
        self.h = draw(heads * self.channels, self.kind)
        self.scores = [draw(heads, layout.accumulator) * 2 for _ in range(2)]
        edges = (len(self.case.indices), heads)
        self.edge_score = rng.standard_normal(edges).astype(layout.accumulator) if self.scored else None
        if self.few:
            self.scores = [np.rint(each) for each in self.scores]
            self.edge_score = None if self.edge_score is None else np.rint(self.edge_score)
        self.bias = rng.standard_normal(heads * self.channels).astype(layout.accumulator)
        self.gradient = draw(heads * self.channels, self.kind)
        self.ids = rng.permutation(np.arange(nodes) + (1 << 33))
        seed, epoch = int(rng.integers(2**40)), int(rng.integers(1, 300))
        drawn = RngKey(self.p, seed, epoch, 0x4001) if self.p else None
        self.how = Attention(heads, self.channels, self.additive, 0.25, drawn, self.ids if drawn else None)
        self.source, self.destination = reference.edge_list(self.case.indptr, self.case.indices)
        self.solve()

    def on(self, mine):
        """The attention as one rank calls for it."""
        return replace(self.how, ids=self.ids[mine]) if self.how.key else self.how

    def of_edges(self, plan, *, back=False):
        """Arguments for the scores of a rank's edges, or of its out-edges with room for their gradients."""
        if not self.scored:
            return {}
        case, values = self.case, self.edge_score
        if back:
            order = np.lexsort((self.destination, self.source))
            case, values = cases.csr(self.destination, self.source, case.nodes, case.bounds), values[order]
        mine = values[case.edges(plan.rank)][plan.edge]
        return {"edge_score": mine} | ({"edge_score_gradient": nan(mine.shape, mine.dtype)} if back else {})

    def edge_gradients(self, plans, found):
        """Gradients of the edges' scores in the CSR's order, from those of all ranks' out-edges."""
        parts = [np.empty_like(each) for each in found]
        for plan, part, each in zip(plans, parts, found, strict=True):
            part[plan.edge] = each
        order, whole = np.lexsort((self.destination, self.source)), np.concatenate(parts)
        gradients = np.empty_like(whole)
        gradients[order] = whole
        return gradients

    def solve(self):
        heads, nodes = self.heads, self.case.nodes
        h, *scores = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in (self.h, *self.scores))
        given = self.edge_score if self.scored else np.zeros((len(self.source), heads))
        scores.append(torch.tensor(given.astype(np.float64), requires_grad=True))
        u, v = torch.from_numpy(self.source), torch.from_numpy(self.destination)
        by_head = h.view(nodes, heads, self.channels)
        if self.additive:
            score = torch.nn.functional.leaky_relu(scores[0][u] + scores[1][v] + scores[2], 0.25)
        else:
            score = (by_head[u] * by_head[v]).sum(2) / self.channels**0.5
        index = v[:, None].expand_as(score)
        weight = torch.exp(score)
        weight = weight / torch.zeros(nodes, heads, dtype=torch.float64).scatter_add(0, index, weight)[v]
        keep = torch.ones_like(weight)
        if self.how.key:
            ends, key = (self.ids[self.source], self.ids[self.destination]), self.how.key
            kept = reference.kept_edges(*ends, heads, key.p, key.seed, key.epoch, key.stream)
            keep = torch.from_numpy(kept)
        messages = (weight * keep)[:, :, None] * by_head[u]
        out = torch.zeros(nodes, heads, self.channels, dtype=torch.float64).index_add(0, v, messages)
        flat = out.view(nodes, heads * self.channels)
        self.out = (flat + torch.from_numpy(self.bias.astype(np.float64))).detach().numpy()
        flat.backward(torch.from_numpy(self.gradient.astype(np.float64)))
        self.gradients = [None if each.grad is None else each.grad.numpy() for each in (h, *scores)]


def problem(rng, name, ranks, kind, *, additive, p, scored=False):
    heads, channels = SHAPES[rng.integers(len(SHAPES))]
    case, few = cases.CASES[name](rng, ranks), bool(rng.integers(2))
    return Problem(case, heads, channels, np.dtype(kind), rng, additive, p, scored, few)


def forward(task, played):
    """(out, log_sum, above, above_weight) by rank."""
    how, kind = task.how, task.kind
    layout = how.forward_rows(kind)
    wide = layout.accumulator
    tail = [task.scores[0]] if how.additive else []

    def call(backend, plan, rows, mine):
        n = mine.stop - mine.start
        out = padded(n, RowFormat(kind, how.columns))
        out[:] = np.nan
        made = {"log_sum": nan((n, how.heads), wide)}
        if how.additive:
            made |= {"above": nan((n, how.columns), wide), "above_weight": nan((n, how.heads), wide)}
        given = {"score": task.scores[1][mine]} if how.additive else {"h": task.h[mine]}
        given |= task.of_edges(plan)
        backend.edges.attend(plan, task.on(mine), rows, out, bias=task.bias, **given, **made)
        return out.copy(), *made.values()

    return played.run(layout, fill_with(layout, [task.h], tail, task.ids), call)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("scores", ["additive", "of edges too", "dot"])
@pytest.mark.parametrize(("ranks", "transfer"), WORLDS)
@pytest.mark.parametrize("name", cases.CASES)
def test_attention_and_its_gradients(rng, name, ranks, transfer, scores, p):
    kind, additive = rng.choice(["float32", "float64"]), scores != "dot"
    task = problem(rng, name, ranks, kind, additive=additive, p=p, scored=scores == "of edges too")
    how, wide = task.how, np.dtype(kind)
    found = forward(task, Played(task.case, transfer))
    out, log_sum = (np.concatenate([each[i] for each in found]) for i in range(2))
    close([out], task.out, kind)

    dot = by_head(task.gradient * (out - task.bias), how).sum(2).astype(wide)
    layout = how.backward_rows(wide)
    values, tail = ([task.gradient], [task.scores[1]]) if additive else ([task.gradient, task.h], [])
    fill = fill_with(layout, values, [*tail, log_sum, dot], task.ids)

    def at_source(backend, plan, rows, mine):
        n = mine.stop - mine.start
        back, of_score = nan((n, how.columns), wide), nan((n, how.heads), wide)
        given = {"score": task.scores[0][mine], "score_gradient": of_score} if additive else {}
        given |= task.of_edges(plan, back=True)
        backend.edges.attend_back(plan, task.on(mine), rows, back, at_source=True, h=task.h[mine], **given)
        return back, of_score, given.get("edge_score_gradient")

    reverse = Played(task.case, transfer, back=True)
    ends = reverse.run(layout, fill, at_source)
    if additive:
        terms = np.abs(task.gradients[0]).max(initial=0)
        close([each[0] for each in ends], task.gradients[0], kind)
        close([each[1] for each in ends], task.gradients[1], kind, terms)
        if task.scored:
            found_by_edge = task.edge_gradients(reverse.plans, [each[2] for each in ends])
            close([found_by_edge], task.gradients[3], kind, terms)
        above, above_weight = (np.concatenate([each[i] for each in found]) for i in (2, 3))
        product = by_head(task.gradient * above, how).sum(2)
        of_target = (1 - how.negative_slope) * (product - dot * above_weight)
        close([of_target], task.gradients[2], kind, terms)
        return
    layout = how.forward_rows(wide)

    def at_target(backend, plan, rows, mine):
        back = nan((mine.stop - mine.start, how.columns), wide)
        given = {"gradient": task.gradient[mine], "log_sum": log_sum[mine], "dot": dot[mine]}
        backend.edges.attend_back(plan, task.on(mine), rows, back, at_source=False, h=task.h[mine], **given)
        return back

    others = Played(task.case, transfer).run(layout, fill_with(layout, [task.h], [], task.ids), at_target)
    close([a[0] + b for a, b in zip(ends, others, strict=True)], task.gradients[0], kind)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("scores", ["additive", "of edges too", "dot"])
@pytest.mark.parametrize("transfer", ["direct", "get", "halo"])
def test_attention_of_half_rows(rng, transfer, scores, kind):
    additive, scored = scores != "dot", scores == "of edges too"
    task = problem(rng, "hub", 4, kind, additive=additive, p=0.3, scored=scored)
    found = forward(task, Played(task.case, transfer))
    close([each[0] for each in found], task.out, kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "transfer"), WORLDS)
@pytest.mark.parametrize("name", cases.CASES)
def test_maxima_their_ties_and_their_adjoint(rng, name, ranks, transfer):
    case = cases.CASES[name](rng, ranks)
    kind = np.dtype(rng.choice(["float32", "float64", "float16", "bfloat16"]))
    width = int(rng.choice(cases.WIDTHS[:-1]))
    # Neighbouring numbers of the type, and finer ones that are rounded to them: ties, and what is none by a bit.
    eps = ml_dtypes.finfo(kind).eps
    x = (1 + rng.integers(-12, 13, (case.nodes, width)) * (float(eps) / 4)).astype(kind)
    source, destination = reference.edge_list(case.indptr, case.indices)
    most = reference.aggregate(source, destination, case.nodes, x, reduce="max")
    ties = reference.max_ties(source, destination, case.nodes, x)
    layout = TailedRows(kind, width)

    def call(backend, plan, rows, mine):
        out, reached = nan(x[mine].shape, kind), nan(x[mine].shape, layout.accumulator)
        backend.edges.max_ties(plan, rows, out, reached)
        return out, reached

    found = Played(case, transfer).run(layout, fill_with(layout, [x]), call)
    assert np.array_equal(np.concatenate([each[0] for each in found]), most)
    assert np.array_equal(np.concatenate([each[1] for each in found]), ties)

    gradient = rng.integers(-4, 5, x.shape).astype(kind)
    wanted = np.zeros(x.shape)
    np.add.at(wanted, source, np.where(x[source] == most[destination], gradient[destination], 0))

    def back(backend, plan, rows, mine):
        out = nan(x[mine].shape, kind)
        backend.edges.max_back(plan, rows, x[mine], out)
        return out

    layout = TailedRows(kind, 2 * width)
    fill = fill_with(layout, [gradient, most.astype(kind)])
    close(Played(case, transfer, back=True).run(layout, fill, back), wanted, kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "transfer"), WORLDS)
@pytest.mark.parametrize("name", cases.CASES)
def test_weights_and_dot_products_by_head(rng, name, ranks, transfer):
    case = cases.CASES[name](rng, ranks)
    kind = np.dtype(rng.choice(["float32", "float64", "bfloat16"]))
    heads, channels = SHAPES[rng.integers(len(SHAPES))]
    columns = heads * channels
    layout = TailedRows(kind, columns)
    x, y = (rng.standard_normal((case.nodes, columns)).astype(kind) for _ in range(2))
    weight = rng.standard_normal((len(case.indices), heads)).astype(layout.accumulator)
    weight[rng.random(weight.shape) < 0.2] = 0
    source, destination = reference.edge_list(case.indptr, case.indices)
    by_head = [slice(k * channels, (k + 1) * channels) for k in range(heads)]

    def sums(backend, plan, rows, mine):
        out = nan(x[mine].shape, kind)
        backend.edges.weighted(plan, rows, weight[case.edges(plan.rank)][plan.edge], out)
        return out

    ends = source, destination
    wanted = [reference.aggregate(*ends, case.nodes, x[:, of], weight[:, k]) for k, of in enumerate(by_head)]
    close(Played(case, transfer).run(layout, fill_with(layout, [x]), sums), np.concatenate(wanted, 1), kind)

    def products(backend, plan, rows, mine):
        out, sorted_out = nan((2, plan.edges, heads), layout.accumulator)
        backend.edges.sddmm(plan, rows, y[mine], out)
        sorted_out[plan.edge] = out
        return sorted_out

    wanted = [reference.sddmm(source, destination, x[:, of], y[:, of]) for of in by_head]
    terms = reference.sddmm(source, destination, np.abs(x), np.abs(y)).max(initial=0)
    found = Played(case, transfer).run(layout, fill_with(layout, [x]), products)
    close(found, np.stack(wanted, 1), layout.accumulator, terms)


def test_the_same_bits_for_any_number_of_threads(rng):
    task = problem(rng, "hub", 2, "float32", additive=True, p=0.5)
    one, three = (forward(task, Played(task.case, "halo", threads)) for threads in (1, 3))
    for found, wanted in zip(three, one, strict=True):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_large_scores_do_not_overflow(rng):
    """Weights depend on differences of scores, and float32's exp ends at 88."""
    task = problem(rng, "ordinary", 1, "float32", additive=True, p=0.0)
    task.scores[1] += np.float32(1000 * rng.choice([-4, 4]))
    found = forward(task, Played(task.case, "direct"))
    scores = reference.additive_scores(task.source, task.destination, *task.scores, 0.25)
    h = by_head(task.h, task.how)
    wanted = reference.attention(task.source, task.destination, task.case.nodes, h, scores)
    wanted = wanted.reshape(task.case.nodes, -1) + task.bias
    found = np.concatenate([each[0] for each in found])
    assert np.abs(found - wanted).max() <= 2e-3 * np.abs(wanted).max()  # scores of 1000 have steps of 6e-5
