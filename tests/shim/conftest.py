"""The GPU kernels, and the code around them, compiled by the host compiler against the shim."""

from __future__ import annotations

import shutil

import pytest
from gpu.engine import Engine

from .build import Build


@pytest.fixture(scope="session")
def build(require, tmp_path_factory) -> Build:
    """All objects, and the module that they make."""
    compiler = shutil.which("g++")
    require(compiler is not None, "no g++ (package g++)")
    made = Build(compiler, tmp_path_factory.mktemp("shim"))
    made.whole()
    return made


@pytest.fixture(scope="session")
def engine(build) -> Engine:
    """The shim as an engine of the table of cases."""
    return Engine.shim(build.folder / "_cuda.so")
