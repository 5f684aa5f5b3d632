"""Hooks and fixtures of tests that run on several ranks, imported by their conftest.py.

A run over several ranks in which nothing ran has failed, and so has one of another size than meant.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import programs
import pytest

OTHER_RANKS = "MGG_TEST_OTHER_RANKS"

passed = 0


@pytest.fixture(scope="session")
def comm():
    """All ranks, checked by the program's own entry."""
    from mgg_hpc.runtime import mpi

    return mpi.world()


@pytest.fixture
def no_segments_left():
    """Check that the test maps no other shared memory in its end than before, and leaves none that nobody maps."""
    from mgg_hpc.runtime import leftovers

    def mapped() -> set[str]:
        return leftovers.files_of(Path("/proc/self"), "/dev/shm/")

    before, began = mapped(), time.time()
    yield
    assert mapped() == before
    programs.wait_until(lambda: not leftovers.left_since(began), 1, lambda: str(leftovers.left_since(began)))


def pytest_runtest_logreport(report):
    global passed  # noqa: PLW0603 - pytest gives this hook no place of its own to count in
    if report.when == "call" and report.passed and "mpi" in report.keywords:
        passed += 1
    rank = _world().Get_rank() if "mpi4py.MPI" in sys.modules else 0
    if report.failed and rank > 0:
        print(f"\nrank {rank}: {report.nodeid}\n{report.longreprtext}", file=sys.__stderr__, flush=True)


def pytest_collection_modifyitems(config, items):
    """Keep only tests marked ``ranks`` with this number of ranks, where test_other_ranks.py has started them."""
    if os.environ.get(OTHER_RANKS):
        marks = [(item, item.get_closest_marker("ranks")) for item in items]
        kept = [item for item, mark in marks if mark and _world().Get_size() in mark.args]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_sessionstart(session):
    if _with_mpi(session.config) and _world().Get_rank() > 0:  # rank 0 tells of all tests
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the session lasts
    promised = os.environ.get("MGG_TEST_RANKS")
    if promised and _with_mpi(session.config):
        size = _world().Get_size()
        if size != int(promised):
            pytest.exit(f"MGG_TEST_RANKS={promised}, but MPI runs {size} ranks", returncode=1)


def pytest_sessionfinish(session, exitstatus):
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "MPIPlugin":
            plugin._is_testing_mpi = False  # it would end each rank's report with forty lines about MPI
    nothing = _with_mpi(session.config) and not session.config.option.collectonly and passed == 0
    if nothing and (_world().Get_size() > 1 or os.environ.get("MGG_TEST_RANKS")):
        print("no MPI test passed: a run that tested nothing has failed")
        session.exitstatus = exitstatus or 1


def _world():
    """All ranks; starts MPI."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _with_mpi(config) -> bool:
    return bool(config.getoption("--with-mpi", default=False))
