"""What several processes of a test run share, made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that ``make`` fills, in the first of the processes that share this run (pytest-xdist) to ask."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    with filelock.FileLock(base / f"{name}.lock"):
        if not (folder / "made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "made").touch()
    return folder
