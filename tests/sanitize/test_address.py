"""No kernel reads or writes what is not its own, and none relies on what C++ leaves undefined."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import cases
import programs
import pytest

from mgg_hpc import _host

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Of the widths, one of each kind: a single column, an odd few, one more than a vector, one more than a tile. Two
# ranks have nothing that four have not.
FEWER = " and ".join(f"not -{number}-" for number in (2, 8, 16, 31, 32, 127, 128, 513))

pytestmark = pytest.mark.long


def python(environment, rows, *arguments):
    """Run a Python with memory that ends where rows end. Modules of the current folder do not come first."""
    path = [environment.get("PYTHONPATH", str(ROOT)), str(HERE), str(HERE.parent)]
    variables = environment | {"PYTHONPATH": os.pathsep.join(path), "MGG_TEST_ROWS": rows}
    return programs.python("-P", *arguments, env=variables, cwd=ROOT)


def again(environment, rows, chosen, *words):
    """Run tests again: options of pytest and files of tests.

    -s: a sanitizer writes its report as the process ends, which pytest would keep.
    """
    pytest_ = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "tight_rows", "-s", "-q", "-k", chosen)
    paths = (word if word[0] == "-" else ROOT / "tests" / word for word in words)
    done = python(environment, rows, *pytest_, *paths)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def test_the_sanitized_extension_is_the_one_that_loads(sanitized):
    done = python(sanitized, "heap", "-c", "from mgg_hpc import _host; print(_host.__file__)")
    assert done.stdout.startswith(sanitized["PYTHONPATH"]), done.stderr


def test_the_table_of_hard_cases(rng, sanitized):
    """Half of the cases, drawn anew in each run."""
    chosen = f"{FEWER} and not instruction_sets and {cases.without_half(rng)}"
    again(sanitized, "heap", chosen, "--tier=test", "runtime/test_aggregate.py")


def test_floors_draws_and_orders(sanitized):
    again(sanitized, "heap", "test_", "runtime/test_floor.py", "nn/test_random.py", "plan/test_order.py")


@pytest.mark.parametrize("isa", _host.instruction_sets())
def test_rows_may_end_where_memory_ends(isa):
    """The extension as it is used, every instruction set: masked and half vectors at every width."""
    chosen = "test_the_table and hub"
    again(os.environ | {"MGG_ISA": isa}, "guard", chosen, "runtime/test_aggregate.py")


@pytest.mark.parametrize(
    ("promise", "report"),
    [
        ("row", "AddressSanitizer: heap-buffer-overflow"),
        ("weight", "runtime error: load of misaligned address"),
    ],
)
def test_a_planted_fault_is_reported(sanitized, promise, report):
    done = python(sanitized, "heap", HERE / "planted.py", promise)
    assert done.returncode != 0 and "unnoticed" not in done.stdout
    assert report in done.stderr
    assert "cuda/cpu/aggregate.cpp" in done.stderr


@pytest.mark.parametrize("isa", _host.instruction_sets())
def test_a_row_beyond_the_end_of_memory_is_noticed(isa):
    done = python(os.environ | {"MGG_ISA": isa}, "guard", HERE / "planted.py", "row")
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr
