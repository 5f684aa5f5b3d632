"""The source distribution builds by itself, and the wheel built from it runs."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).parents[2]
BUILT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "*.h5", "runs", "__pycache__")

pytestmark = pytest.mark.long


def backend(call, folder, **variables):
    """Call a hook of the build backend in a folder, as pip does."""
    program = f"from scikit_build_core.setuptools import build_meta as backend; print(backend.{call})"
    ended = programs.python("-c", program, cwd=folder, env=os.environ | variables)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return folder / "dist" / ended.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The archive made from a copy of the working tree without what was built in it."""
    folder = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(ROOT, folder, ignore=BUILT)
    return backend("build_sdist('dist')", folder)


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel made from the archive alone, without optimisation: this is not about speed."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    options = "-DMGG_CUDA=OFF -DMGG_ISAS=baseline"
    return backend("build_wheel('dist')", tree, SKBUILD_CMAKE_BUILD_TYPE="Debug", CMAKE_ARGS=options)


def modules() -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / "mgg_hpc").rglob("*.py")}


def test_sdist_holds_all_sources(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "cuda").rglob("*") if path.is_file()}
    assert sources | modules() | {"LICENSE", "CMakeLists.txt", "pyproject.toml", "setup.cfg"} <= names


def test_wheel_from_the_sdist_runs(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert "py3-none-any" not in wheel.name
    assert [name for name in names if name.startswith("mgg_hpc/_host.") and name.endswith(".so")]
    assert modules() <= set(names)
    assert any(name.endswith("LICENSE") for name in names)
    program = "import mgg_hpc._host as host; print(host.__file__, host.instruction_sets())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = programs.python("-P", "-c", program, cwd=tmp_path, env=environment)
    assert ended.stdout.startswith(str(tmp_path))
    assert "baseline" in ended.stdout
