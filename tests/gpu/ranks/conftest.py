"""An engine whose PEs are the processes of an MPI job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mgg_hpc.runtime import mpi

from ..pes.engine import Engine


@pytest.fixture(scope="session")
def job_engine(whole_engine, request) -> Iterator[Engine]:
    """The engine, which has started NVSHMEM."""
    whole_engine.join(mpi.world(), unreached=request.config.getoption("--unreached"))
    yield whole_engine
    whole_engine.job.finish()


@pytest.fixture
def engine(job_engine) -> Iterator[Engine]:
    """The same for one test, whose symmetric memory is freed."""
    yield job_engine
    job_engine.job.release()
