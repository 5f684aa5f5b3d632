"""Reference for every kernel: float64 NumPy over edge lists, written from the formulas.

The tests compare kernels with it, so nothing here may be derived from the kernels. Speed does not matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def edge_list(indptr: Ids, indices: NDArray[np.integer]) -> tuple[Ids, Ids]:
    """Return (sources, destinations) of an in-edge CSR: row v lists the sources of the edges u -> v."""
    destinations = np.concatenate(
        [np.full(indptr[v + 1] - indptr[v], v, np.int64) for v in range(len(indptr) - 1)]
        or [np.zeros(0, np.int64)]
    )
    return np.asarray(indices, np.int64), destinations


def aggregate(
    source: Ids,
    destination: Ids,
    nodes: int,
    x: NDArray[np.floating],
    weight: object = None,
    reduce: str = "sum",
) -> Floats:
    """Return out[v] = the sum, mean or maximum over edges u -> v of w_uv x_u, for x [M, F]; out [nodes, F].

    A mean divides by the number of edges, and a node without edges has 0 (as PyG's aggregations define them).
    """
    messages = x[source].astype(np.float64)
    if weight is not None:
        messages = messages * np.asarray(weight, np.float64)[:, None]
    degree = np.bincount(destination, minlength=nodes)[:, None]
    if reduce == "max":
        out = np.full((nodes, x.shape[1]), -np.inf)
        np.maximum.at(out, destination, messages)
        return np.where(degree > 0, out, 0.0)
    out = np.zeros((nodes, x.shape[1]))
    np.add.at(out, destination, messages)
    return out / np.maximum(degree, 1) if reduce == "mean" else out


def roundings(terms: NDArray[np.integer] | int) -> Floats:
    """Return the largest error of a sum of random terms, in eps of their sum of magnitudes.

    Up to 16 terms it is the largest possible error in any order, half of their number: a few roundings may all have one
    sign, for example if a term occurs three times. From 64 terms on it is the root of their number, and in between that
    of 16 terms.
    """
    return np.maximum(np.sqrt(terms), np.minimum(np.divide(terms, 2), 8))


def error_bound(
    source: Ids, destination: Ids, nodes: int, x: NDArray[np.floating], weight: object = None
) -> Floats:
    """Return the error bound of a sum of rows of x's dtype: eps r(degree) sum(|w x|), r being `roundings`.

    eps is that of the accumulation, plus float64's for the error of `aggregate`. Half rows accumulate in float32;
    the eps of storing the result is added, and the step of subnormal numbers (in float16 those below 2^-14).
    """
    absolute = None if weight is None else np.abs(np.asarray(weight, np.float64))
    magnitude = aggregate(source, destination, nodes, np.abs(x), absolute)
    of_degree = roundings(np.bincount(destination, minlength=nodes))
    half = x.dtype.itemsize == 2
    eps = float(np.finfo(np.float32 if half else x.dtype).eps) + float(np.finfo(np.float64).eps)
    stored = ml_dtypes.finfo(x.dtype)
    storing, step = (float(stored.eps), float(stored.smallest_subnormal)) if half else (0.0, 0.0)
    return (eps * of_degree[:, None] + storing) * magnitude + step


def sddmm(source: Ids, destination: Ids, x: NDArray[np.floating], y: NDArray[np.floating]) -> Floats:
    """Return the dot product of y[v] and x[u] for each edge u -> v; x [M, F], y [N, F], out [E]."""
    return np.einsum("ec,ec->e", y[destination].astype(np.float64), x[source].astype(np.float64))


def sddmm_bound(source: Ids, destination: Ids, x: NDArray[np.floating], y: NDArray[np.floating]) -> Floats:
    """Return the error bound of float32 dot products: `error_bound` for F terms."""
    eps = float(np.finfo(np.float32).eps) + float(np.finfo(np.float64).eps)
    return eps * roundings(x.shape[1]) * sddmm(source, destination, np.abs(x), np.abs(y))


def edge_softmax(destination: Ids, nodes: int, scores: NDArray[np.floating]) -> Floats:
    """Return exp(s_e) over the sum of exp(s) of all edges of e's destination; scores, out [E]."""
    most = np.full(nodes, -np.inf)
    np.maximum.at(most, destination, scores)
    terms = np.exp(scores.astype(np.float64) - most[destination])
    total = np.zeros(nodes)
    np.add.at(total, destination, terms)
    return terms / total[destination]


def attention(
    source: Ids,
    destination: Ids,
    nodes: int,
    h: NDArray[np.floating],
    scores: NDArray[np.floating],
    keep: NDArray[np.floating] | None = None,
) -> Floats:
    """Return out[v, head] = the sum over edges u -> v of softmax(scores)[e, head] keep[e, head] h[u, head].

    h [M, H, C], scores and keep [E, H]; out [nodes, H, C]. A node without edges has 0.
    """
    heads = h.shape[1]
    weight = np.stack([edge_softmax(destination, nodes, scores[:, k]) for k in range(heads)], 1)
    weight = weight if keep is None else weight * keep
    out = np.zeros((nodes, *h.shape[1:]))
    np.add.at(out, destination, weight[:, :, None] * h[source].astype(np.float64))
    return out


def additive_scores(
    source: Ids,
    destination: Ids,
    of_source: Floats,
    of_target: Floats,
    slope: float,
    of_edge: Floats | None = None,
) -> Floats:
    """Return LeakyReLU(of_source[u] + of_target[v] + of_edge[e]) for each edge e: u -> v (GAT, equation 3).

    of_source, of_target [N, H]; of_edge [E, H], 0 where it is None; out [E, H].
    """
    total = of_source[source].astype(np.float64) + of_target[destination].astype(np.float64)
    total = total if of_edge is None else total + of_edge.astype(np.float64)
    return np.where(total > 0, total, slope * total)


def dot_scores(source: Ids, destination: Ids, h: NDArray[np.floating]) -> Floats:
    """Return h[u, head] . h[v, head] / sqrt(C) for each edge u -> v; h [N, H, C], out [E, H]."""
    wide = h.astype(np.float64)
    return np.einsum("ehc,ehc->eh", wide[source], wide[destination]) / np.sqrt(h.shape[2])


def kept_edges(
    source: Ids, destination: Ids, heads: int, p: float, seed: int, epoch: int, stream: int
) -> Floats:
    """Return 0 or 1 / (1 - p) for each edge and head, by the original ids (below 2^36) of its ends; [E, heads]."""
    keep = np.zeros((len(source), heads))
    for e, (u, v) in enumerate(zip(source.tolist(), destination.tolist(), strict=True)):
        words = [edge_word(seed, epoch, stream, u, v, head) for head in range(heads)]
        keep[e] = [(word >= int(p * 2**32)) / (1 - p) for word in words]
    return keep


def edge_word(seed: int, epoch: int, stream: int, u: int, v: int, head: int) -> int:
    """Return the 32 random bits of (seed, epoch, stream, original ids of an edge's ends, head)."""
    high = (u >> 32 & 0xF) << 12 | (v >> 32 & 0xF) << 8 | head // 4
    counter = (u & 0xFFFFFFFF, v & 0xFFFFFFFF, high << 16 | stream & 0xFFFF, epoch)
    return philox4x32(counter, seed)[head % 4]


def max_ties(source: Ids, destination: Ids, nodes: int, x: NDArray[np.floating]) -> Ids:
    """Return the number of edges u -> v with the largest x[u, c] of all edges to v; [nodes, F] for x [M, F]."""
    most = aggregate(source, destination, nodes, x, reduce="max")
    ties = np.zeros(most.shape, np.int64)
    np.add.at(ties, destination, x[source].astype(np.float64) == most[destination])
    return ties


ELEMENTWISE: dict[str, Callable[..., Floats]] = {
    "exp": lambda x, _: np.exp(x),
    "log": lambda x, _: np.log(x),
    "sqrt": lambda x, _: np.sqrt(x),
    "tanh": lambda x, _: np.tanh(x),
    "sigmoid": lambda x, _: 1 / (1 + np.exp(-x)),
    "abs": lambda x, _: np.abs(x),
    "reciprocal": lambda x, _: 1 / x,
    "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
    "add_value": lambda x, value: x + value,
    "mul_value": lambda x, value: x * value,
    "add": lambda x, y, _: x + y,
    "sub": lambda x, y, _: x - y,
    "mul": lambda x, y, _: x * y,
    "div": lambda x, y, _: x / y,
    "maximum": lambda x, y, _: np.maximum(x, y),
    "minimum": lambda x, y, _: np.minimum(x, y),
    "where_positive": lambda x, y, slope: np.where(y > 0, x, slope * x),
    "times_sign": lambda x, y, _: x * np.sign(y),
    "above": lambda x, y, _: np.heaviside(x - y, 0.5),
    "equal": lambda x, y, _: np.equal(x, y).astype(np.float64),
}


def propagate(
    source: Ids,
    destination: Ids,
    nodes: int,
    tape: Any,
    far: Floats,
    near: Sequence[Floats],
    shared: Floats,
    edge: Floats | None = None,
) -> list[Floats]:
    """Return each output of a tape (`runtime.backends.tape.Tape`), reduced over the edges of each destination.

    far [M, any]: rows of sources; near: arrays [nodes, any]; shared [S]; edge [E, D]. Of a maximum of the first output
    the others are the sums over those edges that reach it, column by column. (NGra, section 3.2.)
    """
    edge = np.zeros((len(source), 0)) if edge is None else edge.astype(np.float64)

    def operand(place: Any) -> Floats:
        if place.kind == "edge":
            return edge[:, place.index, None]
        rows, first = {
            "far": lambda: (far[source], place.index),
            "near": lambda: (near[place.index][destination], 0),
            "shared": lambda: (np.tile(shared, (len(source), 1)), place.index),
        }[place.kind]()
        width = 1 if place.narrow else tape.columns
        columns = np.tile(first + np.arange(width), (len(source), 1))
        if place.type >= 0:
            columns = columns + tape.columns * edge[:, place.type, None].astype(int)
        return np.take_along_axis(rows.astype(np.float64), columns, 1)

    found = [None if v.kind in ("wide", "narrow") else operand(v) for v in tape.values]
    for step in tape.steps:
        x = found[step.a]
        if step.op in {"pick", "splat"}:
            found[step.out] = x
        elif step.op == "column_sum":
            found[step.out] = np.sum(x, 1, keepdims=True)
        else:
            y = () if step.b < 0 else (found[step.b],)
            found[step.out] = ELEMENTWISE[step.op](x, *y, step.value)
    values = [
        (o, np.broadcast_to(found[o.value], (len(source), min(o.width, tape.columns)))) for o in tape.outputs
    ]
    if tape.reduce == "max":
        most = np.full((nodes, tape.columns), -np.inf)
        np.maximum.at(most, destination, values[0][1])
        reached = values[0][1] == most[destination]
        values = [values[0], *((o, value * reached) for o, value in values[1:])]
    results = [np.zeros((nodes, o.width)) for o in tape.outputs]
    for out, (o, value) in zip(results, values, strict=True):
        columns = np.tile(np.arange(value.shape[1]), (len(source), 1))
        if o.type >= 0:
            columns = columns + tape.columns * edge[:, o.type, None].astype(int)
        np.add.at(out, (destination[:, None], columns), value)
    degree = np.bincount(destination, minlength=nodes)[:, None]
    if tape.reduce == "max":
        results[0] = np.where(degree > 0, most, 0.0)
    return [out / np.maximum(degree, 1) if tape.reduce == "mean" else out for out in results]


def gcn_edges(source: Ids, destination: Ids, nodes: int, weight: object = None) -> tuple[Ids, Ids, Floats]:
    """Return Kipf and Welling's normalised adjacency as PyG defines it: edges and coefficients w d_u^-1/2 d_v^-1/2.

    One self loop for each node, with the weight of its last one, or 1 where it has none; degrees are weighted;
    0^-1/2 is 0.
    """
    w = np.ones(len(source)) if weight is None else np.asarray(weight, np.float64)
    loops = np.ones(nodes)
    for u, v, value in zip(source, destination, w, strict=True):
        if u == v:
            loops[u] = value
    others, own = source != destination, np.arange(nodes)
    source, destination = np.append(source[others], own), np.append(destination[others], own)
    w = np.append(w[others], loops)
    degree = np.zeros(nodes)
    np.add.at(degree, destination, w)
    root = np.array([d**-0.5 if d > 0 else 0.0 for d in degree])
    return source, destination, w * root[source] * root[destination]


def gcn_layer(
    source: Ids, destination: Ids, x: Floats, weight: Floats, bias: Floats, edge_weight: object = None
) -> Floats:
    """Return D^-1/2 (A + I) D^-1/2 X W^T + b for x [N, in], weight [out, in], bias [out]."""
    u, v, coefficient = gcn_edges(source, destination, len(x), edge_weight)
    return aggregate(u, v, len(x), x, coefficient) @ weight.T + bias


def philox4x32(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """Return Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC '11)."""
    mask = 0xFFFFFFFF
    a, b, c, d = counter
    low, high = key & mask, key >> 32 & mask
    for turn in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        key_low, key_high = (low + turn * 0x9E3779B9) & mask, (high + turn * 0xBB67AE85) & mask
        a, b, c, d = (right >> 32) ^ b ^ key_low, right & mask, (left >> 32) ^ d ^ key_high, left & mask
    return a, b, c, d


def word(seed: int, epoch: int, stream: int, node: int, column: int) -> int:
    """Return the 32 random bits of (seed, epoch, stream, original node id, column)."""
    counter = (column // 4, node & 0xFFFFFFFF, (node >> 32 & 0xFFFF) << 16 | stream & 0xFFFF, epoch)
    return philox4x32(counter, seed)[column % 4]


def dropout(x: Floats, nodes: Ids, p: float, seed: int, epoch: int, stream: int) -> Floats:
    """Return x / (1 - p) where a value's word is at least p 2^32, else 0."""
    keep = [
        [word(seed, epoch, stream, int(node), column) >= int(p * 2**32) for column in range(x.shape[1])]
        for node in nodes
    ]
    return np.where(np.array(keep, bool).reshape(x.shape), x / (1 - p), 0.0)


def drawn_length(seed: int, source: int, target: int, directed: bool) -> int:
    """Return the length, 8 .. 72, of an edge between original ids; without ``directed`` the same both ways."""
    u, v = (source, target) if directed else sorted((source, target))
    return 8 + edge_word(seed, 0, 0xD000, u, v, 0) * 65 // 2**32


def cross_entropy(logits: Floats, labels: Ids) -> float:
    """Return the mean over rows of -log softmax(logits)[label]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sum - shifted[np.arange(len(labels)), labels]))


def uniform_places(degree: int, fanout: int, draws: Callable[[int], int]) -> list[int]:
    """Return ``fanout`` of the places 0 .. degree - 1, each set as likely as any other, in the order of drawing.

    Bentley and Floyd, CACM 1987: a draw from 0 .. j for each of the last ``fanout`` values of j, which is j instead if
    it was drawn before. draws: the random word of a number. Pick i takes word i to its range as Lemire (ACM TOMACS
    2019) does; words that would make some values likelier are replaced by those after the picks' last quad.
    """
    chosen: dict[int, None] = {}
    spare = itertools.count(-(-fanout // 4) * 4)
    for pick in range(fanout):
        count = degree - fanout + pick + 1
        drawn = draws(pick)
        while drawn * count % 2**32 < 2**32 % count:
            drawn = draws(next(spare))
        place = drawn * count >> 32
        chosen[count - 1 if place in chosen else place] = None
    return list(chosen)


def weighted_places(
    weight: NDArray[np.floating], fanout: int, draws: Callable[[int], int]
) -> tuple[list[int], list[float]]:
    """Return the places of the ``fanout`` smallest Exp(1) / weight, ascending, and one over their probabilities.

    Efraimidis and Spirakis, IPL 2006; probabilities given the next smallest value (Cohen and Kaplan, PODC 2007). An
    edge has two words, of which 52 bits become a number in (0, 1). Edges of weight 0 are never drawn; all others are
    where there are no more, or ``fanout`` is -1.
    """
    keys = {}
    for place in np.flatnonzero(weight).tolist():
        bits = draws(2 * place) << 20 | draws(2 * place + 1) >> 12
        keys[place] = -math.log((2 * bits + 1) / 2**53) / float(weight[place])
    if fanout < 0 or len(keys) <= fanout:
        return list(keys), [1.0] * len(keys)
    order = sorted(keys, key=keys.__getitem__)
    limit, places = keys[order[fanout]], sorted(order[:fanout])
    return places, [-1 / math.expm1(-float(weight[place]) * limit) for place in places]


def sample(
    indptr: Ids,
    indices: NDArray[np.integer],
    seeds: Ids,
    fanouts: Sequence[int],
    *,
    seed: int,
    step: int,
    weight: NDArray[np.floating] | None = None,
    ids: Ids | None = None,
) -> tuple[list[int], list[tuple[list[int], list[int], list[float], list[int]]]]:
    """Return the nodes of a batch, first met first, and each hop's (indptr, indices, factor, edge).

    A hop draws in-edges of all nodes so far. step: from 0, which is epoch 1 of the draws. indices: sources as places
    among the nodes. edge: places in the CSR.
    factor: one over the probability of being drawn; of each destination, or of each edge where there are weights.
    """
    nodes = {int(node): place for place, node in enumerate(seeds)}
    hops = []
    for hop, fanout in enumerate(fanouts):
        starts, places, factors, edges = [0], list[int](), list[float](), list[int]()
        for node in list(nodes):
            first, last = int(indptr[node]), int(indptr[node + 1])
            name = node if ids is None else int(ids[node])
            draws = partial(word, seed, step + 1, 0xE000 + hop, name)
            if weight is not None:
                chosen, factor = weighted_places(weight[first:last], fanout, draws)
                factors += factor
            elif fanout < 0 or last - first <= fanout:
                chosen = list(range(last - first))
                factors.append(1.0)
            else:
                chosen = uniform_places(last - first, fanout, draws)
                factors.append((last - first) / fanout)
            edges += [first + place for place in chosen]
            places += [nodes.setdefault(int(indices[first + place]), len(nodes)) for place in chosen]
            starts.append(len(edges))
        hops.append((starts, places, factors, edges))
    return list(nodes), hops


def shuffled(ids: Ids, seed: int, epoch: int) -> list[int]:
    """Return the places of ids, sorted by the first 64 bits of (seed, epoch, id), and by id where these are equal."""

    def key(place: int) -> tuple[int, int, int]:
        name = int(ids[place])
        return word(seed, epoch, 0xF000, name, 0), word(seed, epoch, 0xF000, name, 1), name

    return sorted(range(len(ids)), key=key)
