"""The source distribution holds all sources, and the wheel trains where there is no compiler."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import programs
import pytest
from jobs import blocks, write_job

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
def wheel():
    """The wheel that `make wheel` has built."""
    found = sorted((ROOT / "dist").glob("mgg_hpc-*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.fail("no wheel in dist: make wheel", pytrace=False)
    return found[-1]


def modules() -> set[str]:
    """Paths of all modules and of the report's template."""
    files = (path for path in (ROOT / "mgg_hpc").rglob("*") if path.suffix in (".py", ".html"))
    return {str(path.relative_to(ROOT)) for path in files}


def test_sdist_holds_all_sources(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "cuda").rglob("*") if path.is_file()}
    assert sources | modules() | {"LICENSE", "CMakeLists.txt", "pyproject.toml", "setup.cfg"} <= names


def test_the_wheel_has_all_modules(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "py3-none-any" not in wheel.name
    for module in ("_host", "_graph"):
        assert [name for name in names if name.startswith(f"mgg_hpc/{module}.") and name.endswith(".so")]
    assert modules() <= set(names)
    assert any(name.endswith("LICENSE") for name in names)


def test_the_wheel_trains_in_a_new_environment_without_a_compiler(wheel, tmp_path):
    """Its dependencies are those of this environment, whose own mgg_hpc is not found there."""
    venv = tmp_path / "venv"
    assert programs.python("-m", "venv", "--without-pip", venv).returncode == 0
    site = Path(sysconfig.get_path("platlib", vars={"base": venv, "platbase": venv}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib"))
    environment = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}
    environment["MPI4PY_LIBMPI"] = str(Path(sys.prefix, "lib", "libmpi.so.12"))  # the mpich wheel's
    pip = ("-m", "pip", "--python", venv / "bin" / "python", "install", "--no-index", "--no-deps")
    installed = programs.python(*pip, wheel)
    assert installed.returncode == 0, installed.stderr
    write_job(tmp_path, blocks())
    for words in (["--help"], ["doctor"], ["train", "job.toml"]):
        done = programs.run(venv / "bin" / "mgg", *words, cwd=tmp_path, env=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    code = "import mgg_hpc._host as host; print(host.__file__, host.instruction_sets())"
    done = programs.run(venv / "bin" / "python", "-c", code, cwd=tmp_path, env=environment)
    assert done.stdout.startswith(str(site)) and "baseline" in done.stdout, done.stdout + done.stderr
