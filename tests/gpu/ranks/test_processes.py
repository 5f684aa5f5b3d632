"""The table of cases with a process for each PE, whose rows lie on NVSHMEM's symmetric heap."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import pytest

from mgg_hpc.runtime import mpi

from ..pes import table
from ..pes.engine import Engine

pytestmark = [pytest.mark.mpi, pytest.mark.gpu(30)]  # kernels of processes take turns

WIDTHS = {"float32": (1, 33, 129), "float16": (31,), "bfloat16": (130,)}


@pytest.fixture(scope="module")
def job_engine(whole_engine, request) -> Iterator[Engine]:
    """The engine, which has started NVSHMEM."""
    whole_engine.join(mpi.world(), unreached=request.config.getoption("--unreached"))
    yield whole_engine
    whole_engine.job.finish()


@pytest.mark.parametrize("case", cases.CASES)
@pytest.mark.parametrize("operation", [name for name in table.OPERATIONS if name not in table.ONE_PROCESS])
def test_an_operation(rng, job_engine, operation, case):
    """Symmetric memory is freed after each."""
    if operation in ("sddmm", *table.EDGES) and not job_engine.pointers:
        pytest.skip("takes pointers to all rows")
    dtype = str(rng.choice(list(WIDTHS), p=[0.6, 0.2, 0.2]))
    entry = table.Entry(operation, dtype, int(rng.choice(WIDTHS[dtype])), case)
    table.check(job_engine, entry, rng)
    job_engine.job.release()
