"""The table of cases with a process for each PE, whose rows lie on NVSHMEM's symmetric heap."""

from __future__ import annotations

import cases
import pytest

from ..pes import table

pytestmark = [pytest.mark.mpi, pytest.mark.gpu(30)]  # kernels of processes take turns

WIDTHS = {"float32": (1, 33, 129), "float16": (31,), "bfloat16": (130,)}


@pytest.mark.parametrize("case", cases.CASES)
@pytest.mark.parametrize("operation", [name for name in table.OPERATIONS if name not in table.ONE_PROCESS])
def test_an_operation(rng, engine, operation, case):
    if operation in ("sddmm", *table.EDGES) and not engine.pointers:
        pytest.skip("takes pointers to all rows")
    dtype = str(rng.choice(list(WIDTHS), p=[0.6, 0.2, 0.2]))
    table.check(engine, table.Entry(operation, dtype, int(rng.choice(WIDTHS[dtype])), case), rng)
