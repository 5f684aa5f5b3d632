"""How far losses may lie from the CPU's: multiples of what rounding alone does there."""

from __future__ import annotations

import json

import programs
import pytest

from gpu import bounds, training

pytestmark = pytest.mark.long

# TOLERANCE is at least so many times what is measured with the seed that `make gpu-test` draws by.
MULTIPLES = {"float32": 50, "bfloat16": 4}


def test_bounds_are_multiples_of_what_rounding_does():
    done = programs.python(bounds.__file__, "--ranks", 2, "--nodes", 500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["deviation"]
    print(done.stdout)
    # Only one of the cases has half rows.
    measured = {"float32": max(found["float32"].values()), "bfloat16": found["bfloat16"][bounds.HALVES]}
    for dtype, apart in measured.items():
        assert 0 < MULTIPLES[dtype] * apart < training.TOLERANCE[dtype]
