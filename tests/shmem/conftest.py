"""Tests of what runs over OpenSHMEM, on one host and across two."""

import sys
from pathlib import Path

import pytest
from mpi.conftest import folder  # noqa: F401
from ranks import (  # noqa: F401
    comm,
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_sessionstart,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def hosts(require):
    """Two hosts made of network namespaces."""
    import two_hosts

    lacking = two_hosts.missing()
    require(not lacking, f"two hosts need {lacking}")
    with two_hosts.connect() as connected:
        yield connected


@pytest.fixture(scope="session")
def built(require):
    """Nothing, where the native module is not built; fails where CI promises that it is."""
    found = list((Path(__file__).parents[2] / "mgg_hpc").glob("_shmem*.so"))
    require(bool(found), "mgg_hpc._shmem is not built", "apt install openmpi-bin libopenmpi-dev")
