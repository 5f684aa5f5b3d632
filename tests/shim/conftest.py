"""The GPU kernels, and the code around them, compiled by the host compiler against the shim."""

from __future__ import annotations

import pytest
from once import made_once

from .build import Build


@pytest.fixture(scope="session")
def shim_before(shim, tmp_path_factory) -> Build:
    """The kernels as they are before sm_90: without bulk copies."""

    def build(folder):
        return Build(shim.compiler, folder, bulk=False, domain="before")

    return build(made_once(tmp_path_factory, "before", lambda folder: build(folder).whole()))
