"""The extension built with the address and the undefined-behaviour sanitizer, in a copy of the package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builds import made, sanitized_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory) -> dict[str, str]:
    """The environment of a Python that loads the package with the sanitized extension.

    Kernels are built for one instruction set: what surrounds them is the same in all, and vector code that GCC's
    sanitizers do not see is left to guarded pages.
    """
    build = made("host-sanitized")
    package = tmp_path_factory.mktemp("tree") / "mgg_hpc"
    package.mkdir()
    for path in (ROOT / "mgg_hpc").iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    for path in build.glob("_host*.so"):
        shutil.copy(path, package)
    return sanitized_environment("g++") | {"PYTHONPATH": str(package.parent)}
