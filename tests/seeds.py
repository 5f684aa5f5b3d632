"""A pytest plugin: random numbers of tests, and how to draw them again.

Every test that takes the fixture ``rng`` draws from a generator seeded with MGG_TEST_SEED and the test's own name.
Unless the environment sets MGG_TEST_SEED it is FIXED, so two runs draw the same numbers. ``--seeds 20`` runs every such
test with 20 seeds, MGG_TEST_SEED and the 19 after it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

SEED = "MGG_TEST_SEED"
FIXED = 2023
SEED_OFFSET = "seed_offset"  # the parameter that --seeds adds
_DRAW = re.compile(r"(?<=\[)seed\+\d+-?|-seed\+\d+")  # what --seeds adds to the name of a test


def pytest_addoption(parser):
    parser.addoption(
        "--seeds", type=int, default=1, metavar="N", help=f"run tests that draw with N seeds, from {SEED} on"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    # In the environment, so that the ranks and the commands that tests start draw the same numbers.
    os.environ.setdefault(SEED, str(FIXED))
    if not os.environ[SEED].isdecimal():
        raise pytest.UsageError(f"{SEED}={os.environ[SEED]}: expected a whole number, 0 or more")
    if config.getoption("--seeds") < 1:
        raise pytest.UsageError(f"--seeds {config.getoption('--seeds')}: expected 1 or more")
    if hasattr(config.option, "hypothesis_seed") and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = os.environ[SEED]


def pytest_report_header(config):
    return f"{SEED}={os.environ[SEED]}"


def pytest_generate_tests(metafunc):
    seeds = metafunc.config.getoption("--seeds")
    if seeds > 1 and "rng" in metafunc.fixturenames:
        metafunc.parametrize(SEED_OFFSET, range(seeds), ids="seed+{}".format, scope="function")


@pytest.fixture
def seed_offset() -> int:
    """Number that --seeds adds to MGG_TEST_SEED."""
    return 0


@pytest.fixture
def rng(request, seed_offset) -> np.random.Generator:
    """Random numbers of this test alone, the same in each run with the same MGG_TEST_SEED and on all ranks.

    Weights of layers are drawn by torch, where the test's module imports it: its generator is seeded too.
    """
    name = _DRAW.sub("", request.node.nodeid).removesuffix("[]")
    seeds = [int(os.environ[SEED]) + seed_offset, zlib.crc32(name.encode())]
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
    return np.random.default_rng(seeds)


def draws(item: pytest.Item) -> bool:
    """Whether a test draws random numbers: from ``rng``, or as a test of hypothesis."""
    hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return "rng" in item.fixturenames or hypothesis


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the command that repeats a failed test with its random numbers to the test's report."""
    report = (yield).get_result()
    if report.failed and draws(item):
        report.sections.append(("random numbers", f"to draw the same again: {again(item)}"))


def again(item: pytest.Item) -> str:
    """Return the command that runs one test with the numbers that it drew, from the folder of the repository."""
    callspec = getattr(item, "callspec", None)
    seed = int(os.environ[SEED]) + (callspec.params.get(SEED_OFFSET, 0) if callspec else 0)
    name = shlex.quote(_DRAW.sub("", item.nodeid).removesuffix("[]"))
    tier = item.config.getoption("--tier")
    if tier != "test":  # `all` has every combination, whichever sample it was in
        name += f" --tier {'all' if item.get_closest_marker('sampled') else tier}"
    programs = os.path.relpath(Path(sys.executable).parent, item.config.rootpath)
    ranks = os.environ.get("MGG_TEST_RANKS")
    if not ranks or not item.config.getoption("--with-mpi", default=False):
        return f"{SEED}={seed} {programs}/python -m pytest {name}"
    over_shmem = item.nodeid.startswith("tests/shmem/")
    launcher = f"{programs}/python tests/shmem/launch.py" if over_shmem else f"{programs}/mpiexec -n"
    program = f"{programs}/python -m mpi4py -m pytest -x --with-mpi"
    return f"{SEED}={seed} MGG_TEST_RANKS={ranks} {launcher} {ranks} {program} {name}"
