"""The test of the tests: kernels with one fault each, which the shim and the table of cases must find."""

from __future__ import annotations

import cases
import numpy as np
import pytest

from .test_direct import aggregate, check

PARTIAL = "    each_partial(task.slot, [&](int p, int i, float* at) { *at = sum.value[p][i]; });\n"
ALL_WRITTEN = "    device::sync_lanes(worker.mask);\n"
ANNOUNCED = "    int32_t before = 0;\n    if (worker.lane == 0) before = device::add_in_order(pending, -1);\n"

FAULTS = {
    "a copy that nobody waits for": ("      device::wait_copies<ring_rows - 1>();\n", ""),
    "no synchronisation of lanes": (PARTIAL + ALL_WRITTEN, PARTIAL),
    "the wrong buffer": (
        "      ask(ahead, row);\n    }\n",
        "      ask(ahead, (row + 1) % ring_rows);\n    }\n",
    ),
    "a divergent shuffle": (
        "    before = device::from_lane(",
        "    if (worker.lane) before = device::from_lane(",
    ),
    "a tail that overruns": ("      if (!has(p)) continue;\n", ""),
    "an unwritten row": (
        "      self.finish(destination, sum);\n",
        "      if (destination % 7) self.finish(destination, sum);\n",
    ),
    "a signal before its data": (PARTIAL + ALL_WRITTEN + ANNOUNCED, ALL_WRITTEN + ANNOUNCED + PARTIAL),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(rng, compiled, fault):
    kernels, found = compiled("aggregate.cuh", *FAULTS[fault]), []
    for name in ("ordinary", "hub"):
        case = cases.CASES[name](rng, 3)
        for width in (1, 33):
            x = rng.standard_normal((case.nodes, width)).astype(np.float32)
            try:
                check(case, x, aggregate(kernels, case, x, seed=int(rng.integers(1 << 60))))
            except (AssertionError, RuntimeError) as error:
                found.append(error)
    assert found
