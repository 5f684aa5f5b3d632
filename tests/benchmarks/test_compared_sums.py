"""benchmarks/aggregate.py: libraries sum what we sum, and one that does not, or cannot, is left out and named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "aggregate.py"

pytestmark = pytest.mark.long


@pytest.fixture
def aggregate(tmp_path):
    """Run the script on a small graph with this Python's libraries; return its document and its output."""

    def run(*words: object, code: int = 0) -> tuple[dict, str]:
        command = [sys.executable, SCRIPT, *words, "--turns=2", "-o", "sums.json", "-o", "sums.png"]
        done = subprocess.run(
            [*map(str, command)],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        written = tmp_path / "sums.json"
        return json.loads(written.read_text()) if code == 0 else {}, done.stdout + done.stderr

    return run


def test_libraries_take_turns_and_orders_and_types_are_rows(aggregate, tmp_path):
    words = ("rmat:6:4", "--widths=5,16", "--orders=none,degree", "--dtypes=float32,bfloat16", "--weighted")
    found, said = aggregate(*words, "--peers=torch,pyg,scipy", f"--peers-env={sys.prefix}")
    rows = found["rows"]
    cases = {(row["order"], row["dtype"], row["width"]) for row in rows}
    assert cases == {(o, d, w) for o in ("none", "degree") for d in ("float32", "bfloat16") for w in (5, 16)}
    for case in cases:
        here = [row for row in rows if (row["order"], row["dtype"], row["width"]) == case]
        names = [row["variant"] for row in here]
        assert names[:2] == ["gather floor", "mgg"] and set(names[2:]) <= {"torch", "pyg", "scipy"}
        ours = here[1]
        assert ours["mgg_speedup"] == 1 and here[0]["times_first"] == 1
    assert {"scipy"} <= {row["variant"] for row in rows if row["dtype"] == "float32"}
    assert "bfloat16: scipy is left out: TypeError: float32 rows only" in " ".join(said.split())
    assert (tmp_path / "sums.png").stat().st_size > 20_000


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
def test_a_library_that_errs_is_named(aggregate, tmp_path, body, said):
    """An environment whose Python runs another module in DGL's place."""
    binary = tmp_path / "env" / "bin" / "python"
    binary.parent.mkdir(parents=True)
    (binary.parent / "fake.py").write_text(FAKE.format(body=body))
    binary.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"sys.path[:0] = [{str(SCRIPT.parent / 'harness')!r}, {str(binary.parent)!r}]\n"
        "import worker, fake\nsys.modules['peers.dgl'] = fake\nworker.main(*sys.argv[2:])\n"
    )
    binary.chmod(0o755)
    words = ("rmat:5:4", "--widths=4", "--peers=dgl", f"--peers-env={tmp_path / 'env'}")
    ends = "exit code" in said
    found, printed = aggregate(*words, code=2 if ends else 0)
    assert said in " ".join(printed.split())
    if not ends:
        assert {row["variant"] for row in found["rows"]} == {"gather floor", "mgg"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rmat:4 --peers=jax", "--peers jax: 'jax' is not one of dgl, torch, pyg, mkl, scipy"),
        ("rmat:4 --orders=random", "'random' is not one of"),
        ("rmat:4 --peers-env=absent", "--peers-env absent: no Python environment"),
    ],
)
def test_bad_input_is_one_line(aggregate, words, said):
    _, printed = aggregate(*words.split(), code=2)
    (line,) = printed.splitlines()
    assert said in line
