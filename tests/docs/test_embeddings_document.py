"""docs/embeddings.md: its program runs on one rank and on two, and its job trains."""

from __future__ import annotations

import re
from functools import partial

import pages
import pytest
from command import mgg

from mgg_hpc.data.clicks.generate import draw_clicks
from mgg_hpc.data.clicks.store import write_clicks

EXAMPLE = pages.ROOT / "examples" / "embedding_bag.py"
JOB = pages.ROOT / "inputs" / "dlrm_criteo.toml"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["python {}", pytest.param("mgg launch -n 2 {}", marks=pytest.mark.long)])
def test_the_example_runs(tmp_path, command):
    code, output = pages.run(command.format(EXAMPLE), tmp_path)
    assert code == 0 and len(re.findall(r"^loss \d+\.\d{3}$", output, re.MULTILINE)) == 1, output


def test_the_job_trains(tmp_path):
    write_clicks(tmp_path / "clicks.h5", [partial(draw_clicks, 500)])
    changed = {"dlrm.data": tmp_path / "clicks.h5", "dlrm.rows": 100, "run.folder": tmp_path / "runs"}
    assert mgg("train", JOB, *(f"--set={key}={value}" for key, value in changed.items())) == 0
    assert (tmp_path / "runs" / "001" / "summary.json").exists()
