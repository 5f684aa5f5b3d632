"""What a user of an incomplete machine reads first: which package to install."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path):
    """A folder of programs that stands for a machine, and the first line that set-up prints there."""
    folder = tmp_path / "bin"
    folder.mkdir()

    class Machine:
        def has(self, name, script="exit 0"):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

        def has_python(self, without="nothing at all"):
            """The Python that runs the tests, failing where its code mentions ``without``."""
            self.has("python3", f'case "$2" in *"{without}"*) exit 1;; esac\nexec {sys.executable} "$@"')

        def first_line(self):
            words = (ROOT / ".ci" / "setup", "python3", tmp_path / "venv", "install")
            ended = programs.run("/bin/sh", *words, env={"PATH": str(folder)}, cwd=tmp_path)
            assert ended.returncode == 1
            assert not (tmp_path / "venv").exists()
            return (ended.stdout + ended.stderr).splitlines()[0]

    return Machine()


def test_no_python(machine):
    assert "python3 is missing; on Debian or Ubuntu: apt install python3 python3-venv" in machine.first_line()


def test_old_python(machine):
    machine.has("python3", 'case "$2" in *"< (3, 11)"*) exit 1;; esac\necho 3.9.2')
    assert "is Python 3.9.2, and 3.11 or newer is needed: apt install python3.11" in machine.first_line()


@pytest.mark.parametrize(
    ("absent", "package"), [("ensurepip", "python3-venv"), ("Python.h", "python3-dev"), ("", "g++")]
)
def test_one_package_missing(machine, absent, package):
    machine.has_python(without=absent or "nothing at all")
    if absent:
        machine.has("g++")
    assert machine.first_line() == f"mgg: missing: {package}; on Debian or Ubuntu: apt install {package}"


def test_all_that_is_missing_is_named_at_once(machine):
    machine.has("python3", f'case "$2" in *ensurepip*|*Python.h*) exit 1;; esac\nexec {sys.executable} "$@"')
    assert machine.first_line().endswith("apt install python3-venv python3-dev g++")


@pytest.mark.parametrize("compiler", ["g++", "c++", "clang++"])
def test_any_compiler_will_do(machine, compiler):
    machine.has_python(without="ensurepip")  # stops set-up before it installs anything
    machine.has(compiler)
    assert machine.first_line().endswith("apt install python3-venv")


def test_debians_own_python_is_understood(machine, require):
    require(os.access("/usr/bin/python3", os.X_OK), "no system Python", "apt install python3")
    machine.has("python3", 'exec /usr/bin/python3 "$@"')
    line = machine.first_line()  # no compiler on this machine, so there is at least that to say
    assert "g++" in line


@pytest.mark.parametrize("pip", ["exit 0", "exit 1"], ids=["installed", "failed"])
def test_what_tests_need_is_installed_apart(tmp_path, pip):
    """VENV/.tests, for the Makefile, is there only after pip has installed all that setup.cfg lists for tests."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$2" != pip ] || {pip}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ended = programs.run(ROOT / ".ci" / "setup", "python3", tmp_path, "tests", cwd=ROOT)
    assert (ended.returncode == 0) == (tmp_path / ".tests").exists() == (pip == "exit 0")
    packages = {line.partition(">=")[0] for line in (tmp_path / ".required").read_text().split()}
    assert {"pytest", "hypothesis", "ruff", "mypy", "matplotlib"} <= packages
    assert not {"torch", "mpich"} & packages
