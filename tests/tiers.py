"""A pytest plugin: which tests `make test-fast`, `test`, `test-long` and `torture` run (``--tier``, default: test).

==========================================  ====  ====  ====  =======
test                                        fast  test  long  torture
==========================================  ====  ====  ====  =======
unmarked                                    4     yes   1     no
``slow``, or one that takes the shim        no    yes   1     no
``long``                                    no    no    yes   no
``torture``                                 no    no    no    yes
``trials(n, torture=m)``: it does n trials  4     yes   5 n   m
``sampled(n)``: a grid of parameters        4     2     3     no
==========================================  ====  ====  ====  =======

1: if it draws random numbers, since `make test-long` draws others. 2: a sample of the grid with all n-tuples of
values of n different parameters (default: every value of every parameter; see Kuhn, Kacker and Lei, Introduction to
Combinatorial Testing, 2013), the same in each run, of the combinations that are not marked ``long``. 3: a sample of the
others, drawn with MGG_TEST_SEED. 4: of a test with parameters the first and the last combination that `make test` runs.
``--tier all`` runs every combination of every grid, but none of ``torture``.

Tests marked ``mpi`` run under ``mpiexec ... pytest --with-mpi``, and no others do; those marked ``gpu`` with --device
(devices.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from seeds import FIXED, SEED, SEED_OFFSET, draws

TIERS = ("fast", "test", "long", "torture", "all")
SLOW_FIXTURES = {"shim", "engine"}
MORE_TRIALS = 5  # times as many in `make test-long`
DRAW = "MGG_TEST_DRAW"  # "all": `drawn` leaves nothing out


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="test",
        help="run the tests of `make test-fast`, `test`, `test-long`, `torture`, or all",
    )


def pytest_configure(config):
    if os.environ.get(DRAW, "all") != "all":
        raise pytest.UsageError(f"{DRAW}={os.environ[DRAW]}: expected all, or nothing")
    for line in (
        "data: needs the graphs of MGG_DATA",
        "slow: left out of `make test-fast`",
        "long: run by `make test-long` alone",
        "torture: run by `make torture` alone",
        "trials(n, torture=m): number of trials, which the fixture `trials` returns",
        "compiled: takes tapes that `python tests/builds.py tapes` compiles",
        "ranks(*numbers): an MPI test that runs on these numbers of ranks, too (test_other_ranks.py)",
        "sampled(n=1): of the combinations of parameters some are run, with all n-tuples of values",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config, items):
    tier, mpi = config.getoption("--tier"), config.getoption("--with-mpi", default=False)
    of_kind = [item for item in items if (item.get_closest_marker("mpi") is not None) == mpi]
    if device := config.getoption("--device", default=None):
        tier = "all"
    of_kind = [item for item in of_kind if (item.get_closest_marker("gpu") is not None) == bool(device)]
    beyond = unsampled(item for item in of_kind if item.get_closest_marker("long") is None)
    kept = [item for item in of_kind if belongs(item, tier, item in beyond)]
    if tier == "long":
        unused = unsampled(kept, int(os.environ[SEED]))
        kept = [item for item in kept if item not in unused]
    if tier == "fast":
        grids = itertools.groupby(kept, key=lambda item: item.nodeid.partition("[")[0])
        ends = [(grid[0], grid[-1]) for grid in (list(each) for _, each in grids)]
        kept = list(dict.fromkeys(itertools.chain(*ends)))
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def belongs(item: pytest.Item, tier: str, beyond: bool) -> bool:
    """Return whether a test belongs to a tier. beyond: `make test` leaves this combination out."""

    def has(mark: str) -> bool:
        return item.get_closest_marker(mark) is not None

    if tier == "torture":
        return has("torture") or (has("trials") and "torture" in item.get_closest_marker("trials").kwargs)
    if has("torture") or tier == "all":
        return not has("torture")
    if tier == "long":
        grid = has("sampled") and not has("long")
        return has("long") or has("trials") or beyond or (draws(item) and not grid)
    slow = has("slow") or not SLOW_FIXTURES.isdisjoint(item.fixturenames)
    return not (has("long") or beyond or (tier == "fast" and slow))


@pytest.fixture
def trials(request) -> int:
    """Number of trials of a test marked ``trials`` in this tier."""
    mark, tier = request.node.get_closest_marker("trials"), request.config.getoption("--tier")
    if tier == "torture":
        return mark.kwargs["torture"]
    few = tier not in ("long", "all") or request.node.get_closest_marker("long") is not None
    return mark.args[0] * (1 if few else MORE_TRIALS)


def long_except(values: Iterable[object], *kept: object, draw: int | None = None) -> list[object]:
    """Return parameters for ``pytest.mark.parametrize``, of which all but those ``kept`` are marked ``long``.

    draw: of the others only so many, see `drawn`. Raises ValueError if a kept value is not among the values.
    """
    values = list(values)
    if draw is not None:
        values = [*kept, *drawn([value for value in values if value not in kept], draw)]
    if unknown := [value for value in kept if value not in values]:
        raise ValueError(f"{unknown} are not among {values}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]


def drawn(names: Iterable[Any], count: int) -> list[Any]:
    """Return so many of these names, drawn with MGG_TEST_SEED; all of them where MGG_TEST_DRAW=all."""
    if os.environ.get(DRAW) == "all":
        return list(names)
    seed = os.environ.get(SEED, str(FIXED))
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())[:count]


def unsampled(items: Iterable[pytest.Item], seed: int = 0) -> set[pytest.Item]:
    """Return the tests marked ``sampled`` that are in no sample, which is another with another seed."""
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            grids[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, grid in grids.items():
        (strength,) = grid[0].get_closest_marker("sampled").args or (1,)
        combinations = facets([item.callspec.params for item in grid])
        chosen = cover(combinations, strength, np.random.default_rng([zlib.crc32(name.encode()), seed]))
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
    # Counts only fall, so the best is found when the first of the queue still counts what it counted last.
    queue = [
        (-len(tuples[at]), place, int(at)) for place, at in enumerate(rng.permutation(len(combinations)))
    ]
    heapq.heapify(queue)
    chosen: set[int] = set()
    while open_tuples:
        counted, place, at = heapq.heappop(queue)
        now = -len(tuples[at] & open_tuples)
        if now > counted:
            heapq.heappush(queue, (now, place, at))
            continue
        chosen.add(at)
        open_tuples -= tuples[at]
    return chosen


def _tuples(combination: Iterable[tuple[str, str]], strength: int) -> set[tuple[tuple[str, str], ...]]:
    pairs = sorted(combination)
    return set(itertools.combinations(pairs, min(strength, len(pairs))))
