"""A pytest plugin: random numbers of tests, and how to draw them again.

Every test that takes the fixture ``rng`` draws from a generator seeded with MGG_TEST_SEED and the test's own name.
Unless the environment sets MGG_TEST_SEED it is FIXED, so two runs draw the same numbers. ``--seeds 20`` runs every such
test with 20 seeds, MGG_TEST_SEED and the 19 after it.
"""

from __future__ import annotations

import os
import re
import zlib

import numpy as np
import pytest

SEED = "MGG_TEST_SEED"
FIXED = 2023
_DRAW = re.compile(r"(?<=\[)seed\+\d+-?|-seed\+\d+")  # what --seeds adds to the name of a test


def pytest_addoption(parser):
    parser.addoption(
        "--seeds", type=int, default=1, metavar="N", help=f"run tests that draw with N seeds, from {SEED} on"
    )


def pytest_configure(config):
    # In the environment, so that the ranks and the commands that tests start draw the same numbers.
    os.environ.setdefault(SEED, str(FIXED))


def pytest_report_header(config):
    return f"{SEED}={os.environ[SEED]}"


def pytest_generate_tests(metafunc):
    seeds = metafunc.config.getoption("--seeds")
    if seeds > 1 and "rng" in metafunc.fixturenames:
        metafunc.parametrize("seed_offset", range(seeds), ids="seed+{}".format, scope="function")


@pytest.fixture
def seed_offset() -> int:
    """Number that --seeds adds to MGG_TEST_SEED."""
    return 0


@pytest.fixture
def rng(request, seed_offset) -> np.random.Generator:
    """Random numbers of this test alone, the same in each run with the same MGG_TEST_SEED and on all ranks."""
    name = _DRAW.sub("", request.node.nodeid).removesuffix("[]")
    return np.random.default_rng([int(os.environ[SEED]) + seed_offset, zlib.crc32(name.encode())])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Tell how to draw the numbers of a test that failed again."""
    report = (yield).get_result()
    if report.failed and "rng" in item.fixturenames:
        report.sections.append(("random numbers", f"to draw the same again: {again(item)}"))


def again(item: pytest.Item) -> str:
    """Return the command that runs one test with the numbers that it drew."""
    callspec = getattr(item, "callspec", None)
    seed = int(os.environ[SEED]) + (callspec.params.get("seed_offset", 0) if callspec else 0)
    name = _DRAW.sub("", item.nodeid).removesuffix("[]")
    ranks = os.environ.get("MGG_TEST_RANKS")
    if not ranks or not item.config.getoption("--with-mpi", default=False):
        return f"{SEED}={seed} python -m pytest '{name}'"
    launcher = "python tests/shmem/launch.py" if name.startswith("tests/shmem/") else "mpiexec -n"
    program = "python -m mpi4py -m pytest -x --with-mpi"
    return f"{SEED}={seed} MGG_TEST_RANKS={ranks} {launcher} {ranks} {program} '{name}'"
