"""Plans of sampled blocks: both directions list the same edges, with the self loops and weights they should have."""

from __future__ import annotations

import numpy as np
import pytest
from memory import untouched

from mgg_hpc.plan.blocks import BlockWeights, block_plans
from mgg_hpc.plan.workload import prefix_sum

FAR, F4 = 1 << 32, np.dtype(np.float32)
SHAPES = {
    "plain": (9, 20, 3.0),
    "no edges": (4, 6, 0.0),
    "no destinations": (0, 5, 0.0),
    "nothing": (0, 0, 0.0),
    "one row": (1, 1, 2.0),
    "square": (12, 12, 4.0),
    "hub": (3, 40, 30.0),
}


def drawn(rng, shape):
    """A block with duplicates and self loops: indptr and indices."""
    destinations, sources, mean = shape
    degree = rng.poisson(mean, destinations) * (rng.random(destinations) < 0.8)
    indptr = prefix_sum(degree.astype(np.int64))
    indices = rng.integers(0, max(1, sources), indptr[-1]).astype(np.int32)
    own = np.repeat(np.arange(destinations), degree)
    again = rng.random(len(indices)) < 0.2
    indices[again] = own[again]
    return indptr, indices


def listed(indptr, indices, loops, has_loop):
    """The edges that a plan should have, a row after the other: (destination, source, place)."""
    edges = []
    for row in range(len(indptr) - 1):
        for place in range(indptr[row], indptr[row + 1]):
            if loops != "one" or indices[place] != row:
                edges.append((row, int(indices[place]), place))
        if loops == "one" or (loops == "missing" and not has_loop[row]):
            edges.append((row, row, int(indptr[-1]) + row))
    return edges


def edges_of(plan) -> list[tuple[int, int]]:
    """Destination and source of each edge of a plan, in its order."""
    assert len(plan.chunks) == 1
    np.testing.assert_array_equal(plan.segments["destination"], np.arange(plan.destinations))
    starts = prefix_sum(plan.segments["count"])
    np.testing.assert_array_equal(plan.segments["first_edge"], starts[:-1])
    assert starts[-1] == len(plan.indices)
    row = np.repeat(plan.segments["destination"], plan.segments["count"])
    return list(zip(row.tolist(), plan.indices.tolist(), strict=True))


@pytest.mark.parametrize("weighted", [None, "uniform", "by edge", "of the graph"])
@pytest.mark.parametrize("loops", ["none", "missing", "one"])
@pytest.mark.parametrize("shape", SHAPES)
def test_plans_list_edges_both_ways(rng, shape, loops, weighted):
    destinations, sources, _ = SHAPES[shape]
    indptr, indices = drawn(rng, SHAPES[shape])
    has_loop = rng.integers(0, 2, destinations).astype(np.uint8)
    factor = rng.uniform(1, 9, len(indices) if weighted == "by edge" else destinations)
    factor[rng.random(len(factor)) < 0.2] = 0
    whole = untouched(4 * (FAR + 50)).view(np.float32)  # of a graph of more than 2^32 edges
    whole[FAR:] = rng.uniform(1, 2, 50) * (rng.random(50) < 0.8)
    edge = FAR + rng.integers(0, 50, len(indices))
    more = {"weight": whole, "edge": edge} if weighted == "of the graph" else {}
    given = BlockWeights(factor, by_edge=weighted == "by edge", dtype=np.dtype(np.float64), **more)
    loop = {"loops": loops, "has_loop": has_loop if loops == "missing" else None}
    plans = block_plans(2, indptr, indices, sources, **loop, weights=given if weighted else None)
    wanted = listed(indptr, indices, loops, has_loop)
    assert edges_of(plans.forward) == [edge[:2] for edge in wanted]
    places = np.arange(len(indices)) if plans.places is None else plans.places
    assert places.tolist() == [edge[2] for edge in wanted]
    assert (plans.places is None) == (loops == "none")
    order = sorted(range(len(wanted)), key=lambda at: (wanted[at][1], at))
    assert plans.order.tolist() == order
    assert edges_of(plans.backward) == [wanted[at][1::-1] for at in order]
    assert (plans.forward.chunks["rows"][0], plans.backward.chunks["rows"][0]) == (sources, destinations)
    assert (plans.forward.chunks["pe"][0], plans.forward.destinations) == (2, destinations)
    if weighted is None:
        assert plans.forward_weight is plans.backward_weight is None
        return
    by_place = factor if weighted == "by edge" else np.repeat(factor, np.diff(indptr))
    by_place = np.append(by_place * (whole[edge] if more else 1), np.ones(destinations))  # behind: of loops
    values = by_place[places]
    if plans.forward_weight is None:
        assert (values == 1).all()
    else:
        np.testing.assert_array_equal(plans.forward_weight, values)
        np.testing.assert_array_equal(plans.backward_weight, values[order])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_factors_of_one_are_no_weights(rng, dtype):
    given, each = (0, *drawn(rng, SHAPES["plain"]), 20), {"by_edge": False, "dtype": np.dtype(dtype)}
    assert block_plans(*given, weights=BlockWeights(np.ones(9), **each)).forward_weight is None
    made = block_plans(*given, weights=BlockWeights(np.full(9, 2.0), **each))
    assert made.forward_weight.dtype == made.backward_weight.dtype == dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": 8}, "destinations are the first of its sources|none of 8 rows"),
        ({"indptr": np.array([1, 2])}, "begins with 0"),
        ({"indptr": np.array([0, 3, 2])}, "not ascending"),
        ({"indptr": np.array([0, 7])}, "to the number of edges"),
        ({"indices": np.array([0, 20], np.int32)}, "source 20 is none of 20 rows"),
        ({"indices": np.array([0, -1], np.int32)}, "source -1 is none"),
        ({"loops": "missing"}, "has_loop: one for each destination"),
        ({"weights": BlockWeights(np.ones(2), False, F4)}, "factor: one for each"),
        (
            {"weights": BlockWeights(np.ones(1), False, F4, np.ones(3, F4), np.array([0, 3]))},
            "edge: not of the",
        ),
    ],
)
def test_refusals(change, message):
    given = {"indptr": np.array([0, 2]), "indices": np.array([0, 9], np.int32), "sources": 20}
    with pytest.raises(ValueError, match=message):
        block_plans(0, **given | change)
