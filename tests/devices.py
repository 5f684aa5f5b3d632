"""A pytest plugin: tests marked ``gpu`` run where --device names what they run on: a GPU, or the shim that plays one.

They run without other tests, whatever their tier. A test that takes longer than its mark says, ``gpu(seconds)``
(15 without a number), hangs: faulthandler, which needs no interpreter that a kernel may hold, prints the stacks of all
threads and ends the process. Under pytest-xdist (``-n 1``) that is a failure with the test's name, and another process
goes on with the next one. After --until tests fail at once, as "not run": --lf runs them and what has failed.
"""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path

import pytest

SECONDS = 15.0  # a test that takes longer hangs, unless it has a time limit of its own
PATIENCE = {"cuda": 1.0, "shim": 8.0}  # times as long, where other programs use the same cores
NOT_RUN = "not run: there was no time left"
STDERR = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption(
        "--device", choices=tuple(PATIENCE), help="run the tests marked gpu on this, and no others"
    )
    parser.addoption(
        "--library", type=Path, help="a _cuda module in place of the package's, or of the shim's"
    )
    parser.addoption(
        "--unreached", action="store_true", help="gpu: as if no pointer led to another process's rows"
    )
    parser.addoption("--patience", type=float, help="gpu: time limits are so many times as long")
    parser.addoption("--until", type=float, default=float("inf"), help="gpu: seconds since the epoch")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu(seconds=15): runs where --device names a GPU, or the shim")
    config.stash[STDERR] = os.dup(2)  # before output is captured


def limit(item: pytest.Item) -> float:
    """Return the seconds after which a test hangs."""
    (seconds,) = item.get_closest_marker("gpu").args or (SECONDS,)
    return seconds * (item.config.getoption("--patience") or PATIENCE[item.config.getoption("--device")])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if not item.config.getoption("--device"):
        return (yield)
    left = max(1.0, item.config.getoption("--until") - time.time())
    faulthandler.dump_traceback_later(min(limit(item), left), exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    # What is begun has a quarter of its limit at least.
    if item.config.getoption("--device") and time.time() + limit(item) / 4 > item.config.getoption("--until"):
        pytest.fail(NOT_RUN, pytrace=False)
