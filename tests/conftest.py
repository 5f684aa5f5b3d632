"""Fixtures of all tests: the graphs of MGG_DATA, requirements on the machine, and the kernels over the shim."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["seeds", "tiers", "devices"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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

    Where CI=true promises that everything is there, the test fails instead.
    """

    def check(there: bool, what: str, install: str = "") -> None:
        if there:
            return
        why = f"{what} ({install})" if install else what
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)

    return check


@pytest.fixture(scope="session")
def shim() -> Any:
    """A shim.build.Build: the GPU kernels compiled for the host, and the module that they make."""
    from builds import made, shim_build

    made("shim")
    return shim_build()


@pytest.fixture(scope="session")
def sanitized() -> Any:
    """As `shim`, with the address and the undefined-behaviour sanitizer; it loads where their libraries do first."""
    from builds import made, shim_build

    made("shim-sanitized")
    return shim_build("shim-sanitized")


@pytest.fixture(scope="session")
def engine(shim) -> Any:
    """A gpu.engine.Engine: the shim as what the table of cases runs on."""
    from gpu.pes.engine import Engine

    return Engine.shim(shim.folder / "_cuda.so")
