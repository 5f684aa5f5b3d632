"""How tests of benchmarks run a script, and read what it wrote."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import python

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def ran(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return ran(script, *words, **environment): run a script in tmp_path."""

    def run(script: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        given = map(str, words)
        return python(SCRIPTS / f"{script}.py", *given, folder=tmp_path, COLUMNS="160", **environment)

    return run


@pytest.fixture
def measured(ran, tmp_path) -> Callable[..., dict[str, Any]]:
    """Return measured(script, *words, picture=True, **environment): run a script; return the JSON that it wrote.

    What it printed, without line breaks, is added as "printed".
    """

    def run(script: str, *words: object, picture: bool = True, **environment: str) -> dict[str, Any]:
        files = ["-o", "found.json", *(["-o", "found.svg"] if picture else [])]
        done = ran(script, *words, *files, **environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        if picture:
            assert "</svg>" in (tmp_path / "found.svg").read_text()
        found = json.loads((tmp_path / "found.json").read_text())
        return found | {"printed": " ".join(done.stdout.split())}

    return run
