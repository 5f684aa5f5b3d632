"""The shim's kernels with the address and the undefined-behaviour sanitizer: nothing is touched that is not theirs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import cases
import programs
import pytest
from builds import made, sanitized_environment
from gpu.pes import table

from .test_planted import LOOK

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.long

MOST_SAID = 16 << 20  # bytes: a report about the reporting of a fault may never end
SECONDS = 250


def run(rng, build, library, operations):
    """Check operations in a process of its own, which ends when it says too much.

    Over half of the cases, which are drawn anew in each run as types and widths are, or one operation over all cases
    in float32, of which planted faults are.
    """
    entries = []
    for by in operations:
        names = rng.permutation(list(cases.CASES))
        for name in names if len(operations) == 1 else names[: (len(names) + 1) // 2]:
            dtype = "float32" if len(operations) == 1 else str(rng.choice(table.DTYPES))
            entries.append((by, dtype, int(rng.choice(cases.WIDTHS)), str(name)))
    environment = sanitized_environment(build.compiler) | {"PYTHONPATH": str(TESTS)}
    arguments = map(json.dumps, (str(library), list(rng.bytes(4)), 1, entries))
    command = ("prlimit", f"--fsize={MOST_SAID}", sys.executable, "-c", LOOK, *arguments)
    return programs.run_limited(*command, env=environment, seconds=SECONDS)


def test_the_table_of_cases(rng, sanitized):
    done = run(rng, sanitized, made("shim-sanitized") / "_cuda.so", [*table.OPERATIONS])
    assert done.stdout.strip() == "unnoticed", done.stderr[-6000:]


@pytest.mark.parametrize(
    ("kind", "operation", "report", "place"),
    [
        ("shift", "sum", "runtime error: shift exponent", "gpu/worker.cuh"),
        (
            "address",
            "sddmm",
            "ERROR: AddressSanitizer|load of null pointer",
            "mgg::Sddmm",
        ),  # no array without edges
    ],
)
def test_a_planted_fault_is_reported(rng, sanitized, kind, operation, report, place):
    done = run(rng, sanitized, made("shim-sanitized-planted") / kind / "_cuda.so", [operation])
    assert done.returncode != 0 and "unnoticed" not in done.stdout
    assert re.search(report, done.stderr) and place in done.stderr, done.stderr[-4000:]
