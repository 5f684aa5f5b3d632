"""Benchmarks of a GPU with the shim in its place."""

from __future__ import annotations

import json

import pytest
from command import mgg
from gpu.pes.shim_device import shim_device

from mgg_hpc.tools.bench.harness.gpu import Device


@pytest.fixture
def device(engine, rng, monkeypatch):
    """The shim as one PE or several, which is the GPU of all benchmarks too."""
    made = shim_device(engine, int(rng.integers(1 << 60)))
    monkeypatch.setattr(Device, "current", lambda: made)
    return made


@pytest.fixture
def bench(device, tmp_path, capsys):
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
