"""Fixtures of all tests: the graphs of MGG_DATA, requirements on the machine, and the kernels over the shim."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import SANITIZERS, made_once

pytest_plugins = ["suite.seeds", "suite.tiers", "suite.report"]


@pytest.fixture(scope="session")
def data_folder(require) -> Path:
    """The folder of real graphs: MGG_DATA, else shared/data beside the repository."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MGG_DATA", default)).resolve()
    require(folder.is_dir(), f"the graphs' folder {folder} is missing (set MGG_DATA)")
    return folder


@pytest.fixture(scope="session")
def require() -> Callable[..., None]:
    """Return require(there, what, install): skip a test that lacks ``what``, which the command ``install`` installs.

    Where CI=true promises that everything is there, the test fails instead. suite/run.py prints one line for each
    command.
    """

    def check(there: bool, what: str, install: str = "") -> None:
        if there:
            return
        why = f"{what} ({install})" if install else what
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)

    return check


def shim_build(require: Callable[..., None], name: str, flags: tuple[str, ...]) -> Any:
    """Return a shim.build.Build whose module is compiled with these flags."""
    from shim.build import Build

    compiler = shutil.which("g++")
    require(compiler is not None, "no g++", "apt install g++")
    return Build(compiler, made_once(name, lambda at: Build(compiler, at, flags).whole()), flags)


@pytest.fixture(scope="session")
def shim(require) -> Any:
    """A shim.build.Build: the GPU kernels compiled for the host, and the module that they make."""
    return shim_build(require, "shim", ())


@pytest.fixture(scope="session")
def sanitized(require) -> Any:
    """As `shim`, with the address and the undefined-behaviour sanitizer; it loads where their libraries do first."""
    return shim_build(require, "shim-sanitized", SANITIZERS)


@pytest.fixture(scope="session")
def engine(shim) -> Any:
    """A gpu.engine.Engine: the shim as what the table of cases runs on."""
    from gpu.pes.engine import Engine

    return Engine.shim(shim.folder / "_cuda.so")
