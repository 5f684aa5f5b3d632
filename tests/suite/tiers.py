"""A pytest plugin: which tests belong to a tier of `make test-fast`, `test`, `test-long` or `torture` (``--tier``).

=======================================  =========  =========  ==========  ============  =========
test                                     fast       test       long        random        torture
=======================================  =========  =========  ==========  ============  =========
unmarked                                 yes        yes        no          if it draws   no
``@pytest.mark.slow``                    no         yes        no          if it draws   no
``@pytest.mark.long``                    no         no         yes         no            no
``@pytest.mark.drawn(n)``, and ``long``  no         no         n of them   no            no
``@pytest.mark.one_of(a, b)``, ``long``  no         no         b of one a  no            no
``@pytest.mark.random``                  no         no         no          yes           no
``@pytest.mark.sampled(n)``              sample     sample     no          other sample  no
``@pytest.mark.trials(test=2, long=5)``  no         2 trials   5 trials    no            no
=======================================  =========  =========  ==========  ============  =========

A test marked ``trials`` takes the fixture ``trials``: how often it does what it does (``torture=200``: in `make
torture`). It belongs to the tiers that the mark names.

`make test-long` runs the tier ``long``, file by file, and then ``random``: with another seed than `make test`, tests
that draw, which take the fixture ``rng`` or are tests of hypothesis. ``--seconds`` bounds both, since machines are not
equally fast, and of random tests there are more than any has time for; so they come in an order drawn with
MGG_TEST_SEED. So are the n combinations of parameters that are run of a test marked ``drawn(n)``, and which member b
runs of a group a of tests marked ``one_of(a, b)``. In time runs go through all.

Of the combinations of the parameters of a sampled test the sample has all n-tuples of values of n different
parameters (n-wise testing, see Kuhn, Kacker and Lei, Introduction to Combinatorial Testing, 2013; default 1: every
value of every parameter). A parameter whose values are dataclasses counts as its fields. The sample of `make test-fast`
and `make test` is the same in each run, and another on each number of MPI ranks. That of the tier ``random`` has all
(n + 1)-tuples and is drawn with MGG_TEST_SEED: another in each run. Tests that take one of SLOW_FIXTURES are slow.
Without ``--tier`` all tests run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from suite.seeds import SEED, SEED_OFFSET, draws

TIERS = ("fast", "test", "long", "random", "torture")
# A test that takes one of these is slow: the kernels over the shim are compiled first.
SLOW_FIXTURES = {"shim"}
# Tests in a random order come in so many rounds, each of all files, so that a file's fixtures are made once a round.
ROUNDS = 12
DEADLINE = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption(
        "--tier", choices=TIERS, help="run the tests of `make test-fast`, `test`, `test-long` or `torture`"
    )
    parser.addoption("--seconds", type=float, metavar="S", help="begin no test S seconds after the first")


def pytest_configure(config):
    for line in (
        "slow: left out of `make test-fast`",
        "long: run by `make test-long` alone",
        "trials(test=n, long=n, torture=n): the tiers that run a test, and how many trials of it",
        "drawn(n): of the combinations of parameters that `make test-long` would run it runs n",
        "one_of(group, member): `make test-long` runs the tests of one member of the group",
        "random: run by the last parts of `make test-long` alone, if there is time",
        "sampled(n=1): of the combinations of parameters `make test` runs some, with all n-tuples of values",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config, items):
    tier = config.getoption("--tier")
    if tier is None:
        return
    beyond = unsampled(items)  # `make test` does not run them
    unused = unsampled(items, more=1) if tier == "random" else set()
    kept = [item for item in items if item not in unused and belongs(item, tier, item in beyond)]
    if tier == "long":
        undrawn = not_drawn(kept) | of_other_members(kept)
        kept = [item for item in kept if item not in undrawn]
    if tier == "random":
        kept.sort(key=lambda item: _number(item.nodeid) % ROUNDS)
    elif tier == "long" and config.getoption("--seconds") is not None:
        kept.sort(key=lambda item: _number(item.nodeid.partition("::")[0]))
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Leave out what would begin after ``--seconds`` from the first test on: no other plugin sees it."""
    seconds = item.config.getoption("--seconds")
    if seconds is None:
        return None
    now = time.monotonic()
    over = now > item.config.stash.setdefault(DEADLINE, now + seconds)
    if item.config.getoption("--with-mpi", default=False):
        from mpi4py import MPI

        over = MPI.COMM_WORLD.bcast(over)  # ranks run the same tests
    return over or None


@pytest.fixture
def trials(request) -> int:
    """Number of trials of a test marked ``trials`` in this tier; without a tier, in the first that it names."""
    counts = request.node.get_closest_marker("trials").kwargs
    return counts[request.config.getoption("--tier") or next(iter(counts))]


def long_except(values: Iterable[object], *kept: object) -> list[object]:
    """Return parameters for ``pytest.mark.parametrize``, of which all but those ``kept`` are marked ``long``.

    Raises ValueError if a kept value is not among the values.
    """
    values = list(values)
    if unknown := [value for value in kept if value not in values]:
        raise ValueError(f"{unknown} are not among {values}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]


def belongs(item, tier: str, beyond: bool) -> bool:
    """Whether a test belongs to a tier, see above; ``beyond``: it is a combination that `make test` leaves out."""
    trials = item.get_closest_marker("trials")
    if trials is not None or tier == "torture":
        return trials is not None and tier in trials.kwargs
    only_random, only_long = (item.get_closest_marker(name) is not None for name in ("random", "long"))
    if tier == "random":
        return beyond or only_random or (draws(item) and not only_long)
    if tier == "long":
        return only_long and not only_random
    only_long |= beyond or only_random
    slow = item.get_closest_marker("slow") is not None or not SLOW_FIXTURES.isdisjoint(item.fixturenames)
    return not only_long and not (tier == "fast" and slow)


def _number(name: str) -> int:
    """Return a number that is drawn for a name with MGG_TEST_SEED."""
    return int(hashlib.sha256(f"{os.environ[SEED]} {name}".encode()).hexdigest(), 16)


def not_drawn(items) -> set:
    """Return the tests marked ``drawn`` that are not among those drawn."""
    functions = defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn") is not None:
            functions[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for of_one in functions.values():
        (count,) = of_one[0].get_closest_marker("drawn").args
        left_out |= set(sorted(of_one, key=lambda item: _number(item.nodeid))[count:])
    return left_out


def of_other_members(items) -> set:
    """Return the tests marked ``one_of`` that are not of the member that is drawn of their group."""
    members = defaultdict(lambda: defaultdict(set))
    for item in items:
        if (mark := item.get_closest_marker("one_of")) is not None:
            group, member = mark.args
            members[group][member].add(item)
    left_out = set()
    for group in members.values():
        chosen = min(group, key=_number)
        left_out |= set().union(*(tests for member, tests in group.items() if member != chosen))
    return left_out


def unsampled(items, more: int = 0) -> set:
    """Return the tests marked ``sampled`` that are in no sample.

    more: what is added to the strength of each. The samples then depend on MGG_TEST_SEED; without it they never change.
    """
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("long") is None:
            grids[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, grid in grids.items():
        (strength,) = grid[0].get_closest_marker("sampled").args or (1,)
        seed = [int(os.environ.get("MGG_TEST_RANKS", "0")), zlib.crc32(name.encode())]
        seed += [int(os.environ[SEED])] * (more > 0)
        combinations = facets([item.callspec.params for item in grid])
        chosen = cover(combinations, strength + more, np.random.default_rng(seed))
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
