"""What all tests share: fresh random numbers that can be had again, and the graphs of MGG_DATA."""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from once import made_once

SEED = "MGG_TEST_SEED"


def pytest_configure(config):
    # In the environment, so that ranks and commands that tests start draw the same numbers.
    os.environ.setdefault(SEED, str(secrets.randbelow(10**6)))


def pytest_report_header(config):
    return f"{SEED}={os.environ[SEED]} (set it to draw the same random numbers again)"


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers that are new in each run; each test has its own."""
    seed = int(os.environ[SEED])
    request.node.user_properties.append((SEED, seed))
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture(scope="session")
def data_folder(require) -> Path:
    """The folder of real graphs: MGG_DATA, else shared/data beside the repository."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MGG_DATA", default)).resolve()
    require(folder.is_dir(), f"the graphs' folder {folder} is missing (set MGG_DATA)")
    return folder


@pytest.fixture(scope="session")
def require() -> Callable[[bool, str], None]:
    """Skip a test that lacks something, by name; fail it where CI=true promises that all is there."""

    def check(there: bool, what: str) -> None:
        if not there and os.environ.get("CI") == "true":
            pytest.fail(what)
        if not there:
            pytest.skip(what)

    return check


@pytest.fixture(scope="session")
def shim(require, tmp_path_factory) -> Any:
    """A shim.build.Build: the GPU kernels compiled for the host, and the module that they make."""
    from shim.build import Build

    compiler = shutil.which("g++")
    require(compiler is not None, "no g++ (package g++)")
    return Build(compiler, made_once(tmp_path_factory, "shim", lambda at: Build(compiler, at).whole()))


@pytest.fixture(scope="session")
def engine(shim) -> Any:
    """A gpu.engine.Engine: the shim as what the table of cases runs on."""
    from gpu.engine import Engine

    return Engine.shim(shim.folder / "_cuda.so")


@pytest.fixture(scope="session")
def sanitized(require, tmp_path_factory) -> Any:
    """As `shim`, with the address and the undefined-behaviour sanitizer; it loads where their libraries do first."""
    import sanitizers
    from shim.build import Build

    compiler = shutil.which("g++")
    require(compiler is not None, "no g++ (package g++)")

    def build(folder: Path) -> Build:
        return Build(compiler, folder, sanitizers.FLAGS)

    return build(made_once(tmp_path_factory, "sanitized", lambda at: build(at).whole()))
