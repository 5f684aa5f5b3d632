"""The shim's kernels with the address and the undefined-behaviour sanitizer: nothing is touched that is not theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import sanitizers
from gpu.pes import table

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.long
SUMS = ("aggregate_float32", "aggregate_float16", "aggregate_bfloat16")

# Operations over half of the cases, which are drawn anew in each run as types and widths are, or one operation over all
# cases; and the exercises.
RUN = """
import json, sys
import numpy as np
from pathlib import Path
import cases
from gpu.pes import table
from gpu.pes.engine import Engine
from shim.test_table import gather

engine, rng = Engine.shim(Path(sys.argv[1])), np.random.default_rng(json.loads(sys.argv[2]))
operations, names = json.loads(sys.argv[3]), list(cases.CASES)
for operation in operations:
    for case in names if len(operations) == 1 else rng.permutation(names)[: (len(names) + 1) // 2]:
        dtype = str(rng.choice(list(table.DTYPES)))
        line = table.Entry(operation, dtype, int(rng.choice(cases.WIDTHS)), str(case))
        print(line, file=sys.stderr)
        table.check(engine, line, rng)
for width in (1, 33):
    gather(engine, cases.ordinary(rng, 3), width, (1,), rng)
for name in ("ring", "fetch"):
    engine.module.shim_exercise(name, 3, int(rng.integers(1 << 60)))
print("passed")
"""


MOST_SAID = 16 << 20  # bytes: a report about the reporting of a fault may never end
SECONDS = 250


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(build, library, seed, operations) -> Done:
    """In a process of its own, which ends when it says too much."""
    environment = sanitizers.environment(build.compiler) | {"PYTHONPATH": os.pathsep.join([str(TESTS)])}
    command = [sys.executable, "-c", RUN, library, json.dumps(seed), json.dumps(operations)]
    limit = ["prlimit", f"--fsize={MOST_SAID}"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        done = subprocess.run(
            [*limit, *command], env=environment, stdout=out, stderr=err, check=False, timeout=SECONDS
        )
        out.seek(0), err.seek(0)
        return Done(done.returncode, out.read(), err.read())


# Of kernels that are others before sm_90: those that sum over pointers, and over gets.
DIFFERENT = ("get", "sum", "weighted", "mean", "max", "epilogue", "transposed", "same bits", "large")


@pytest.mark.parametrize("bulk", [True, False], ids=["sm_90", "before"])
def test_the_table_of_cases(rng, sanitized, tmp_path, bulk):
    library = sanitized.folder / "_cuda.so" if bulk else sanitized.before(tmp_path)
    done = run(sanitized, library, list(rng.bytes(4)), [*table.OPERATIONS] if bulk else DIFFERENT)
    assert done.stdout.strip() == "passed", done.stderr[-6000:]


@pytest.mark.parametrize(
    ("operation", "file", "objects", "old", "new", "report", "where"),
    [
        (
            "attention",
            "gpu/edges/edges.cuh",
            ("edges_float32",),
            "end = edge + segment->count;",
            "end = edge + segment->count + 4;",
            "AddressSanitizer: heap-buffer-overflow",
            "mgg::over_edges<",  # not each of its addresses has a line
        ),
        (
            "sum",
            "gpu/worker.cuh",
            ("rows", *SUMS),
            "all << (in_warp - lane);",
            "all << (in_warp - lane + 32);",
            "runtime error: shift exponent",
            "gpu/worker.cuh",
        ),
    ],
    ids=["address", "undefined behaviour"],
)
def test_a_planted_fault_is_reported(
    rng, sanitized, tmp_path, operation, file, objects, old, new, report, where
):
    library = sanitized.altered(file, old, new, objects, tmp_path)
    done = run(sanitized, library, list(rng.bytes(4)), [operation])
    assert done.returncode != 0 and "passed" not in done.stdout
    assert report in done.stderr, done.stderr[-4000:]
    assert where in done.stderr
