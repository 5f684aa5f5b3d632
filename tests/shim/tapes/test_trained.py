"""Layers that are programs on edges have the CPU's losses on a GPU that the shim plays, whoever runs their tapes."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import builds
import jobs
import numpy as np
import programs
import pytest

from mgg_hpc.data import writer

CHILD = Path(__file__).with_name("program_child.py")


@pytest.mark.compiled
def test_programs_have_the_losses_of_the_cpu(shim, tmp_path):
    graph = jobs.directed_weighted(60)
    types = np.random.default_rng(1).integers(0, 2, (len(graph.indices), 1)).astype(np.float32)
    writer.write(tmp_path / "graph.h5", dataclasses.replace(graph, edge={"type": types[:, 0]}))
    words = [shim.folder / "_cuda.so", tmp_path / "graph.h5", "gated-gcn", "gg-nn", "max-pooling"]
    environment = jobs.clean_environment() | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **{name: value for name, value in os.environ.items() if name == builds.COMPILING},
    }
    done = programs.python(CHILD, *words, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said.pop("launches") > 0
    for found in said.values():
        assert found["cpu"][-1] < found["cpu"][0]
        for how in ("interpreted", "compiled"):
            np.testing.assert_allclose(found[how], found["cpu"], rtol=1e-5)
