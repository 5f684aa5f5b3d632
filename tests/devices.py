"""A pytest plugin: tests marked ``gpu`` run where --device names what they run on: a GPU, or the shim that plays one.

They run without other tests, whatever their tier. A test that takes longer than its mark ``timeout`` says, in seconds
(15 without one), hangs: pytest-timeout ends the process with the stacks of its threads, or faulthandler does where a
kernel holds the interpreter. Under pytest-xdist (``-n 1``) that is a failure with the test's name, and another process
goes on with the next one. After --until tests fail at once, as "not run": --lf runs them and what has failed.
"""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path

import pytest

SECONDS = 15.0  # a test that takes longer hangs, unless it has a time limit of its own
PATIENCE = {"cuda": 1.0, "shim": 4.0}  # times as long, where other programs use the same cores
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
    config.addinivalue_line("markers", "gpu: runs where --device names a GPU, or the shim")
    config.stash[STDERR] = os.dup(2)  # before output is captured


def limit(item: pytest.Item) -> float:
    """Return the seconds after which a test hangs."""
    mark, device = item.get_closest_marker("timeout"), item.config.getoption("--device")
    patience = item.config.getoption("--patience") or PATIENCE.get(device, 1.0)
    return (mark.args[0] if mark else SECONDS) * patience


def pytest_collection_modifyitems(config, items):
    for item in items if config.getoption("--device") else ():
        item.add_marker(pytest.mark.timeout(limit(item), method="thread"), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if item.config.getoption("--device"):
        left = max(1.0, item.config.getoption("--until") - time.time())
        seconds = min(item.get_closest_marker("timeout").args[0], left) + 2.0  # after pytest-timeout
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    expected = item.get_closest_marker("timeout").args[0] / 4 if item.config.getoption("--device") else 0.0
    if time.time() + expected > item.config.getoption("--until"):
        pytest.fail(NOT_RUN, pytrace=False)
