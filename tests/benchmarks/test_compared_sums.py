"""benchmarks/aggregate.py: libraries sum what we sum, and one that does not, or cannot, is left out and named."""

from __future__ import annotations

import sys
from pathlib import Path

import aggregate
import pytest

HARNESS = Path(__file__).parents[2] / "benchmarks" / "harness"

pytestmark = pytest.mark.long


def test_libraries_take_turns_and_orders_and_types_are_rows(measured):
    words = ("rmat:6:4", "--widths=5,16", "--orders=none,degree", "--dtypes=float32,bfloat16", "--weighted")
    words += ("--peers=torch,pyg,scipy", f"--peers-env={sys.prefix}", "--turns=2")
    found = measured("aggregate", *words)
    rows = found["rows"]
    cases = {(row["order"], row["dtype"], row["width"]) for row in rows}
    assert cases == {(o, d, w) for o in ("none", "degree") for d in ("float32", "bfloat16") for w in (5, 16)}
    for case in cases:
        here = [row for row in rows if (row["order"], row["dtype"], row["width"]) == case]
        names = [row["variant"] for row in here]
        assert names[:2] == ["gather floor", "mgg"] and set(names[2:]) <= {"torch", "pyg", "scipy"}
        ours = here[1]
        assert ours["mgg_speedup"] == 1 and here[0]["relative_time"] == 1
    assert {"scipy"} <= {row["variant"] for row in rows if row["dtype"] == "float32"}
    assert "bfloat16: scipy is left out: TypeError: float32 rows only" in found["printed"]


def test_the_last_lines_say_what_all_cases_say():
    cases = {
        ("none", "float32"): (6.0, 3.0),
        ("degree", "float32"): (8.0, 2.0),
        ("none", "bfloat16"): (8.0, 2.0),
    }
    rows = []
    for (order, dtype), (theirs, ours) in cases.items():
        case = {"graph": "g", "order": order, "dtype": dtype, "width": 8}
        rows.append({**case, "variant": "dgl", "median_ms": theirs, "mgg_speedup": theirs / ours})
        rows.append({**case, "variant": "mgg", "median_ms": ours, "mgg_speedup": 1.0})
    assert aggregate.summary([row for row in rows if row["dtype"] == "float32"]) == [
        "mgg, times as fast as dgl: geometric mean 2.83, 2.00 to 4.00",
        "mgg in its fastest order, as dgl on nodes as they were: geometric mean 3.00, 3.00 to 3.00",
        "mgg in its fastest order, as mgg on nodes as they were: geometric mean 1.50, 1.50 to 1.50",
    ]
    none = [row for row in rows if row["order"] == "none"]
    assert aggregate.summary(none)[1:] == [
        "bfloat16 rows, times as fast as float32: geometric mean 1.50, 1.50 to 1.50"
    ]


FAKE = """
import numpy as np
def about(): return "fake"
def aggregate(indptr, indices, weight, x, dtype):
    x = np.load(x)
    def made(x):
        {body}
    return {{"dgl": made(x)}}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return lambda: x + 1", "sums differ"),
        ("raise ValueError('no kernel')", "dgl is left out: ValueError: no kernel"),
        ("import os; os._exit(3)", "dgl ended with exit code 3 while it was asked to prepare"),
    ],
)
def test_a_library_that_errs_is_named(ran, tmp_path, body, said):
    """An environment whose Python runs another module in DGL's place."""
    binary = tmp_path / "env" / "bin" / "python"
    binary.parent.mkdir(parents=True)
    (binary.parent / "fake.py").write_text(FAKE.format(body=body))
    binary.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = [{str(HARNESS)!r}, {str(binary.parent)!r}]\n"
        "import worker, fake\nsys.modules['peers.dgl'] = fake\nworker.main(*sys.argv[2:])\n"
    )
    binary.chmod(0o755)
    done = ran(
        "aggregate", "rmat:5:4", "--widths=4", "--peers=dgl", "--peers-env=env", "--turns=2", "-o", "s.csv"
    )
    assert said in " ".join((done.stdout + done.stderr).split())
    assert done.returncode == (2 if "exit code" in said else 0)
    if done.returncode == 0:
        lines = (tmp_path / "s.csv").read_text().splitlines()
        assert len(lines) == 3 and not any(",dgl," in line for line in lines)
