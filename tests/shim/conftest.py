"""The GPU kernels, and the code around them, compiled by the host compiler against the shim."""

from __future__ import annotations

import pytest
from builds import made_once

from .build import Build


@pytest.fixture(scope="session")
def shim_before(shim) -> Build:
    """The kernels as they are before sm_90: without bulk copies."""
    return shim.older(made_once("shim-before", shim.before))
