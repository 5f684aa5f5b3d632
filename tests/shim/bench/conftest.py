"""Benchmarks of a GPU with the shim in its place."""

from __future__ import annotations

import json

import pytest
from command import mgg
from gpu.pes.stage import stage_of

from mgg_hpc.tools.bench.harness.gpu import Stage


@pytest.fixture
def stage(engine, rng, monkeypatch):
    """The shim as one PE or several, which is the GPU of all benchmarks too."""
    made = stage_of(engine, int(rng.integers(1 << 60)))
    monkeypatch.setattr(Stage, "gpu", lambda: made)
    return made


@pytest.fixture
def bench(stage, tmp_path, capsys):
    """Run `mgg bench ... --device cuda`, and return its document, with what it printed and its table.

    The picture is found.png.
    """

    def run(*words: object, plot: bool = True) -> dict:
        files = {"json": tmp_path / "found.json", "table": tmp_path / "found.md"}
        files |= {"plot": tmp_path / "found.png"} if plot else {}
        options = [f"--{name}={path}" for name, path in files.items()]
        assert mgg("bench", *words, "--device=cuda", *options) == 0, capsys.readouterr().err
        found = json.loads(files["json"].read_text())
        return found | {"printed": capsys.readouterr().out, "markdown": files["table"].read_text()}

    return run
