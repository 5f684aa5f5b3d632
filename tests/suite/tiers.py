"""A pytest plugin: which tests belong to `make test-fast`, `make test` and `make test-long` (``--tier``).

================================  =========  =========  ==============
test                              test-fast  test       test-long
================================  =========  =========  ==============
unmarked                          yes        yes        if it draws
``@pytest.mark.slow``             no         yes        if it draws
``@pytest.mark.long``             no         no         yes
``@pytest.mark.sampled(n)``       sample     sample     yes
================================  =========  =========  ==============

A test draws if it takes the fixture ``rng`` or is a test of hypothesis: test-long runs it with another seed than `make
test`. Of the combinations of the parameters of a sampled test the sample has all n-tuples of values of n different
parameters (n-wise testing, see Kuhn, Kacker and Lei, Introduction to Combinatorial Testing, 2013; default 1: every
value of every parameter). A parameter whose values are dataclasses counts as its fields. A sample is the same in each
run, and another on each number of MPI ranks. Tests that take one of SLOW_FIXTURES are slow. Without ``--tier`` all
tests run.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from suite.seeds import SEED_OFFSET, draws

TIERS = ("fast", "test", "long")
# A test that takes one of these is slow: the kernels over the shim are compiled first.
SLOW_FIXTURES = {"shim"}


def pytest_addoption(parser):
    parser.addoption("--tier", choices=TIERS, help="run the tests of `make test-fast`, `test` or `test-long`")


def pytest_configure(config):
    for line in (
        "slow: left out of `make test-fast`",
        "long: run by `make test-long` alone",
        "sampled(n=1): of the combinations of parameters `make test` runs some, with all n-tuples of values",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config, items):
    tier = config.getoption("--tier")
    if tier is None:
        return
    left_out = unsampled(items)
    kept, dropped = [], []
    for item in items:
        (kept if belongs(item, tier, item in left_out) else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def long_except(values: Iterable[object], *kept: object) -> list[object]:
    """Return parameters for ``pytest.mark.parametrize``, of which all but those ``kept`` are marked ``long``.

    Raises ValueError if a kept value is not among the values.
    """
    values = list(values)
    if unknown := [value for value in kept if value not in values]:
        raise ValueError(f"{unknown} are not among {values}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]


def belongs(item, tier: str, left_out: bool) -> bool:
    """Whether a test belongs to a tier, see above; ``left_out``: it is not in the sample of its parameters."""
    only_long = left_out or item.get_closest_marker("long") is not None
    if tier == "long":
        return only_long or draws(item)
    slow = item.get_closest_marker("slow") is not None or not SLOW_FIXTURES.isdisjoint(item.fixturenames)
    return not only_long and not (tier == "fast" and slow)


def unsampled(items) -> set:
    """Return the tests marked ``sampled`` that are in no sample. Samples are the same whatever MGG_TEST_SEED is."""
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("long") is None:
            grids[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, grid in grids.items():
        (strength,) = grid[0].get_closest_marker("sampled").args or (1,)
        seed = [int(os.environ.get("MGG_TEST_RANKS", "0")), zlib.crc32(name.encode())]
        combinations = facets([item.callspec.params for item in grid])
        chosen = cover(combinations, strength, np.random.default_rng(seed))
        # With --seeds a combination is there several times: all of them, or none.
        sample = {tuple(combinations[at]) for at in chosen}
        left_out |= {item for item, each in zip(grid, combinations, strict=True) if tuple(each) not in sample}
    return left_out


def facets(grid: list[dict[str, object]]) -> list[list[tuple[str, str]]]:
    """Return the (name, value) pairs of the parameters of each test of a grid, those of a dataclass by its fields."""
    # Values are told apart by identity, since a repr may hold an address.
    numbers: dict[tuple[str, int], int] = {}

    def of(parameters: dict[str, object]) -> Iterator[tuple[str, str]]:
        for name, value in parameters.items():
            if name == SEED_OFFSET:
                continue
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                for field in dataclasses.fields(value):
                    yield f"{name}.{field.name}", repr(getattr(value, field.name))
            else:
                yield name, str(numbers.setdefault((name, id(value)), len(numbers)))

    return [list(of(parameters)) for parameters in grid]


def cover(combinations: list[list[tuple[str, str]]], strength: int, rng: np.random.Generator) -> set[int]:
    """Return the indices of a few combinations in which every ``strength``-tuple of values occurs that occurs in any.

    Greedy: of a random permutation, those which have a tuple that none before them has, the ones with the most first.
    """
    tuples = [_tuples(each, strength) for each in combinations]
    open_tuples = set().union(*tuples)
    order = list(rng.permutation(len(combinations)))
    chosen: set[int] = set()
    while open_tuples:
        best = max(order, key=lambda at: len(tuples[at] & open_tuples))
        chosen.add(int(best))
        open_tuples -= tuples[best]
    return chosen


def _tuples(combination: Iterable[tuple[str, str]], strength: int) -> set[tuple[tuple[str, str], ...]]:
    pairs = sorted(combination)
    return set(itertools.combinations(pairs, min(strength, len(pairs))))
